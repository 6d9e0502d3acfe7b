"""Creates a platform from a platform plugin or from a class path, `module:Class`."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from operator import attrgetter
from typing import Any, Protocol, TypeVar

from switchrail.errors import PlatformError, PlatformPluginError
from switchrail.foreign import one_line
from switchrail.overrides import check_overrides
from switchrail.platforms.builtin import KINDS
from switchrail.platforms.hardware import Hardware
from switchrail.platforms.identity import OUT_OF_TREE
from switchrail.platforms.platform import Platform
from switchrail.platforms.serving import Serving
from switchrail.plugins import Plugin
from switchrail.plugins.attempt import described, handlers, is_interrupt
from switchrail.plugins.entry_point import import_target
from switchrail.variables import PLATFORM
from switchrail.waiting import HungError

T = TypeVar("T")


class Limited(Protocol):
    """Runs work with a time limit."""

    def __call__(self, work: Callable[[], T], name: str, what: str) -> T:
        """Runs `work`. Errors name the owner of the code (`name`) and the kind of work (`what`)."""


class Candidate:
    """A platform plugin that a runtime may choose.

    Attributes:
        plugin: The plugin's record as discovered.
        record: The plugin's latest record. `ask` makes it `blocked` if the plugin declines, `make` makes it
            `loaded`, and either makes it `failed` or `hung` if the plugin fails.
    """

    def __init__(self, plugin: Plugin, known: Plugin | None, limited: Limited) -> None:
        """Stores the arguments without calling the plugin.

        Args:
            plugin: The plugin's record as discovered.
            known: The plugin's record after an earlier attempt, or None. If it hung, it is not called again.
            limited: Runs the plugin's code with a time limit.
        """
        self.plugin, self._limited = plugin, limited
        self.record = known if known is not None and known.state == "hung" else plugin
        self._handlers = handlers()

    def ask(self) -> str | None:
        """Calls the plugin's function. Returns the platform's class path, or None if the plugin declines.

        Raises:
            PlatformPluginError: The plugin fails, or can't be called, for instance after a call that hung.
        """
        if self.record.state != "discovered":
            raise self._failure(f"{self.record.state}: {self.record.reason}")
        path = self._blamed(lambda: self._timed(self._ask, "its function"))
        if path is None:
            self.record = self.plugin.blocked("it declines: it finds no device of its own here")
        return path

    def make(self, path: str, index: str = "") -> Platform:
        """Creates the plugin's platform.

        Args:
            path: The result of `ask`.
            index: The number of the device; empty means the current device.

        Raises:
            PlatformError: There is no device of that number.
            PlatformPluginError: The plugin fails.
        """
        cls = self._blamed(lambda: self._timed(lambda: import_class(path), "the import of its class"))
        device = self._device(cls, index) if index else None
        platform = self._blamed(lambda: instance_of(cls, device))
        self.record = self.plugin.loaded()
        return platform

    def _ask(self) -> str | None:
        function = import_target(self.plugin)
        if isinstance(function, type) or not callable(function):
            raise TypeError(f"its entry point is {function!r}; valid: a function without arguments")
        path = function()
        if path is not None and not (isinstance(path, str) and all(path.partition(":"))):
            raise TypeError(f"it returned {path!r}; valid: a class path 'module:Class', or None to decline")
        return path

    def _device(self, cls: type[Platform], index: str) -> str:
        there = self._blamed(cls.hardware_class.devices)
        names = {f"{self.plugin.name}:{device.partition(':')[2] or 0}": device for device in there}
        name = f"{self.plugin.name}:{index}"
        if name not in names:
            raise PlatformError(
                f"there is no device {name!r} here; valid: "
                f"{', '.join(names) or f'{self.plugin.name} without a number, as devices() lists none'}",
                found=name,
                valid=tuple(names),
            )
        return names[name]

    def _blamed(self, work: Callable[[], T]) -> T:
        """Runs the plugin's code; converts its exceptions into an error that names the plugin."""
        try:
            return work()
        except HungError as error:
            self.record = self.plugin.hung(str(error), error.stack())
            raise self._failure(str(error), traceback=error.stack()) from error
        except BaseException as error:  # SystemExit too: a plugin must not end its host
            if is_interrupt(error, self._handlers):
                raise
            reason, traceback = described(error)
            self.record = self.plugin.failed(reason, traceback)
            raise self._failure(reason, traceback=traceback) from error

    def _timed(self, work: Callable[[], T], what: str) -> T:
        return self._limited(work, f"platform plugin {self.plugin.qualified_name}", what)

    def _failure(self, problem: str, **fields: Any) -> PlatformPluginError:
        plugin = self.plugin
        return PlatformPluginError(
            f"platform plugin {plugin.qualified_name} ({plugin.target}) failed: {one_line(problem)}; "
            f"{PLATFORM}=cpu skips it",
            plugin=plugin.qualified_name,
            **fields,
        )


def import_class(path: str) -> type[Platform]:
    """Imports the class of a platform, given as `module:Class`.

    Raises:
        PlatformError: There is no such class, or it is not a platform class; also the errors of
            `check_classes`.
    """
    module, _, name = path.partition(":")
    try:
        found: Any = attrgetter(name)(import_module(module))
    except (ImportError, AttributeError) as error:
        raise PlatformError(f"there is no class {path!r}: {error}", found=path) from error
    if not isinstance(found, type) or not issubclass(found, Platform):
        raise PlatformError(
            f"{path!r} is {found!r}; valid: a class derived from switchrail.Platform", found=path
        )
    check_classes(found, found.hardware_class, found.serving_class)
    return found


def check_classes(platform: type[Platform], hardware: Any, serving: Any) -> None:
    """Checks that a platform's class, and the classes of its parts, override their base classes correctly.

    Raises:
        PlatformError: A part has a wrong class, or a class doesn't match its base; the error lists all
            problems.
    """
    problems = [
        f"{platform.__qualname__}.{name} belongs to the serving part; valid: a method of serving_class"
        for name in vars(Serving)
        if hasattr(platform, name) and not hasattr(Platform, name)
    ]
    near: list[str] = []
    for name, cls, base in (
        ("platform", platform, Platform),
        ("hardware_class", hardware, Hardware),
        ("serving_class", serving, Serving),
    ):
        if not isinstance(cls, type) or not issubclass(cls, base):
            valid = f"{base.__module__}.{base.__qualname__}"
            problems.append(f"{name} is {cls!r:.80}; valid: a class derived from {valid}")
            continue
        for problem in check_overrides(cls, base):
            problems.append(problem.text)
            near += problem.nearest
    if problems:
        raise PlatformError(
            f"platform {platform.__module__}:{platform.__qualname__} doesn't fit its base: "
            + "; ".join(problems),
            found=f"{platform.__module__}:{platform.__qualname__}",
            problems=tuple(problems),
            nearest=tuple(near),
        )


def instance_of(cls: type[Platform], device: str | None) -> Platform:
    """Creates a platform of a class for a device; None means the current device.

    Raises:
        PlatformError: There is no such device, or the platform's kind is invalid.
    """
    platform = cls(device)
    check_platform(platform)
    return platform


def check_platform(platform: Platform) -> None:
    """Checks a platform's classes, and that its kind is in `KINDS` or starts with `oot:`.

    Raises:
        PlatformError: The kind is invalid; also the errors of `check_classes`.
    """
    check_classes(type(platform), type(platform.hardware), type(platform.serving))
    kind: Any = platform.kind
    is_own = isinstance(kind, str) and kind.startswith(OUT_OF_TREE) and kind != OUT_OF_TREE
    if kind not in KINDS and not is_own:
        raise PlatformError(
            f"{type(platform).__qualname__} is of kind {kind!r}; valid: {', '.join(KINDS)}, "
            f"{OUT_OF_TREE}NAME",
            found=kind,
            valid=(*KINDS, f"{OUT_OF_TREE}NAME"),
        )
