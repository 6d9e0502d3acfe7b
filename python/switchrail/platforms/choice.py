"""Which platform a runtime runs on."""

from __future__ import annotations

import os
import re
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

from switchrail.errors import PlatformError, PlatformPluginError, PlatformReentryError
from switchrail.nearest import nearest
from switchrail.platforms.accelerator import is_importable
from switchrail.platforms.builtin import KINDS, detect, is_builtin, no_such_device
from switchrail.platforms.identity import OUT_OF_TREE
from switchrail.platforms.platform import Platform
from switchrail.plugins import PLATFORM, Plugin
from switchrail.plugins.entry_point import import_target

if TYPE_CHECKING:
    import torch

T = TypeVar("T")


class PlatformChoice:
    """The platform of one runtime: found when it is first asked for, once, by whichever thread comes first.

    What was asked for by name counts, by `use` before `SWITCHRAIL_PLATFORM`. Else the installed platform
    plugins are asked, and the one that does not decline serves; where several don't, that is an error. Where
    none is left, the first built-in kind of which a device is there serves. A choice that fails is not kept:
    who asks next tries again.
    """

    def __init__(self, plugins: Callable[[], Sequence[Plugin]]) -> None:
        """Chooses nothing yet.

        Args:
            plugins: Gives the records of the installed platform plugins; called without the choice's lock.
        """
        self._plugins = plugins
        self._platform: Platform | None = None
        self._asked: str | None = None
        self._lock = threading.Lock()
        self._choosing: int | None = None
        _choices.add(self)

    @property
    def asked(self) -> str | None:
        """What was asked for with `use`, as `use` takes it in another process; None: nothing was."""
        return self._asked

    def get(self) -> Platform:
        """The platform.

        Raises:
            PlatformError: The one asked for is not there or declines, or several plugins activate.
            PlatformPluginError: A plugin failed.
            PlatformReentryError: A plugin asked for the platform while it was asked itself.
        """
        if self._platform is not None:
            return self._platform
        name = os.environ.get(PLATFORM, "").strip()
        plugins = () if name in KINDS else self._plugins()

        def work() -> Platform:
            if self._platform is None:
                self._platform = _choose(name, plugins)
            return self._platform

        return self._alone(work)

    def use(self, platform: Platform | str | torch.device) -> None:
        """Makes another platform the one that counts; takes what `find` takes, and raises what it raises."""
        plugins = self._plugins_for(platform)

        def work() -> None:
            self._platform = _find(platform, plugins)
            self._asked = _name_of(platform)

        self._alone(work)

    def find(self, platform: Platform | str | torch.device) -> Platform:
        """A platform by what a user says; the choice stays as it is.

        Args:
            platform: A platform; a built-in kind; what torch calls a device; the name of a platform plugin,
                or `DISTRIBUTION:NAME` where two have one name; or the path of a class, `module:Class` or
                `module:Class:device`.

        Raises:
            PlatformError: There is no such platform or device, or the plugin declines.
            PlatformPluginError: The plugin failed.
            PlatformReentryError: A plugin asked for a platform while it was asked itself.
        """
        plugins = self._plugins_for(platform)
        return self._alone(lambda: _find(platform, plugins))

    def _plugins_for(self, platform: Platform | str | torch.device) -> Sequence[Plugin]:
        return () if isinstance(platform, Platform) or is_builtin(platform) else self._plugins()

    # No generator: an interrupt could come between one and the block of its `with`, and leave the lock taken.
    def _alone(self, work: Callable[[], T]) -> T:
        if self._choosing == threading.get_ident():
            raise PlatformReentryError("a platform plugin asked for the platform while it was asked itself")
        with self._lock:
            try:
                self._choosing = threading.get_ident()
                return work()
            finally:
                self._choosing = None

    def _reset(self) -> None:
        self._lock, self._choosing = threading.Lock(), None


_choices: weakref.WeakSet[PlatformChoice] = weakref.WeakSet()


def _reset_after_fork() -> None:
    for choice in _choices:
        choice._reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)


def _choose(name: str, plugins: Sequence[Plugin]) -> Platform:
    if name in KINDS:
        return detect(name)
    if name:
        plugin = _plugin_of(name, plugins)
        if plugin is not None:
            return _named(plugin)
        valid = (*KINDS, *_names(plugins))
        near, hint = nearest(name, valid)
        raise PlatformError(
            f"{PLATFORM} is {name!r}, which is no platform{hint}; valid: {', '.join(valid)}",
            found=name,
            valid=valid,
            nearest=near,
        )
    active = [(plugin, path) for plugin in plugins if (path := _ask(plugin)) is not None]
    if len(active) > 1:
        names = _names([plugin for plugin, _ in active])
        raise PlatformError(
            f"{len(active)} platforms are active: {', '.join(names)}; set {PLATFORM} to one of them, or call "
            "use_platform",
            found=names,
            valid=names,
        )
    return _make(*active[0]) if active else detect()


def _find(platform: Platform | str | torch.device, plugins: Sequence[Plugin]) -> Platform:
    if isinstance(platform, Platform):
        return platform
    text = str(platform)
    if is_builtin(text):
        return detect(text)
    plugin = _plugin_of(text, plugins)
    if plugin is not None:
        return _named(plugin)
    module, _, rest = text.partition(":")
    name, _, device = rest.partition(":")
    package = module.partition(".")[0]
    if name and package and is_importable(package):
        return _instance(_import_class(f"{module}:{name}"), device or None)
    raise no_such_device(text, _names(plugins))


def _plugin_of(name: str, plugins: Sequence[Plugin]) -> Plugin | None:
    distribution, _, own = name.rpartition(":")
    found = [
        plugin
        for plugin in plugins
        if plugin.name == own and _canonical(distribution) in ("", _canonical(plugin.distribution))
    ]
    if len(found) > 1:
        valid = _names(found)
        raise PlatformError(
            f"{len(found)} platforms have the name {name!r}; valid: {', '.join(valid)}",
            found=name,
            valid=valid,
        )
    return found[0] if found else None


def _canonical(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


def _names(plugins: Sequence[Plugin]) -> tuple[str, ...]:
    names = [plugin.name for plugin in plugins]
    return tuple(plugin.qualified_name if names.count(plugin.name) > 1 else plugin.name for plugin in plugins)


def _name_of(platform: Platform | str | torch.device) -> str:
    if not isinstance(platform, Platform):
        return str(platform)
    if not platform.is_out_of_tree():
        return platform.device
    cls = type(platform)
    return f"{cls.__module__}:{cls.__qualname__}:{platform.device}"


def _named(plugin: Plugin) -> Platform:
    path = _ask(plugin)
    if path is None:
        raise PlatformError(
            f"platform {plugin.name!r} of {plugin.distribution} declines: it finds no device of its own here",
            found=plugin.name,
        )
    return _make(plugin, path)


def _ask(plugin: Plugin) -> str | None:
    """The class path that a plugin's function returns."""
    if plugin.state != "discovered":
        raise _failure(plugin, f"{plugin.state}: {plugin.reason}")
    with _blamed(plugin):
        function = import_target(plugin)
        if isinstance(function, type) or not callable(function):
            raise TypeError(f"it is {function!r}; valid: a function without arguments")
        path = function()
        if path is not None and not (isinstance(path, str) and all(path.partition(":"))):
            raise TypeError(f"it returned {path!r}; valid: a class path 'module:Class', or None to decline")
        return path


def _make(plugin: Plugin, path: str) -> Platform:
    with _blamed(plugin):
        return _instance(_import_class(path))


def _import_class(path: str) -> type[Platform]:
    module, _, name = path.partition(":")
    try:
        found: Any = attrgetter(name)(import_module(module))
    except (ImportError, AttributeError) as error:
        raise PlatformError(f"there is no class {path!r}: {error}", found=path) from error
    if not isinstance(found, type) or not issubclass(found, Platform):
        raise PlatformError(
            f"{path!r} is {found!r}; valid: a class derived from switchrail.Platform", found=path
        )
    return found


def _instance(cls: type[Platform], device: str | None = None) -> Platform:
    platform = cls(device)
    kind = platform.kind
    if kind not in KINDS and not (kind.startswith(OUT_OF_TREE) and kind != OUT_OF_TREE):
        raise PlatformError(
            f"{cls.__qualname__} is of kind {kind!r}; valid: {', '.join(KINDS)}, {OUT_OF_TREE}NAME",
            found=kind,
            valid=(*KINDS, f"{OUT_OF_TREE}NAME"),
        )
    return platform


@contextmanager
def _blamed(plugin: Plugin) -> Iterator[None]:
    """Turns whatever a plugin's code raises into one error that says whose it is."""
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit too: a plugin does not end its host
        text = "".join(traceback.format_exception_only(error)).strip()
        raise _failure(plugin, text, traceback="".join(traceback.format_exception(error))) from error


def _failure(plugin: Plugin, problem: str, **fields: Any) -> PlatformPluginError:
    return PlatformPluginError(
        f"platform plugin {plugin.qualified_name} ({plugin.target}) failed: {problem}; {PLATFORM}=cpu does "
        "without it",
        plugin=plugin.qualified_name,
        **fields,
    )


__all__ = ["PlatformChoice"]
