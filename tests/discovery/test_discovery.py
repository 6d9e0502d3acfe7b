"""Discovery in Rust compared with `importlib.metadata` of every CPython here, on real and generated
metadata."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from switchrail import _core

OURS = "[switchrail.plugins]"


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def found(paths: list[str]) -> dict[str, Any]:
    """The results of discovery, in the form of the oracle's answer."""
    discovery = _core.discover(paths)
    entries = [
        [p.group, normalised(p.distribution), p.version, p.name, p.target, list(p.to_dict()["extras"])]
        for p in discovery.plugins
    ]
    return {"entries": sorted(entries, key=repr), "versions": dict(discovery.packages)}


def install(folder: Path, info: str, head: str, entry_points: str | bytes | None = None) -> Path:
    """Write a distribution's metadata as pip does."""
    path = folder / info
    path.mkdir(parents=True)
    kind = "METADATA" if info.lower().endswith(".dist-info") else "PKG-INFO"
    (path / kind).write_bytes(head.encode())
    if entry_points is not None:
        text = entry_points if isinstance(entry_points, bytes) else entry_points.encode()
        (path / "entry_points.txt").write_bytes(text)
    return path


def test_installed_distributions(oracles: dict[str, Any]) -> None:
    expected = oracles[f"3.{sys.version_info.minor}"].ask([path for path in sys.path if path])
    assert len(expected["versions"]) > 20
    assert found([path for path in sys.path if path]) == expected


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with over a hundred distributions: 60 generated ones, and the metadata of the installed ones.

    All entry points are moved to Switchrail's group.
    """
    root = tmp_path_factory.mktemp("environment")
    (site := root / "site").mkdir()
    for index in range(60):
        name = f"Made{'._-'[index % 3]}Up_{index}"
        text = f"{OURS}\nmade-{index} = made_{index}:register [fast]\n" if index % 2 else ""
        write_wheel(root / f"made_up_{index}-{index}.0-py3-none-any.whl", name, f"{index}.0", text)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]
    wheels = [str(wheel) for wheel in root.glob("*.whl")]
    subprocess.run([*pip, "--no-deps", "--no-compile", "--target", str(site), *wheels], check=True)
    for distribution in metadata.distributions():
        path = Path(str(distribution._path))  # type: ignore[attr-defined]
        if path.is_dir() and not (site / path.name).exists():
            names = ["METADATA", "PKG-INFO", "entry_points.txt", "top_level.txt", "RECORD", "direct_url.json"]
            (site / path.name).mkdir()
            for source in (path / name for name in names):
                if source.exists():
                    shutil.copy(source, site / path.name)
    for text in site.glob("*/entry_points.txt"):
        groups = r"^\[(?!switchrail)[^]]*\]"
        text.write_text(re.sub(groups, OURS, text.read_text("utf-8"), flags=re.M), "utf-8")
    return site


def write_wheel(file: Path, name: str, version: str, entry_points: str) -> None:
    info = f"{re.sub('[-_.]+', '_', name).lower()}-{version}.dist-info"
    texts = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nSummary: s\n\nBody\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: a test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
    }
    if entry_points:
        texts[f"{info}/entry_points.txt"] = entry_points
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, text in texts.items():
            archive.writestr(path, text)


def test_a_real_environment(environment: Path, oracles: dict[str, Any]) -> None:
    ours = found([str(environment)])
    assert len(ours["versions"]) >= 100
    assert len(ours["entries"]) > 50
    for version, oracle in oracles.items():
        assert oracle.ask([str(environment)]) == ours, version


def test_a_real_environment_as_an_archive(environment: Path, oracles: dict[str, Any], tmp_path: Path) -> None:
    archive = shutil.make_archive(str(tmp_path / "site"), "zip", environment)
    ours = found([archive])
    assert ours == found([str(environment)])
    for version, oracle in oracles.items():
        assert oracle.ask([archive]) == ours, version


_NAMES = st.sampled_from(
    ["acme", "Acme", "acme-gdn", "Acme_GDN", "acme.gdn", "b", "x--y", "X_.y", "numpy", "größe", "1st"]
)
_VERSIONS = st.sampled_from(["0", "1.0", "2.1.dev3+g12ab", "1!3.0rc1", "2024.1"])
_LINES = st.sampled_from(
    [
        OURS,
        "  [switchrail.platforms]\t",
        "[[switchrail.plugins]]",
        "[ switchrail.plugins ]",
        "[console_scripts]",
        "[]",
        "# acme = a:b",
        "",
        " \t ",
        "acme = acme.gdn:register",
        "Acme=acme:Register.now",
        "   spaced name   =   acme.gdn",
        "extra = acme.gdn : register [fast, big]",
        "brackets = a:b [x] [y]]",
        "module = acme",
        "größe = größe.ü:é",
        "; semicolon = a:b",
        "a:b = c:d",
        "extra_at_once = a:b[x]",
        "\u00a0margins\u3000=\x1fa:b\u2003",
        "equals = a = b",
        "= nameless:one",
    ]
)
_VALUES = st.text("ab.:[] =,\t_-1é²Ⅷ中\u0301", min_size=1, max_size=12).map(lambda value: f"v = {value}")
_ENDS = st.sampled_from(["\n", "\r\n", "\r", "\n\n", "\x0b", "\x0c", "\x1c", "\x85", "\u2028"])
_FOLDERS = st.sampled_from(
    ["{}-{}.dist-info", "{}-{}.egg-info", "{}-{}-py3.11.egg-info", "{}.egg-info", "{}-{}.DIST-INFO"]
)
_HEADS = st.sampled_from(
    [
        "Metadata-Version: 2.1\nName: {}\nVersion: {}\nSummary: a\n  folded\n\nName: body\n",
        "version: {1}\nNAME: {0}\nName: other\n",
        "Summary: a\n\tb: c\n d\nName: \t {}\nVersion:{}\n",
        "Name: {}\r\nVersion: {}\r\n\r\n",
        "Author: J\u00f6rg\nName: {}\nVersion: {}",
    ]
)


@st.composite
def _entry_points(draw: st.DrawFn) -> str | None:
    lines = draw(st.none() | st.lists(st.tuples(_LINES | _VALUES, _ENDS), max_size=8))
    start = draw(st.sampled_from(["", f"{OURS}\n", f"\ufeff{OURS}\n"]))
    return None if lines is None else start + "".join(line + end for line, end in lines)


# A place on the path: its name, whether it is an archive, and its metadata folders by name, each with the
# texts of its head and its entry points.
Site = tuple[str, bool, dict[str, tuple[str, "str | None"]]]


@st.composite
def _sites(draw: st.DrawFn) -> list[Site]:
    sites: list[Site] = []
    for _ in range(3):
        names = draw(st.lists(_NAMES, max_size=5, unique_by=normalised))
        infos: dict[str, tuple[str, str | None]] = {}
        place, egg = "site", len(names) == 1 and draw(st.booleans())
        for name in names:
            version = draw(_VERSIONS)
            info = draw(_FOLDERS).format(name.replace("-", "_"), version)
            if egg:
                place, info = f"{name.replace('-', '_')}-{version}-py3.11.egg", "EGG-INFO"
            infos[info] = (draw(_HEADS).format(name, version), draw(_entry_points()))
        sites.append((place, draw(st.booleans()), infos))
    return sites


def build(root: Path, sites: list[Site]) -> list[str]:
    """Write sites; return their paths, after one that does not exist."""
    paths = [str(root / "missing")]
    for index, (place, is_archive, infos) in enumerate(sites):
        site = root / str(index) / place
        site.mkdir(parents=True)
        for info, (head, text) in infos.items():
            install(site, info, head, text)
        if is_archive:
            archive = Path(shutil.make_archive(str(site), "zip", site))
            shutil.rmtree(site)
            archive.rename(site)
        paths.append(str(site))
    return paths


_SLOW = settings(max_examples=120, suppress_health_check=list(HealthCheck))


@_SLOW
@given(sites=_sites())
def test_generated_metadata(
    sites: list[Site], oracles: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    paths = build(tmp_path_factory.mktemp("sites"), sites)
    ours = found(paths)
    for version, oracle in oracles.items():
        assert oracle.ask(paths) == ours, version


_BROKEN: list[dict[str, bytes]] = [
    {"METADATA": b"Name: broken\nVersion: 1\n", "entry_points.txt": b"[switchrail.plugins]\nb = \xff:r\n"},
    {"METADATA": b"Name: broken\nVersion: 1\n", "entry_points.txt": b"[switchrail.plugins]\nhalf-writt"},
    {"METADATA": b"Metadata-Version: 2.1\nNam", "entry_points.txt": b"[switchrail.plugins]\nb = b:r\n"},
    {"METADATA": b"Name: br\xf6ken\nVersion: 1\n", "entry_points.txt": b"[switchrail.platforms]\nb = b:r\n"},
    {"METADATA": b"\xff\xfeN\0a\0m\0e\0", "entry_points.txt": b"\xff\xfe[\0s\0"},
    {"entry_points.txt": b"[switchrail.plugins]\nb = b:r\n"},
    {"entry_points.txt/a file": b""},
]


@settings(_SLOW, max_examples=40)
@given(
    sites=_sites(), broken=st.lists(st.sampled_from(_BROKEN), min_size=1, max_size=4), at=st.integers(0, 2)
)
def test_broken_metadata_hides_nothing(
    sites: list[Site],
    broken: list[dict[str, bytes]],
    at: int,
    oracles: dict[str, Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    root = tmp_path_factory.mktemp("sites")
    sites = [(place, False, infos) for place, _, infos in sites]
    paths = build(root, sites)
    expected = {version: oracle.ask(paths) for version, oracle in oracles.items()}
    infos = [Path(paths[at + 1]) / f"broken.{index}-1.dist-info" for index in range(len(broken))]
    for info, files in zip(infos, broken, strict=True):
        for name, contents in files.items():
            (info / name).parent.mkdir(parents=True, exist_ok=True)
            (info / name).write_bytes(contents)
    ours = found(paths)
    told = {str(path) for path, _, _ in _core.discover(paths).problems}
    assert all(any(path.startswith(str(info)) for path in told) for info in infos)
    ours["entries"] = [entry for entry in ours["entries"] if not entry[1].startswith("br")]
    ours["versions"] = {name: v for name, v in ours["versions"].items() if not name.startswith("broken")}
    for version, answer in expected.items():
        assert answer == ours, version


HEAD = "Name: acme\nVersion: 1.0\n"
DECLARED = f"{OURS}\nacme = acme:register\n"
ACME = ["switchrail.plugins", "acme", "1.0", "acme", "acme:register", []]

# By case: a distribution's folder, head and entry points; the entries that importlib.metadata finds, or None
# if it raises; the entries that discovery finds; and a part of the problem that discovery reports, or None.
# docs/discovery.md gives the reasons.
DIFFERENCES: dict[str, tuple[str, str, str | bytes, Any, Any, str | None]] = {
    "a line that is not an entry point": (
        *("acme-1.0.dist-info", HEAD, f"{DECLARED}nothing\n"),
        *(None, [ACME], '"nothing" under [switchrail.plugins]'),
    ),
    "such a line in another group": (
        *("acme-1.0.dist-info", HEAD, f"{DECLARED}[other]\nnothing\n"),
        *(None, [ACME], None),
    ),
    "entry points that are not UTF-8": (
        *("acme-1.0.dist-info", HEAD, f"{DECLARED}# \u00fc\n".encode("latin-1")),
        *(None, [ACME], "is not UTF-8"),
    ),
    "metadata without a name": (
        *("acme-1.0.dist-info", "Version: 1.0\n", DECLARED),
        *([[ACME[0], "", *ACME[2:]]], [ACME], "its metadata has no Name"),
    ),
    "metadata without a version": (
        *("acme-1.0.dist-info", "Name: acme\n", DECLARED),
        *([[*ACME[:2], None, *ACME[3:]]], [ACME], "its metadata has no Version"),
    ),
    "a byte order mark before the metadata": (
        *("acme-1.0.dist-info", f"\ufeff{HEAD}", DECLARED),
        *([[ACME[0], "", None, *ACME[3:]]], [ACME], None),
    ),
    "blanks after name and version": (
        *("acme-1.0.dist-info", "Name: acme  \nVersion: 1.0 \n", DECLARED),
        *([[ACME[0], "acme  ", "1.0 ", *ACME[3:]]], [ACME], None),
    ),
    "the rest of an interrupted installation": (
        *("~cme-1.0.dist-info", HEAD, DECLARED),
        *([ACME], [], "was left over by an interrupted installation"),
    ),
}


@pytest.mark.parametrize("case", list(DIFFERENCES))
def test_where_it_differs_from_importlib(case: str, oracles: dict[str, Any], tmp_path: Path) -> None:
    info, head, text, theirs, ours, problem = DIFFERENCES[case]
    install(tmp_path, info, head, text)
    for version, oracle in oracles.items():
        assert oracle.ask([str(tmp_path)]).get("entries") == theirs, version
    assert found([str(tmp_path)])["entries"] == ours
    told = [message for _, _, message in _core.discover([str(tmp_path)]).problems]
    assert any(problem in message for message in told) if problem else not told
    documented = (Path(__file__).parents[2] / "docs" / "discovery.md").read_text("utf-8")
    assert f"| {case} |" in documented


def test_of_two_in_one_folder_the_first_by_name_counts(tmp_path: Path, oracles: dict[str, Any]) -> None:
    """If a folder has two versions, discovery takes the first by name.

    importlib takes the one that the file system lists first.
    """
    for version in ("1.0", "2.0"):
        install(tmp_path, f"acme-{version}.dist-info", HEAD.replace("1.0", version), DECLARED)
    assert found([str(tmp_path)])["versions"] == {"acme": "1.0"}
    for version, oracle in oracles.items():
        assert oracle.ask([str(tmp_path)])["versions"]["acme"] in ("1.0", "2.0"), version
    ((path, _, message),) = _core.discover([str(tmp_path)]).problems
    assert path.endswith("acme-2.0.dist-info")
    assert "is ignored in favour of" in message


def test_of_two_plugins_with_one_qualified_name_the_second_fails(tmp_path: Path) -> None:
    install(tmp_path, "acme-1.0.dist-info", HEAD, f"{OURS}\nacme = acme:register\nzeta = acme:zeta\n")
    install(tmp_path, "fork-1.0.dist-info", HEAD, DECLARED)
    states = [(Path(p.path).name, p.name, p.state) for p in _core.discover([str(tmp_path)]).plugins]
    assert states == [
        ("acme-1.0.dist-info", "acme", "discovered"),
        ("acme-1.0.dist-info", "zeta", "discovered"),
        ("fork-1.0.dist-info", "acme", "failed"),
    ]


def test_an_installation_is_seen_at_once(tmp_path: Path) -> None:
    """Discovery finds a new distribution even if its folder's time of modification has not changed."""
    before = os.stat(tmp_path)
    for index in range(50):
        assert len(_core.discover([str(tmp_path)]).plugins) == index
        install(tmp_path, f"acme_{index}-1.0.dist-info", f"Name: acme-{index}\nVersion: 1\n", DECLARED)
        os.utime(tmp_path, ns=(before.st_atime_ns, before.st_mtime_ns))
    shutil.rmtree(tmp_path / "acme_0-1.0.dist-info")
    os.utime(tmp_path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert len(_core.discover([str(tmp_path)]).plugins) == 49
    left = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {"METADATA", "entry_points.txt"}
