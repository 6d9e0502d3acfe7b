"""Locks of distributions that pip installed as wheels or editable, and the effect of later changes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import switchrail
from switchrail import _core
from switchrail.errors import LockError, PluginError
from switchrail.lock import Lock, lock_differences, write_lock

PYPROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "locked-plugin"
version = "{version}"

[project.scripts]
locked-plugin = "locked_plugin:register"

[project.entry-points."switchrail.plugins"]
locked = "locked_plugin:register"

[tool.setuptools.package-data]
locked_plugin = ["*.json"]
"""
MODULE = "import locked_plugin.table\n\ndef register(registry): ...\n"
MODES = {
    "wheel": ("src", ["."]),
    "editable by .pth": ("src", ["--editable", "."]),
    "editable by finder": (".", ["--editable", "."]),
    "editable by links": ("src", ["--config-settings", "editable_mode=strict", "--editable", "."]),
}


def make_project(project: Path, layout: str, version: str = "1.0") -> Path:
    package = project / layout / "locked_plugin"
    package.mkdir(parents=True, exist_ok=True)
    (project / "pyproject.toml").write_text(PYPROJECT.format(version=version))
    (package / "__init__.py").write_text(MODULE)
    (package / "table.py").write_text("rows = 1\n")
    (package / "sizes.json").write_text("[1]\n")
    return package


def install(project: Path, site: Path, how: list[str]) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--upgrade"]
    command = [*pip, "--no-deps", "--no-build-isolation", "--target", str(site), *how]
    subprocess.run(command, cwd=project, check=True, capture_output=True)


@pytest.fixture(scope="module", params=list(MODES))
def installed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    layout, how = MODES[request.param]
    root = tmp_path_factory.mktemp("installed")
    package, site = make_project(root / "project", layout), root / "site"
    install(root / "project", site, how)
    return site, site / "locked_plugin" if request.param == "wheel" else package


@pytest.fixture
def plugin(installed: tuple[Path, Path], tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """The folder into which pip installed the plugin, and the package's folder, whose changes are undone."""
    _, package = installed
    shutil.copytree(package, tmp_path / "before")
    yield installed
    for path in package.iterdir():
        if path.is_file() and not (tmp_path / "before" / path.name).exists():
            path.unlink()
    shutil.copytree(tmp_path / "before", package, dirs_exist_ok=True)


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By version, a site folder in which the plugin is installed as a wheel."""
    sites = {version: tmp_path_factory.mktemp("wheels") / "site" for version in ("1.0", "1.1")}
    for version, site in sites.items():
        make_project(site.parent / "project", "src", version)
        install(site.parent / "project", site, ["."])
    return sites


@pytest.fixture
def site(wheels: dict[str, Path], tmp_path: Path) -> Path:
    """A copy of the site folder with version 1.0 as a wheel."""
    return Path(shutil.copytree(wheels["1.0"], tmp_path / "site"))


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "locked_plugin"]:
        del sys.modules[name]


def locked(site: Path) -> Lock:
    return Lock.of(_core.discover([site]))


def told(lock: Lock, site: Path) -> list[str]:
    return [str(difference) for difference in lock.differences(_core.discover([site]))]


def load(
    site: Path, lock: Path, monkeypatch: pytest.MonkeyPatch, *, strict: bool = False
) -> list[_core.Plugin]:
    monkeypatch.setenv("SWITCHRAIL_LOCK", str(lock))
    monkeypatch.syspath_prepend(site)
    runtime = switchrail.Runtime()
    runtime.discover([site])
    return list(runtime.load(strict=strict))


def test_one_byte_of_any_file_is_noticed(plugin: tuple[Path, Path]) -> None:
    site, package = plugin
    lock = locked(site)
    (distribution,) = lock.to_dict()["distributions"]
    assert {"locked_plugin/__init__.py", "locked_plugin/table.py", "locked_plugin/sizes.json"} <= set(
        distribution["files"]
    )
    assert told(lock, site) == []
    for name in ("table.py", "sizes.json"):
        before = (package / name).read_bytes()
        (package / name).write_bytes(bytes([before[0] ^ 1]) + before[1:])
        assert told(lock, site) == [
            f"locked-plugin differs from the lock: files changed: locked_plugin/{name}"
        ]
        (package / name).write_bytes(before)
    assert told(lock, site) == []


def test_an_added_file_is_noticed_if_it_can_be_imported(plugin: tuple[Path, Path]) -> None:
    site, package = plugin
    lock = locked(site)
    (package / "helper.py").write_text("")
    environment = os.environ | {"PYTHONPATH": str(site)}
    code = f"import site; site.addsitedir({str(site)!r}); import locked_plugin.helper"
    imported = (
        subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True).returncode == 0
    )
    added = ["locked-plugin differs from the lock: files added: locked_plugin/helper.py"]
    assert told(lock, site) == (added if imported else [])


def test_scripts_and_compiled_files_do_not_count(site: Path) -> None:
    lock = locked(site)
    (script,) = (site / "bin").iterdir()
    script.write_text("#!/opt/python\n")
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(site)], check=True)
    assert list(site.rglob("*.pyc"))
    assert told(lock, site) == []


def test_locked_plugins_load(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lock").write_text(str(locked(site)))
    (plugin,) = load(site, tmp_path / "lock", monkeypatch, strict=True)
    assert plugin.state == "loaded"


def test_changed_plugins_are_refused_before_their_import(
    plugin: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, package = plugin
    (tmp_path / "lock").write_text(str(locked(site)))
    (package / "table.py").write_text("rows = 2\n")
    (refused,) = load(site, tmp_path / "lock", monkeypatch)
    reason = "locked-plugin differs from the lock: files changed: locked_plugin/table.py"
    assert (refused.state, refused.reason) == ("blocked", reason)
    assert "locked_plugin" not in sys.modules
    with pytest.raises(PluginError, match="files changed: locked_plugin/table"):
        load(site, tmp_path / "lock", monkeypatch, strict=True)
    assert "locked_plugin" not in sys.modules


def test_another_version_is_refused(
    wheels: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lock").write_text(str(locked(wheels["1.0"])))
    (refused,) = load(wheels["1.1"], tmp_path / "lock", monkeypatch)
    assert refused.state == "blocked"
    assert (refused.reason or "").startswith(
        "locked-plugin differs from the lock: version 1.1 instead of 1.0"
    )
    assert "locked_plugin" not in sys.modules


def test_added_plugins_are_refused(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lock").write_text(str(Lock.of(_core.discover([]))))
    (refused,) = load(site, tmp_path / "lock", monkeypatch)
    assert (refused.state, refused.reason) == ("blocked", "locked-plugin 1.0 is not in the lock")
    assert "locked_plugin" not in sys.modules


def test_missing_plugins_have_failed(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lock").write_text(str(locked(site)))
    (empty := tmp_path / "empty").mkdir()
    (missing,) = load(empty, tmp_path / "lock", monkeypatch)
    reason = "the lock has locked-plugin 1.0, which is not installed"
    assert (missing.qualified_name, missing.state, missing.reason) == (
        "locked-plugin:locked",
        "failed",
        reason,
    )
    with pytest.raises(PluginError, match="not installed"):
        load(empty, tmp_path / "lock", monkeypatch, strict=True)


@pytest.mark.parametrize("text", [None, "", "{}", '{"schema": 2, "distributions": []}'])
def test_an_invalid_lock_is_an_error(
    text: str | None, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if text is not None:
        (tmp_path / "lock").write_text(text)
    with pytest.raises(LockError) as raised:
        load(site, tmp_path / "lock", monkeypatch)
    assert raised.value.fields["path"] == str(tmp_path / "lock")
    assert "locked_plugin" not in sys.modules


def test_switchrail_itself_is_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = write_lock(tmp_path / "lock")
    assert "switchrail" in lock.distributions
    assert lock == Lock.read(tmp_path / "lock")
    host = next(found for found in lock.to_dict()["distributions"] if found["name"] == "switchrail")
    assert "switchrail/lock.py" in host["files"]
    assert any(name.startswith("switchrail/_core.") for name in host["files"])
    text = (tmp_path / "lock").read_text().replace('"version": "0.', '"version": "9.')
    (tmp_path / "lock").write_text(text)
    monkeypatch.setenv("SWITCHRAIL_LOCK", str(tmp_path / "lock"))
    with pytest.raises(LockError, match=r"switchrail differs from the lock: version 0\..* instead of 9\."):
        switchrail.Runtime().load()


@pytest.mark.parametrize("path", ["folder", "file/lock", "absent/lock", "", "/"])
def test_a_lock_that_cannot_be_written_leaves_nothing(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here := tmp_path / "here").mkdir()
    monkeypatch.chdir(here)
    Path("folder").mkdir()
    Path("file").write_text("")
    with pytest.raises(LockError, match="can't be written") as raised:
        write_lock(path)
    assert raised.value.fields["path"] == path
    assert {found.name for found in tmp_path.rglob("*")} == {"here", "folder", "file"}


def test_a_lock_is_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("lock")
    lock = write_lock(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert Lock.read(tmp_path / "lock") == lock


def test_differences_are_data(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lock").write_text(str(Lock.of(_core.discover([]))))
    monkeypatch.setattr(sys, "path", [str(site)])
    (difference,) = lock_differences(tmp_path / "lock")
    assert difference.to_dict() == {"kind": "added", "distribution": "locked-plugin", "version": "1.0"}
    assert _core.LockDifference.from_json(difference.to_json()) == difference
