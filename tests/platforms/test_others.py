"""Device families that were not tested on hardware. Stand-ins replace their packages or torch modules."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from switchrail.cli.show import platform_text
from switchrail.errors import NotProvidedError, PlatformError
from switchrail.platforms import CpuHardware, cuda, detect, others

from . import standins

PACKAGES = {"musa": "torch_musa", "npu": "torch_npu", "tpu": "torch_xla"}
TORCH_TYPES = {"musa": "musa", "npu": "npu", "tpu": "xla", "xpu": "xpu", "mps": "mps"}
CAPABILITIES = {"musa": (3, 1)}
GROUPS = {"musa": "mccl", "npu": "hccl", "tpu": "xla", "xpu": "xccl", "mps": "gloo"}
TOTAL = {"tpu": 16 << 30}
USED = {"tpu": 1 << 30}


@pytest.fixture
def bring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], list[Any]]]:
    """Returns a function that adds a family to torch, and returns the list that records its calls."""
    monkeypatch.setattr(cuda, "gpus", lambda toolkit: ())
    monkeypatch.syspath_prepend(str(tmp_path))

    def bring(kind: str) -> list[Any]:
        if kind in PACKAGES:
            standins.install(tmp_path, PACKAGES[kind])
            if kind == "tpu":
                import torch_xla.core.xla_model as model  # type: ignore[import-not-found]

                return model.log
            monkeypatch.setattr(torch, kind, None, raising=False)  # so that the import's change is undone
            return __import__(PACKAGES[kind]).state.log
        module, state = standins.mps() if kind == "mps" else standins.in_torch(kind)
        monkeypatch.setattr(torch, kind, module)
        if kind == "mps":
            monkeypatch.setattr(others, "_ON_MACOS", True)
            monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
        if kind == "xpu":
            monkeypatch.setattr(torch.version, "xpu", "20260101")
        return state.log

    yield bring
    for name in [name for name in sys.modules if name.split(".")[0] in PACKAGES.values()]:
        del sys.modules[name]


@pytest.mark.parametrize("kind", TORCH_TYPES)
def test_the_identity_and_operations_of_a_detected_device(
    kind: str, bring: Callable[[str], list[Any]]
) -> None:
    log = bring(kind)
    torch_type = TORCH_TYPES[kind]
    platform = detect()
    assert platform == detect(kind) == detect(f"{kind}:0") == detect(f"{torch_type}:0")
    identity = platform.identity
    assert (identity.kind, identity.device) == (kind, f"{torch_type}:0")
    assert identity.name
    assert identity.capability == CAPABILITIES.get(kind)
    assert getattr(platform, f"is_{kind}")()
    hardware = platform.hardware
    total = TOTAL.get(kind, 1 << 33)
    assert (hardware.total_memory(), hardware.current_memory_usage()) == (total, USED.get(kind, 5 << 30))
    assert hardware.distributed_backend() == GROUPS[kind]
    assert hardware.get_device() == platform.device
    assert "bfloat16" in hardware.supported_dtypes()
    assert hardware.pin_memory_available() is (kind in ("musa", "npu", "xpu"))
    hardware.synchronize()
    assert log[-1][0] == "synchronize"
    state = torch.get_rng_state()
    hardware.seed(11)
    torch.set_rng_state(state)
    if kind == "tpu":
        assert log[-1] == ("seed", 11, "xla:0")
        with pytest.raises(NotProvidedError, match=r"'tpu' .* does not provide 'empty_cache'"):
            hardware.empty_cache()
        with pytest.raises(NotProvidedError, match="'set_device'"):
            hardware.set_device("xla:1")
    else:
        if kind in ("xpu", "mps"):  # `torch.manual_seed` seeds these two as well
            assert log[-1] == ("seed", 11)
        hardware.empty_cache()
        assert log[-1] == ("empty_cache",)


@pytest.mark.parametrize("kind", ["musa", "npu", "xpu"])
def test_its_other_device(kind: str, bring: Callable[[str], list[Any]]) -> None:
    bring(kind)
    hardware = detect(f"{kind}:1").hardware
    assert hardware.name() == "Stand-in 1"
    with hardware.active():
        assert hardware.get_device() == f"{kind}:1"
    assert hardware.get_device() == f"{kind}:0"
    with pytest.raises(PlatformError, match=f"valid: cpu, {kind}:0, {kind}:1"):
        detect(f"{kind}:2")


def test_the_only_apple_device(bring: Callable[[str], list[Any]]) -> None:
    bring("mps")
    detect("mps").hardware.set_device("mps:0")
    with pytest.raises(PlatformError, match="valid: mps:0"):
        detect("mps").hardware.set_device("mps:1")


@pytest.mark.parametrize("kind", TORCH_TYPES)
def test_memory_that_is_not_reported(
    kind: str, bring: Callable[[str], list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a device doesn't report its memory, the size comes from another source or is None, never 0."""
    bring(kind)
    hardware = detect(kind).hardware
    if kind == "tpu":
        monkeypatch.setattr(hardware, "_memory", dict)
        assert (hardware.total_memory(), hardware.current_memory_usage()) == (None, None)
        monkeypatch.setattr(hardware, "_memory", lambda: {"bytes_limit": 0, "bytes_used": 0})
        assert (hardware.total_memory(), hardware.current_memory_usage()) == (None, 0)
        return
    module = getattr(torch, TORCH_TYPES[kind])
    if kind == "mps":
        monkeypatch.setattr(module, "recommended_max_memory", lambda: 0)
        assert hardware.total_memory() == CpuHardware().total_memory()
        return
    for properties in (SimpleNamespace(total_memory=0), SimpleNamespace()):
        monkeypatch.setattr(module, "get_device_properties", lambda index, found=properties: found)
        assert (hardware.total_memory(), hardware.current_memory_usage()) == (1 << 33, 5 << 30)
    monkeypatch.setattr(module, "mem_get_info", lambda index: (0, 0))
    assert (hardware.total_memory(), hardware.current_memory_usage()) == (None, None)
    assert detect(kind).identity.total_memory is None
    assert "memory unknown" in str(platform_text(detect(kind)))


def test_torch_xla_on_something_else(bring: Callable[[str], list[Any]]) -> None:
    bring("tpu")
    sys.modules["torch_xla.runtime"] = __import__("torch_xla.runtime").runtime
    sys.modules["torch_xla.runtime"].kind = "CPU"  # type: ignore[attr-defined]
    assert detect().kind == "cpu"


@pytest.mark.parametrize("kind", PACKAGES)
def test_a_package_that_is_broken_is_not_passed_over(
    kind: str, tmp_path: Path, bring: Callable[[str], list[Any]]
) -> None:
    package = tmp_path / PACKAGES[kind]
    package.mkdir()
    (package / "__init__.py").write_text("raise OSError('no driver')")
    with pytest.raises(PlatformError, match=f"{PACKAGES[kind]}.* importing it failed.*no driver") as caught:
        detect()
    assert isinstance(caught.value.__cause__, OSError)
    assert detect("cpu").is_cpu()
    with pytest.raises(PlatformError, match=r"valid: cpu$"):
        detect("meta")


def test_missing_packages_are_not_imported() -> None:
    program = (
        "import sys; from switchrail.platforms.others import MusaHardware, NpuHardware, TpuHardware;"
        "assert not (MusaHardware.devices() + NpuHardware.devices() + TpuHardware.devices());"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
