"""Discovery in Rust against `importlib.metadata`, on what is installed here and on what is made up."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from switchrail import _core

GROUPS = ("switchrail.plugins", "switchrail.platforms")

# distribution, group, name, target
Entry = tuple[str, str, str, str]

# of each metadata folder, the text of its metadata and of its entry points
Site = dict[str, tuple[str, "str | None"]]


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _visible(paths: list[str]) -> Iterator[tuple[str, metadata.Distribution]]:
    seen = set()
    for distribution in metadata.distributions(path=paths):
        name = _normalised(distribution.metadata["Name"].strip())  # Python keeps blanks at the end
        if name not in seen:
            seen.add(name)
            yield name, distribution


def _expected(paths: list[str]) -> tuple[dict[str, str], list[Entry]]:
    versions, entries = {}, []
    for name, distribution in _visible(paths):
        versions[name] = distribution.version
        for entry in distribution.entry_points:
            if entry.group in GROUPS:
                target = f"{entry.module}:{entry.attr}" if entry.attr else entry.module
                entries.append((name, entry.group, entry.name, target))
    return versions, sorted(entries)


def _found(paths: list[str]) -> tuple[dict[str, str], list[Entry]]:
    found = _core.discover(paths)
    entries = [
        (_normalised(plugin.distribution), plugin.group, plugin.name, plugin.target)
        for plugin in found.plugins
    ]
    return dict(found.packages), sorted(entries)


def test_what_is_installed_here() -> None:
    expected = _expected(sys.path)
    assert len(expected[0]) > 20
    assert _found(sys.path) == expected


def test_the_entry_points_that_are_installed_here_under_our_group(tmp_path: Path) -> None:
    for name, distribution in _visible(sys.path):
        text = distribution.read_text("entry_points.txt")
        if text is not None:
            info = tmp_path / f"{name.replace('-', '_')}-{distribution.version}.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(distribution.read_text("METADATA") or "", encoding="utf-8")
            ours = re.sub(r"^\[(?!switchrail)[^]]*\]", "[switchrail.plugins]", text, flags=re.M)
            (info / "entry_points.txt").write_text(ours, encoding="utf-8")
    expected = _expected([str(tmp_path)])
    assert len(expected[1]) > 20
    assert _found([str(tmp_path)]) == expected


_NAMES = st.sampled_from(["acme", "Acme", "acme-gdn", "Acme_GDN", "acme.gdn", "b", "x--y", "X_.y", "numpy"])
_VERSIONS = st.sampled_from(["0", "1.0", "2.1.dev3+g12ab", "1!3.0rc1", "2024.1"])
_LINES = st.sampled_from(
    [
        "[switchrail.plugins]",
        "  [switchrail.platforms]\t",
        "[[switchrail.plugins]]",
        "[ switchrail.plugins ]",
        "[console_scripts]",
        "# acme = a:b",
        "",
        " \t ",
        "acme = acme.gdn:register",
        "Acme=acme:Register.now",
        "   spaced name   =   acme.gdn",
        "extra = acme.gdn : register [fast, big]",
        "module = acme",
        "größe = größe.ü:é",
        "; semicolon = a:b",
        "a:b = c:d",
        "extra_at_once = a:b[x]",
    ]
)
_ENDS = st.sampled_from(["\n", "\r\n", "\n\n", "\x0c", "\u2028"])
_INFOS = st.sampled_from(
    ["{}-{}.dist-info", "{}-{}.egg-info", "{}-{}-py3.11.egg-info", "{}.egg-info", "{}-{}.DIST-INFO"]
)
_HEADS = st.sampled_from(
    [
        "Metadata-Version: 2.1\nName: {}\nVersion: {}\nSummary: a\n  folded\n\nName: body\n",
        "version: {1}\nNAME: {0}\nName: other\n",
        "Summary: a\n\tb: c\n d\nName:   {}   \nVersion:{}\n",
        "Name: {}\r\nVersion: {}\r\n\r\n",
    ]
)


@st.composite
def _sites(draw: st.DrawFn) -> list[Site]:
    sites = []
    for _ in range(3):
        infos: Site = {}
        for name in draw(st.lists(_NAMES, max_size=5, unique_by=_normalised)):
            version = draw(_VERSIONS)
            lines = draw(st.none() | st.lists(st.tuples(_LINES, _ENDS), max_size=8))
            text = None if lines is None else "".join(line + end for line, end in lines)
            info = draw(_INFOS).format(name.replace("-", "_"), version)
            infos[info] = (draw(_HEADS).format(name, version), text)
        sites.append(infos)
    return sites


@settings(max_examples=150, deadline=None)
@given(sites=_sites())
def test_what_is_made_up(sites: list[Site], tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.mktemp("sites")
    paths = [str(root / "missing")]
    for index, infos in enumerate(sites):
        site = root / str(index)
        site.mkdir()
        paths.append(str(site))
        for info, (head, text) in infos.items():
            folder = site / info
            folder.mkdir()
            kind = "METADATA" if info.lower().endswith("dist-info") else "PKG-INFO"
            (folder / kind).write_bytes(head.encode())
            if text is not None:
                (folder / "entry_points.txt").write_bytes(text.encode())
    assert _found(paths) == _expected(paths)


def test_a_single_file_egg(tmp_path: Path) -> None:
    (tmp_path / "Old.Egg-0.1-py3.11.egg-info").write_text("Name: Old.Egg\nVersion: 0.1\n")
    expected = _expected([str(tmp_path)])
    assert expected == ({"old-egg": "0.1"}, [])
    assert _found([str(tmp_path)]) == expected


def test_a_broken_distribution_does_not_hide_the_others(tmp_path: Path) -> None:
    """`importlib.metadata` raises for all of them here."""
    for name, text in (("good", b"g = g:r\n"), ("bytes", b"b = \xff:r\n"), ("line", b"no sign\nl = l:r\n")):
        info = tmp_path / f"{name}-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Name: {name}\nVersion: 1\n")
        (info / "entry_points.txt").write_bytes(b"[switchrail.plugins]\n" + text)
    with pytest.raises((UnicodeDecodeError, TypeError)):
        _expected([str(tmp_path)])
    found = _core.discover([str(tmp_path)])
    assert {plugin.name: plugin.state for plugin in found.plugins} == {
        "b": "failed",
        "g": "discovered",
        "l": "discovered",
    }
    assert sorted(Path(path).parent.name for path, _ in found.problems) == [
        "bytes-1.dist-info",
        "line-1.dist-info",
    ]
