"""Chooses the platform of a runtime."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from switchrail.errors import PlatformError
from switchrail.forks import SingleFlight
from switchrail.nearest import unknown
from switchrail.platforms.accelerator import is_importable
from switchrail.platforms.builtin import KINDS, detect, is_builtin, no_such_device, platform_class
from switchrail.platforms.candidate import Candidate, check_platform, import_class, instance_of
from switchrail.platforms.platform import Platform
from switchrail.plugins import Plugin
from switchrail.plugins.choosing import Choosing
from switchrail.plugins.environment import PLATFORMS
from switchrail.staging import carried
from switchrail.variables import PLATFORM, blamed_on
from switchrail.waiting import within

if TYPE_CHECKING:
    import torch

T = TypeVar("T")


class PlatformChoice:
    """The platform of one runtime, chosen once, by the first thread that needs it.

    The platform set with `use` comes first, then the platform that `SWITCHRAIL_PLATFORM` names. Otherwise all
    installed platform plugins are called. If exactly one accepts, its platform is chosen. If several accept,
    an error is raised. If all decline, the first built-in kind with a device is chosen. After a failed choice
    the next call tries again. Requests for the same class and device get the same platform object.
    """

    def __init__(
        self, plugins: Callable[[], Sequence[Plugin]], seconds: Callable[[], float | None], choosing: Choosing
    ) -> None:
        """Stores the arguments without choosing a platform.

        Args:
            plugins: Returns the records of the installed platform plugins. Called without holding a lock.
            seconds: Returns the time limit for a plugin's import and function, in seconds; None means none.
            choosing: Records which threads are choosing the platform; the runtime's loader reads it.
        """
        self._plugins, self._seconds, self._choosing = plugins, seconds, choosing
        self._platform: Platform | None = None
        self._asked: str | None = None
        self._records: Mapping[str, Plugin] = {}
        self._made: dict[tuple[type[Platform], str], Platform] = {}
        self._flight = SingleFlight()

    @property
    def asked(self) -> str | None:
        """The name by which other processes can set the platform given to `use`; None before `use`."""
        return self._asked

    def record_of(self, plugin: Plugin) -> Plugin:
        """A platform plugin's record after the last choice. Other plugins' records are returned unchanged."""
        is_open = plugin.group == PLATFORMS and plugin.state == "discovered"
        return self._records.get(plugin.qualified_name, plugin) if is_open else plugin

    def get(self) -> Platform:
        """The chosen platform; chooses it if necessary.

        Raises:
            PlatformError: The requested platform does not exist or declines, or several plugins accept.
            PlatformPluginError: A plugin failed.
            PlatformReentryError: A plugin asked for the platform while the platform was being chosen.
        """
        if self._platform is not None:
            return self._platform
        found = self._choose(lambda name: detect(name or None))
        assert found is not None, "`detect` raises an error if it finds nothing"
        return found

    def ask_plugins(self) -> None:
        """Makes the choice among the platform plugins only, so that their records show the result.

        Does not look for devices of built-in kinds, which would import torch. Raises the errors of `get`.
        """
        self._choose(lambda name: None)

    def _choose(self, look: Callable[[str], Platform | None]) -> Platform | None:
        """Chooses the platform, once. None if no plugin is chosen and `look` returns None.

        Args:
            look: Returns the built-in platform of a name, or for an empty name the first one with a device.
                May return None to leave the platform unchosen.
        """
        name = os.environ.get(PLATFORM, "").strip()
        candidates = () if name in KINDS else self._candidates()

        def work() -> Platform | None:
            if self._platform is None:
                try:
                    with blamed_on(PLATFORM, PlatformError):
                        found = _active(name, candidates)
                        found = look(name) if found is None else found
                    self._platform = None if found is None else self._kept(found)
                finally:
                    self._keep_records(candidates)
            return self._platform

        return self._alone(work)

    def use(self, platform: Platform | str | torch.device) -> None:
        """Sets the platform. Same arguments and errors as `find`."""
        candidates = self._candidates_for(platform)

        def work() -> None:
            found = _find(platform, candidates)
            if found is platform:
                self._made[type(found), found.device] = found
            self._platform = self._kept(found)
            self._asked = _name_of(platform)
            self._keep_records(candidates)

        self._alone(work)

    def find(self, platform: Platform | str | torch.device) -> Platform:
        """Finds a platform without changing the choice.

        Args:
            platform: A platform; a built-in kind; torch's name of a device; the name of a platform plugin
                (`DISTRIBUTION:NAME` if two have the same name), optionally with a device number (`acme:1`);
                or the path of a class, `module:Class` or `module:Class:device`.

        Raises:
            PlatformError: There is no such platform or device, or the plugin declines.
            PlatformPluginError: The plugin failed.
            PlatformReentryError: A plugin asked for a platform while the platform was being chosen.
        """
        candidates = self._candidates_for(platform)

        def work() -> Platform:
            found = _find(platform, candidates)
            return found if found is platform else self._kept(found)

        return self._alone(work)

    def _candidates(self) -> Sequence[Candidate]:
        return [
            Candidate(plugin, self._records.get(plugin.qualified_name), self._limited)
            for plugin in self._plugins()
        ]

    def _candidates_for(self, platform: Platform | str | torch.device) -> Sequence[Candidate]:
        return () if isinstance(platform, Platform) or is_builtin(platform) else self._candidates()

    def _kept(self, platform: Platform) -> Platform:
        """The platform of the same class and device that was created first."""
        return self._made.setdefault((type(platform), platform.device), platform)

    def _keep_records(self, candidates: Sequence[Candidate]) -> None:
        self._records = {
            candidate.plugin.qualified_name: candidate.record
            for candidate in candidates
            if candidate.record is not candidate.plugin
        }

    def _alone(self, work: Callable[[], T]) -> T:
        self._choosing.refuse("asked for the platform")
        return self._flight.run(lambda: self._choosing.run(work))

    def _limited(self, work: Callable[[], T], name: str, what: str) -> T:
        """Runs a plugin's work with a time limit, in a thread that may not choose a platform itself."""
        return within(self._seconds(), carried(lambda: self._choosing.run(work)), name, what)


def _active(name: str, candidates: Sequence[Candidate]) -> Platform | None:
    """The platform of the plugin `name`; if `name` is empty, of the only plugin that accepts.

    None if `name` is a built-in kind, or if it is empty and no plugin accepts.
    """
    if name in KINDS:
        return None
    if name:
        candidate = _candidate_of(name, candidates)
        if candidate is not None:
            return _named(candidate)
        valid = (*KINDS, *_names(candidates))
        problem = f"{PLATFORM} is {name!r}, which is not a platform"
        raise unknown(PlatformError, problem, name, valid, found=name)
    active = [(candidate, path) for candidate in candidates if (path := candidate.ask()) is not None]
    if len(active) > 1:
        names = _names([candidate for candidate, _ in active])
        raise PlatformError(
            f"{len(active)} platforms are active: {', '.join(names)}; set {PLATFORM} to one of them, or call "
            "use_platform",
            found=names,
            valid=names,
        )
    return active[0][0].make(active[0][1]) if active else None


def _find(platform: Platform | str | torch.device, candidates: Sequence[Candidate]) -> Platform:
    if isinstance(platform, Platform):
        check_platform(platform)
        return platform
    text = str(platform)
    if is_builtin(text):
        return detect(text)
    name, _, index = text.rpartition(":")
    candidate = _candidate_of(text, candidates)
    if candidate is not None:
        return _named(candidate)
    if index.isdecimal() and (candidate := _candidate_of(name, candidates)) is not None:
        return _named(candidate, index)
    module, _, rest = text.partition(":")
    name, _, device = rest.partition(":")
    package = module.partition(".")[0]
    if name and package and (package in sys.modules or is_importable(package)):
        return instance_of(import_class(f"{module}:{name}"), device or None)
    raise no_such_device(text, _names(candidates))


def _candidate_of(name: str, candidates: Sequence[Candidate]) -> Candidate | None:
    found = [candidate for candidate in candidates if candidate.plugin.is_named(name)]
    if len(found) > 1:
        valid = _names(found)
        raise PlatformError(
            f"{len(found)} platforms have the name {name!r}; valid: {', '.join(valid)}",
            found=name,
            valid=valid,
        )
    return found[0] if found else None


def _names(candidates: Sequence[Candidate]) -> tuple[str, ...]:
    plugins = [candidate.plugin for candidate in candidates]
    names = [plugin.name for plugin in plugins]
    return tuple(plugin.qualified_name if names.count(plugin.name) > 1 else plugin.name for plugin in plugins)


def _name_of(platform: Platform | str | torch.device) -> str:
    if not isinstance(platform, Platform):
        return str(platform)
    cls = type(platform)
    if platform.kind in KINDS and cls is platform_class(platform.kind):
        return platform.device
    return f"{cls.__module__}:{cls.__qualname__}:{platform.device}"


def _named(candidate: Candidate, index: str = "") -> Platform:
    path = candidate.ask()
    if path is None:
        plugin = candidate.plugin
        raise PlatformError(
            f"platform {plugin.name!r} of {plugin.distribution} declines: it finds no device of its own here",
            found=plugin.name,
        )
    return candidate.make(path, index)
