"""The abi3 wheel can be installed and works on every CPython from 3.10 on that this machine has."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from email import message_from_bytes
from functools import cache
from pathlib import Path

import pytest

from tests.processes import Helper

ROOT = Path(__file__).parents[2]

# All tests of this file run in one process: two concurrent builds remove each other's files.


@cache
def candidates() -> dict[str, list[Path]]:
    """Files that are named like a CPython from 3.10 on, by version. None is run yet: a shim takes 0.1 s."""
    folders = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep)]
    folders += sorted((Path.home() / ".pyenv" / "versions").glob("*/bin"))
    found = {f"3.{sys.version_info.minor}": [Path(sys.executable)]}
    for folder in folders:
        for python in sorted(folder.glob("python3.*")):
            if (name := re.fullmatch(r"python(3\.\d\d+)", python.name)) is not None:
                found.setdefault(name[1], []).append(python)
    return found


def interpreter(version: str) -> Path:
    """The first file of this version that is a CPython."""
    probe = "import sys; print(sys.implementation.name, '{}.{}'.format(*sys.version_info))"
    for python in candidates()[version]:
        answer = subprocess.run([python, "-c", probe], capture_output=True, text=True)
        if answer.stdout.split() == ["cpython", version]:
            return python
    pytest.skip(f"no python{version} is a CPython that runs")


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheels")
    environment = os.environ | {"CARGO_TARGET_DIR": str(ROOT / "target" / "maturin")}
    command = [sys.executable, "-m", "maturin", "build", "--release", "--quiet", "--out", str(out)]
    subprocess.run(command, cwd=ROOT, env=environment, check=True)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which this interpreter's pip installed the wheel. All interpreters use it, since an abi3
    wheel is the same for all."""
    folder = tmp_path_factory.mktemp("site")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"]
    subprocess.run([*install, "--target", folder, wheel], check=True)
    return folder


def test_the_wheel_is_abi3(wheel: Path) -> None:
    assert "-cp310-abi3-" in wheel.name


def test_the_wheel_has_what_new_plugin_writes(wheel: Path) -> None:
    folder = "switchrail/cli/templates"
    templates = {file.name for file in (ROOT / "python" / folder).iterdir()}
    assert len(templates) > 5
    assert {f"{folder}/{name}" for name in templates} <= set(zipfile.ZipFile(wheel).namelist())


def test_the_wheel_has_licence_readme_and_types(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    names = archive.namelist()
    (metadata,) = [name for name in names if name.endswith(".dist-info/METADATA")]
    assert (ROOT / "README.md").read_bytes().rstrip() in archive.read(metadata)
    assert metadata.replace("METADATA", "licenses/LICENSE") in names
    assert "switchrail/py.typed" in names


def test_what_the_engine_needs_is_an_extra(wheel: Path) -> None:
    """The wheel without extras does not change another engine's torch and transformers."""
    archive = zipfile.ZipFile(wheel)
    (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    needed = message_from_bytes(archive.read(name)).get_all("Requires-Dist") or []
    own = [line for line in needed if "extra ==" not in line]
    assert any(line.startswith("pydantic") for line in own)
    assert not any(line.startswith(("torch", "transformers")) for line in own)
    extra = {re.split(r"[>=<]", line)[0] for line in needed if re.search(r"extra == .engine.", line)}
    assert extra == {"torch", "transformers"}


def test_the_readme_s_example_with_the_wheel_alone(processes: Helper, site: Path, tmp_path: Path) -> None:
    """The example runs outside the source tree, from which only the checkpoint is copied."""
    readme = (ROOT / "README.md").read_text("utf-8")
    ((program, printed),) = re.findall(r"```python\n(.*?)```\n+```text\n(.*?)```", readme, re.DOTALL)
    folder = tmp_path / "clone"
    shutil.copytree(ROOT / "tests" / "checkpoints", folder / "tests" / "checkpoints")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SWITCHRAIL_")}
    environment |= {"PYTHONPATH": str(site), "SWITCHRAIL_PLUGINS": ""}
    program += "import switchrail; print(switchrail.__file__, switchrail.__version__)\n"
    run = processes.run(program, cwd=folder, env=environment)
    assert run.returncode == 0, run.stderr
    *lines, where = run.stdout.splitlines()
    assert [line.rstrip() for line in lines] == printed.splitlines()
    assert where.startswith(str(site))


@pytest.mark.parametrize("version", sorted(candidates()))
def test_wheel_works_alone(site: Path, version: str) -> None:
    python = interpreter(version)
    run = subprocess.run(
        [python, "-S", str(Path(__file__).with_name("smoke.py"))],
        env={"PYTHONPATH": str(site), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith(f"wheel works on {version}.")
