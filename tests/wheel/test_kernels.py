"""The wheel of switchrail-kernels, built from the folder and from the source distribution."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KERNELS = ROOT / "kernels"


def build(source: Path, kind: str, out: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(out)]
    subprocess.run(command, cwd=source, check=True, capture_output=True, text=True)
    (built,) = out.iterdir()
    return built


@pytest.fixture(scope="module", params=["from the folder", "from the source distribution"])
def wheel(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    source = KERNELS
    if request.param == "from the source distribution":
        sdist = build(KERNELS, "sdist", tmp_path_factory.mktemp("sdist"))
        unpacked = tmp_path_factory.mktemp("unpacked")
        with tarfile.open(sdist) as archive:
            archive.extractall(unpacked, filter="data")
        (source,) = unpacked.iterdir()
    return zipfile.ZipFile(build(source, "wheel", tmp_path_factory.mktemp("wheel")))


@pytest.fixture
def metadata(wheel: zipfile.ZipFile) -> Message:
    (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    return message_from_bytes(wheel.read(name))


def test_every_file_of_the_package_is_there(wheel: zipfile.ZipFile) -> None:
    files = {
        path.relative_to(KERNELS).as_posix()
        for path in (KERNELS / "switchrail_kernels").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {"switchrail_kernels/py.typed", "switchrail_kernels/replay.c"} < files
    assert files == {name for name in wheel.namelist() if ".dist-info/" not in name}


def test_the_installed_wheel_is_the_one_that_registers(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    """A wheel that is unpacked into a folder on the path is discovered instead of an editable
    installation."""
    wheel.extractall(tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    script = (
        "import json, sys, switchrail; runtime = switchrail.Runtime(); runtime.discover(); runtime.load(); "
        "import switchrail_kernels; "
        "print(json.dumps([switchrail_kernels.__file__, "
        "[str(plugin.path) for plugin in runtime.plugins if plugin.distribution == 'switchrail-kernels'], "
        "sorted({backend.name for backend in runtime.backends()})]))"
    )
    found = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    file, plugins, backends = json.loads(found.stdout)
    assert Path(file).is_relative_to(tmp_path)
    assert len(plugins) == 1
    assert Path(plugins[0]).is_relative_to(tmp_path)
    assert "triton" in backends


def test_the_licence_is_there(wheel: zipfile.ZipFile, metadata: Message) -> None:
    (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/licenses/LICENSE")]
    assert wheel.read(name) == (ROOT / "LICENSE").read_bytes()
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["License-File"] == "LICENSE"


def test_the_readme_is_there(metadata: Message) -> None:
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_payload() == (KERNELS / "README.md").read_text("utf-8")


def test_torch_and_triton_fit_each_other(metadata: Message) -> None:
    """The required versions of torch and Triton match: torch 2.9 requires Triton 3.5, torch 2.10 requires
    3.6."""
    needed = metadata.get_all("Requires-Dist")
    assert needed is not None
    assert "torch>=2.10" in needed
    assert any(requirement.startswith("triton>=3.6;") for requirement in needed)
