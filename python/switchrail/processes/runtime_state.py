"""A runtime as data, small enough to send to every worker."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from switchrail import _core, arguments
from switchrail.errors import UnpicklableError
from switchrail.processes.restore import make_plans, restore
from switchrail.processes.state import State, opened, read

if TYPE_CHECKING:
    from switchrail._core import RoutePlan
    from switchrail.runtime import Runtime


@dataclass(frozen=True, slots=True)
class RuntimeState(State):
    """Everything that decides what a runtime does, by name: a small value that pickles.

    A worker, however it was started, takes it as an argument and calls `restore`, or is given the bound
    method `state.restore` as its initializer. Its attributes are those of `switchrail.processes.state.State`.
    """

    def __reduce__(self) -> tuple[Any, tuple[str, bytes]]:
        return _open, (self.version, pickle.dumps(self.values()))

    @classmethod
    def of(cls, runtime: Runtime, *plans: RoutePlan) -> RuntimeState:
        """A runtime as data, and what plans were made from.

        Raises:
            UnpicklableError: Something in it can't be found by name in another process; the error names each
                such thing, and why.
        """
        made = [arguments.instance("plan", plan, _core.RoutePlan) for plan in plans]
        state, problems = read(runtime, made)
        if problems:
            raise UnpicklableError(
                f"another process can't be given this runtime: {'; '.join(problems)}",
                problems=tuple(problems),
            )
        return cls(*state.values())

    def restore(self) -> Runtime:
        """Makes a runtime like the one that this is of the default one of this process; once.

        What the default runtime had before is let go, its hooks are taken off. Where the default runtime is
        like this one already, as in a forked child or at the second call, nothing happens. Call it before
        other threads use the default runtime.

        Returns:
            The runtime.

        Raises:
            InstallationError: This process finds another installation, or something fails to load here that
                did not there; the error lists every difference. The default runtime stays what it was.
        """
        return restore(self)

    def make_plans(self, runtime: Runtime) -> tuple[RoutePlan, ...]:
        """Makes the plans that were given to `RuntimeState.of` again.

        Args:
            runtime: What `restore` returned.

        Raises:
            InstallationError: A plan has other routes or backends here; the error lists them.
        """
        return make_plans(self, runtime)


def _open(version: str, values: bytes) -> RuntimeState:
    return RuntimeState(*opened(version, values))
