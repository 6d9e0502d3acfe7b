"""Checks installed distributions: metadata, shadowed copies, entry-point groups, plugin names, versions."""

from __future__ import annotations

import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from switchrail import _core
from switchrail.doctor.finding import Finding
from switchrail.nearest import nearest
from switchrail.plugins.environment import PLATFORMS
from switchrail.plugins.loader import GROUP
from switchrail.runtime import Runtime

CORE, KERNELS = "switchrail", "switchrail-kernels"
GROUPS = (GROUP, PLATFORMS)

_AGAIN = "reinstall the distribution; if pip can't, remove it by hand"
_ADVICE = {
    "broken": _AGAIN,
    "same_name": _AGAIN,
    "left_over": "remove this folder by hand: an interrupted installation left it",
}


def check_distributions(runtime: Runtime) -> Iterator[Finding]:
    """Reports problems of the installed distributions."""
    yield from _metadata()
    yield from _copies()
    yield from _groups()
    yield from _names(runtime)
    yield from _versions(runtime)


def _metadata() -> Iterator[Finding]:
    for path, code, problem in _core.discover(_folders(), thorough=True).problems:
        yield Finding("metadata", path, problem, _ADVICE[code])


def _copies() -> Iterator[Finding]:
    """Reports copies of Switchrail and of plugins that a copy in an earlier folder of sys.path hides."""
    copies: dict[str, list[tuple[str, str]]] = defaultdict(list)
    ours = {CORE, KERNELS}
    for folder in _folders():
        found = _core.discover([folder])
        for name, version in found.packages.items():
            copies[name].append((folder, version))
            if any(plugin.is_of(name) for plugin in found.plugins):
                ours.add(name)
    for name in sorted(ours & copies.keys()):
        first, *hidden = copies[name]
        for folder, version in hidden:
            if _is_source_of(name, first[0], folder) or _is_source_of(name, folder, first[0]):
                continue
            yield Finding(
                "copies",
                name,
                f"{version} in {folder} is hidden by {first[1]} in {first[0] or os.getcwd()}",
                f"remove one of the two: `pip uninstall {name}` in its environment, or remove its folder "
                "from PYTHONPATH",
            )


def _is_source_of(name: str, source: str, folder: str) -> bool:
    """Whether `source` is in the source tree of the editable installation in `folder`.

    If so, the metadata in `source` comes from building, and is not a second copy.
    """
    for distribution in metadata.distributions(name=name, path=[folder]):
        origin = json.loads(distribution.read_text("direct_url.json") or "{}")
        if origin.get("dir_info", {}).get("editable"):
            tree = Path(url2pathname(urlsplit(origin["url"]).path)).resolve()
            return Path(source).resolve().is_relative_to(tree)
    return False


def _groups() -> Iterator[Finding]:
    """Reports entry points in groups that begin with `switchrail` but that Switchrail doesn't read."""
    unread: set[tuple[str, str, str]] = set()
    for distribution in metadata.distributions():
        try:
            unread.update(
                (distribution.name, point.name, point.group)  # reading the name parses all metadata
                for point in distribution.entry_points
                if point.group.partition(".")[0] == CORE and point.group not in GROUPS
            )
        except Exception:  # another check reports unreadable metadata
            continue
    for owner, name, group in sorted(unread, key=str):
        valid = {known.removeprefix(f"{CORE}."): known for known in GROUPS}
        close, _ = nearest(group.removeprefix(f"{CORE}."), tuple(valid))
        names = [valid[name] for name in close] or GROUPS
        yield Finding(
            "groups",
            f"{owner}:{name}",
            f"it is an entry point in {group}, which Switchrail doesn't read",
            f"rename the group to {' or '.join(names)}, and install {owner} again",
        )


def _names(runtime: Runtime) -> Iterator[Finding]:
    owners: dict[tuple[str, str], list[str]] = defaultdict(list)
    for plugin in runtime.plugins:
        owners[plugin.group, plugin.name].append(plugin.distribution)
    for (_, name), distributions in owners.items():
        if len(set(distributions)) > 1:
            names = " and ".join(f"{distribution}:{name}" for distribution in distributions)
            yield Finding(
                "names",
                name,
                f"{len(distributions)} distributions have a plugin of this name: {', '.join(distributions)}",
                f"write {names} to distinguish them, or uninstall one",
            )


def _versions(runtime: Runtime) -> Iterator[Finding]:
    packages = runtime._loader.installed().packages
    core = _core.fingerprint(_core.Runtime(), [], [], []).inputs["switchrail"]
    for name, found in ((CORE, packages.get(CORE)), (KERNELS, packages.get(KERNELS))):
        if found is not None and found != core:
            what = "its metadata names version" if name == CORE else "the installed version is"
            yield Finding(
                "versions",
                name,
                f"{what} {found}, but the running Switchrail is {core}",
                f"pip install {name}=={core}" if name == KERNELS else f"install {name} again",
            )


def _folders() -> list[str]:
    """The folders of sys.path, without duplicates."""
    places = {os.path.realpath(path or "."): path for path in reversed(sys.path) if isinstance(path, str)}
    return list(reversed(places.values()))
