"""A transaction of a runtime: the changes made in it are committed together, or not at all."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import filterfalse
from typing import TYPE_CHECKING, Any, TypeVar

from switchrail.arguments import lists_options
from switchrail.errors import HookError, TransactionClosedError
from switchrail.forks import lock_across_forks
from switchrail.functions import Function, Functions, ModelFamily
from switchrail.hooks import Hook, Hooks, Kind
from switchrail.hooks.hook import HOOK_OPTIONS, HookOptions, HookOrder, HookSource

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from switchrail import _core

T = TypeVar("T")

_local = threading.local()

# Guards `Staging._staged` and `Staging._brought`; no foreign code runs under it.
_lock = lock_across_forks()


def staging_of(hooks: Hooks) -> Staging | None:
    """The transaction of the plugin that this thread loads into the runtime with these hooks; or None."""
    stagings: Sequence[Staging] = getattr(_local, "stagings", ())
    return next((staging for staging in reversed(stagings) if staging.hooks is hooks), None)


def carried(work: Callable[[], T]) -> Callable[[], T]:
    """Wraps `work` so that another thread runs it with this thread's current transactions."""
    stagings: tuple[Staging, ...] = getattr(_local, "stagings", ())

    def carry() -> T:
        _local.stagings = stagings
        return work()

    return carry


class Staging:
    """An open transaction of a runtime's core, with hooks and functions that become active at its commit.

    Until the transaction ends, any thread can stage changes in it. Later changes are refused.

    Attributes:
        hooks: The runtime's hooks.
    """

    def __init__(
        self,
        core: _core.Runtime,
        hooks: Hooks,
        functions: Functions,
        origin: _core.Plugin | Mapping[str, str | None],
        *,
        strict: bool | None = None,
    ) -> None:
        self.hooks = hooks
        self._core, self._functions, self._strict = core, functions, strict
        self._transaction = core.begin(origin)
        self._origin = self._transaction.origin
        self._staged: list[Hook] | None = []
        self._committed: Sequence[Hook] = ()
        self._brought: list[Function | ModelFamily] = []

    @property
    def registrations(self) -> _core.Transaction:
        """The core's transaction.

        Raises:
            TransactionClosedError: It has ended.
        """
        if not self._transaction.is_open:
            raise self._closed()
        return self._transaction

    @property
    def is_committed(self) -> bool:
        """Whether the staged changes were committed."""
        return self._transaction.is_committed

    @property
    def source(self) -> HookSource:
        """The plugin, as options of `Hooks.prepare`; empty if the transaction isn't a plugin's."""
        if self._origin["kind"] != "plugin":
            return {}
        return {
            "source": self._origin["distribution"],
            "plugin": self._origin["plugin"],
            "version": self._origin["version"],
        }

    def hook(self, target: object, fn: Callable[..., Any], kind: Kind, **order: Unpack[HookOrder]) -> Hook:
        """Creates, checks and stages a hook; see `Registrar.hook`."""
        hook = self.hooks.prepare(target, fn, kind, **self.source, strict=self._strict, **order)
        self.stage(hook)
        return hook

    def stage(self, *hooks: Hook) -> None:
        """Stages prepared hooks.

        Raises:
            TransactionClosedError: The transaction has ended.
        """
        with _lock:
            if self._staged is None:
                raise self._closed()
            self._staged.extend(hooks)

    def unstage(self, *hooks: Hook) -> None:
        """Removes staged hooks.

        Raises:
            HookError: A hook is not staged here.
            TransactionClosedError: The transaction has ended.
        """
        with _lock:
            if self._staged is None:
                raise self._closed()
            foreign = next(filterfalse(self._staged.__contains__, hooks), None)
            if foreign is not None:
                raise HookError(
                    f"{foreign!r} was not added by {self}, which is being loaded; valid: its own hooks",
                    target=foreign.target_name,
                )
            self._staged = list(filterfalse(hooks.__contains__, self._staged))

    def staged(self) -> tuple[Hook, ...]:
        """The staged hooks."""
        return tuple(self._staged or ())

    def bring(self, function: Function | ModelFamily) -> None:
        """Checks and stages a function for an operation, or a family of models.

        Raises:
            RegistrationError: The function does not fit the operation.
            TransactionClosedError: The transaction has ended.
        """
        self._functions.check(function)
        with _lock:
            if self._staged is None:
                raise self._closed()
            self._brought.append(function)

    def run(self, work: Callable[[], T]) -> T:
        """Runs `work` with this transaction as the thread's current one."""
        outer: tuple[Staging, ...] = getattr(_local, "stagings", ())
        try:
            _local.stagings = (*outer, self)
            return work()
        finally:
            _local.stagings = outer

    def commit(self) -> None:
        """Makes all changes active, or none.

        Raises:
            ConflictError: Another transaction has meanwhile registered one of the names.
            HookError: A hook can't become active.
            OrderError: The constraints of the hooks on one target form a cycle.
            RegistrationError: An operation already has a function, or a model type a family.
            TransactionClosedError: The transaction has ended.
        """
        with _lock:
            hooks, self._staged = self._staged, None
        if hooks is None:
            raise self._closed()
        try:
            self._committed = hooks
            self._functions.add(*self._brought)
            if hooks:
                self.hooks.commit(hooks, strict=self._strict)
            self._transaction.commit()
        except BaseException:
            if not self.is_committed:  # an interrupt may come after the commit, when the changes are active
                self._functions.remove(*self._brought)
                self.hooks.remove(*hooks)
            raise

    def close(self) -> None:
        """Ends the transaction; uncommitted changes are lost. A second call does nothing."""
        with _lock:
            self._staged = None
        self._transaction.close()

    def undo(self) -> None:
        """Closes the transaction, and removes its plugin's hooks and registrations from the runtime."""
        self.close()
        self._functions.remove(*self._brought)
        # A forked child may call this while a plugin's code runs. Then `StagedHooks.remove` would unstage.
        Hooks.remove(self.hooks, *self._committed)
        if not self.is_committed:
            return
        transaction = self._core.begin(self._origin)
        transaction.withdraw_own()
        transaction.commit()

    def _closed(self) -> TransactionClosedError:
        return TransactionClosedError(
            f"the transaction of {self} is closed, so this change was refused; valid: changes before the "
            "plugin's function returns, or within the block of Runtime.transaction()"
        )

    def __str__(self) -> str:
        if self._origin["kind"] != "plugin":
            return "the user"
        return f"plugin {self._origin['distribution']}:{self._origin['plugin']}"


class StagedHooks(Hooks):
    """A runtime's hooks. Hooks that a plugin adds while it is being loaded go into its transaction."""

    @property
    def strict(self) -> bool:
        """See `Hooks.strict`; a plugin that is being loaded can't set it."""
        return self._strict

    @strict.setter
    def strict(self, value: bool) -> None:
        staging = staging_of(self)
        if staging is not None:
            raise HookError(
                f"{staging} can't set `strict` while the plugin is being loaded; only the program can"
            )
        self._strict = value

    @lists_options(HookOptions, HOOK_OPTIONS)
    def prepare(
        self, target: object, fn: Callable[..., Any], kind: Kind = "before", **options: Unpack[HookOptions]
    ) -> Hook:
        """Creates and checks a hook. Its default source is the plugin that is being loaded."""
        staging = staging_of(self)
        if staging is not None and options.get("source", "user") == "user":
            options = {**options, **staging.source}
        return super().prepare(target, fn, kind, **options)

    def commit(self, hooks: Sequence[Hook], *, strict: bool | None = None) -> None:
        """Activates prepared hooks. A plugin that is being loaded activates them with its transaction."""
        staging = staging_of(self)
        if staging is None:
            super().commit(hooks, strict=strict)
        else:
            staging.stage(*hooks)

    def remove(self, *hooks: Hook) -> None:
        """Removes hooks. A plugin that is being loaded can remove only hooks that it has just added."""
        staging = staging_of(self)
        if staging is None:
            super().remove(*hooks)
        else:
            staging.unstage(*hooks)

    def clear(self) -> None:
        """Removes all hooks. A plugin that is being loaded may do so only if it has just added all hooks."""
        staging = staging_of(self)
        if staging is None:
            super().clear()
        else:
            staging.unstage(*staging.staged(), *self.list(), *self.disabled(), *self.waiting())

    def disable(self, *hooks: Hook) -> None:
        """Disables hooks, which keep their positions in the order. Plugins that are being loaded may not."""
        self._refuse_plugins("disable", hooks)
        super().disable(*hooks)

    def enable(self, *hooks: Hook) -> None:
        """Enables disabled hooks. Plugins that are being loaded may not."""
        self._refuse_plugins("enable", hooks)
        super().enable(*hooks)

    def _refuse_plugins(self, what: str, hooks: Sequence[Hook]) -> None:
        staging = staging_of(self)
        if staging is not None and hooks:
            raise HookError(
                f"{staging} can't {what} {hooks[0]!r} while the plugin is being loaded; valid: "
                f"to {what} hooks later",
                target=hooks[0].target_name,
            )
