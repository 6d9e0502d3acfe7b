"""Reading NVIDIA's driver and torch's build without importing torch."""

from __future__ import annotations

import ctypes
import logging
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from switchrail.platforms import build, driver

NAMES = (b"NVIDIA One", b"NVIDIA Two")
ATTRIBUTES = {75: 9, 76: 0}


def set_number(pointer: Any, value: int) -> int:
    pointer._obj.value = value
    return 0


def library(**changed: Any) -> SimpleNamespace:
    """A driver with two devices; a function given as None is missing."""

    def name(buffer: Any, size: int, device: int) -> int:
        buffer.value = NAMES[device]
        return 0

    functions = {
        "cuInit": lambda flags: 0,
        "cuDriverGetVersion": lambda pointer: set_number(pointer, 13010),
        "cuDeviceGetCount": lambda pointer: set_number(pointer, 2),
        "cuDeviceGet": lambda pointer, index: set_number(pointer, index),
        "cuDeviceGetName": name,
        "cuDeviceTotalMem_v2": lambda pointer, device: set_number(pointer, (80 + device) << 30),
        "cuDeviceGetAttribute": lambda pointer, which, device: set_number(
            pointer, ATTRIBUTES[which] + device
        ),
    }
    functions.update(changed)
    return SimpleNamespace(**{name: function for name, function in functions.items() if function})


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns a function that makes `ctypes.CDLL` return a stand-in for the driver."""
    driver.gpus.cache_clear()

    def install(found: SimpleNamespace) -> None:
        monkeypatch.setattr(ctypes, "CDLL", lambda name: found)

    yield install
    driver.gpus.cache_clear()


def test_devices_are_as_the_driver_counts_them(installed: Any) -> None:
    installed(library())
    assert driver.gpus("13.2") == (
        driver.Gpu("NVIDIA One", driver.DeviceCapability(9, 0), 80 << 30),
        driver.Gpu("NVIDIA Two", driver.DeviceCapability(10, 1), 81 << 30),
    )


def test_no_driver_and_no_device_are_no_gpus(
    installed: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def missing(name: str) -> None:
        raise OSError(name)

    installed(library(cuInit=lambda flags: 100))
    assert driver.gpus("13.2") == ()
    driver.gpus.cache_clear()
    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert driver.gpus("13.2") == ()
    assert not caplog.records


@pytest.mark.parametrize(
    ("changed", "toolkit", "said"),
    [
        ({"cuInit": lambda flags: 803}, "13.2", "cuInit returned error 803"),
        ({"cuInit": None}, "13.2", "no GPU can be used: the driver is too old to have cuInit"),
        ({"cuDeviceTotalMem_v2": None}, "13.2", "the driver is too old to have cuDeviceTotalMem_v2"),
        (
            {"cuDriverGetVersion": lambda pointer: set_number(pointer, 12090)},
            "13.2",
            "built for CUDA 13.2, and the NVIDIA driver supports up to 12.9",
        ),
    ],
)
def test_an_unusable_driver_is_reported(
    installed: Any, caplog: pytest.LogCaptureFixture, changed: dict[str, Any], toolkit: str, said: str
) -> None:
    installed(library(**changed))
    with caplog.at_level(logging.WARNING, "switchrail"):
        assert driver.gpus(toolkit) == ()
    assert said in caplog.text


def test_torchs_build_is_read_without_importing_torch(tmp_path: Path) -> None:
    program = (
        "import sys; from switchrail.platforms.build import built_for;"
        "print(*(built_for(name) for name in ('cuda', 'hip', 'xpu')), 'torch' in sys.modules)"
    )

    def run(*path: str) -> list[str]:
        code = f"import sys; sys.path[:0] = {list(path)!r}; {program}"
        return subprocess.run(
            [sys.executable, "-c", code], capture_output=True, check=True, text=True
        ).stdout.split()

    here = [str(getattr(torch.version, name, None)) for name in ("cuda", "hip", "xpu")]
    assert run() == [*here, "False"]
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("raise SystemExit('imported')")
    (tmp_path / "torch/version.py").write_text("hip = '6.4'\ncuda: str | None = None\n")
    assert run(str(tmp_path)) == ["None", "6.4", "None", "False"]


def test_the_build_of_an_imported_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "7.0")
    assert build.built_for("hip") == "7.0"
    monkeypatch.setitem(sys.modules, "torch", None)  # makes importing torch fail
    assert build.built_for("hip") is None


@pytest.mark.gpu
def test_the_driver_and_torch_agree() -> None:
    toolkit = build.built_for("cuda")
    assert toolkit is not None
    found = driver.gpus(toolkit)
    assert len(found) == torch.cuda.device_count()
    for index, gpu in enumerate(found):
        properties = torch.cuda.get_device_properties(index)
        assert gpu == (properties.name, (properties.major, properties.minor), properties.total_memory)
