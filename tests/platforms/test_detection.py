"""Detection of a device's built-in platform, and the operations of such platforms."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from switchrail import Platform, _core
from switchrail.errors import PlatformError
from switchrail.platforms import (
    KINDS,
    CpuArchitecture,
    CpuPlatform,
    CudaPlatform,
    DeviceCapability,
    Identity,
    cpu,
    cuda,
    described,
    detect,
)
from switchrail.platforms.driver import Gpu


@pytest.fixture
def no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "gpus", lambda toolkit: ())


@pytest.fixture
def two_cuda_devices(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Two simulated devices; `current` is the index of the current one, `major` their major capability."""
    state = SimpleNamespace(current=1, major=9, log=[])
    properties = lambda index: SimpleNamespace(  # noqa: E731
        name="Made Up 9000", major=state.major, minor=0, total_memory=1 << 37
    )

    def set_device(device: str) -> None:
        state.current = int(device.removeprefix("cuda:"))

    for name, value in {
        "is_available": lambda: True,
        "device_count": lambda: 2,
        "current_device": lambda: state.current,
        "set_device": set_device,
        "get_device_properties": properties,
        "get_device_name": lambda index: properties(index).name,
        "mem_get_info": lambda index: (5 << 30, 1 << 37),
        "synchronize": lambda device: state.log.append(("synchronize", device)),
        "empty_cache": lambda: state.log.append("empty_cache"),
        "manual_seed_all": lambda seed: state.log.append(("seed", seed)),
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.version, "cuda", "13.2")
    gpu = lambda: Gpu("Made Up 9000", DeviceCapability(state.major, 0), 1 << 37)  # noqa: E731
    monkeypatch.setattr(cuda, "gpus", lambda toolkit: (gpu(), gpu()))
    return state


def test_the_kinds_are_those_of_the_core() -> None:
    assert sorted(KINDS) == sorted(_core.DEVICES)
    assert KINDS[-1] == "cpu"


@pytest.mark.usefixtures("no_cuda")
def test_the_cpu_is_the_fallback() -> None:
    platform = detect()
    assert type(platform) is CpuPlatform
    assert (platform.kind, platform.device, platform.capability) == ("cpu", "cpu", None)
    assert platform.name
    assert platform == detect("cpu") == detect("cpu:0") == detect(torch.device("cpu"))
    assert platform != type("Own", (CpuPlatform,), {})()


def test_a_gpu_comes_first(two_cuda_devices: SimpleNamespace) -> None:
    platform = detect()
    assert platform == detect("cuda") == detect("cuda:1") == CudaPlatform()
    assert platform.identity == Identity(
        kind="cuda",
        name="Made Up 9000",
        device="cuda:1",
        capability=DeviceCapability(9, 0),
        total_memory=1 << 37,
        cpu_architecture=CpuArchitecture.of_host(),
        support_cuda_graph=True,
        support_piecewise_cuda_graph=True,
    )
    assert detect("cuda:0").device == "cuda:0"
    assert detect("cuda:0") != platform
    assert detect("cpu").kind == "cpu"


def test_operations_of_a_gpu(two_cuda_devices: SimpleNamespace) -> None:
    hardware = detect("cuda:0").hardware
    assert (hardware.total_memory(), hardware.current_memory_usage()) == (1 << 37, (1 << 37) - (5 << 30))
    assert hardware.distributed_backend() == "nccl"
    assert hardware.pin_memory_available()
    assert "bfloat16" in hardware.supported_dtypes()
    two_cuda_devices.major = 7
    assert "bfloat16" not in hardware.supported_dtypes()
    assert hardware.get_device() == "cuda:1"
    with hardware.active():
        assert (hardware.get_device(), two_cuda_devices.current) == ("cuda:0", 0)
    assert two_cuda_devices.current == 1
    with pytest.raises(KeyError), hardware.active():
        raise KeyError
    assert two_cuda_devices.current == 1
    hardware.synchronize()
    hardware.empty_cache()
    state = torch.get_rng_state()
    hardware.seed(7)
    torch.set_rng_state(state)
    assert two_cuda_devices.log[:3] == [("synchronize", "cuda:0"), "empty_cache", ("seed", 7)]


def test_operations_of_the_host() -> None:
    hardware = CpuPlatform().hardware
    assert hardware.total_memory() > 1 << 28
    assert 0 < hardware.current_memory_usage() < hardware.total_memory()
    assert hardware.get_device() == "cpu"
    hardware.set_device("cpu")
    with pytest.raises(PlatformError, match=r"valid: cpu$"):
        hardware.set_device("cuda:0")
    with hardware.active():
        hardware.synchronize()
        hardware.empty_cache()
    assert hardware.distributed_backend() == "gloo"
    assert not hardware.pin_memory_available()
    assert hardware.supported_dtypes() == ("float32", "float16", "bfloat16")
    state = torch.get_rng_state()
    hardware.seed(3)
    drawn = torch.rand(3)
    hardware.seed(3)
    assert torch.equal(torch.rand(3), drawn)
    torch.set_rng_state(state)


def test_the_hosts_memory_on_other_systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hardware = CpuPlatform().hardware
    monkeypatch.setattr(cpu, "_MEMINFO", tmp_path / "meminfo")
    assert 0 < hardware.current_memory_usage() < hardware.total_memory()
    monkeypatch.setattr(os, "sysconf_names", {})
    used = hardware.current_memory_usage()
    assert 1 << 24 < used < hardware.total_memory()
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:    3 kB\n")
    assert hardware.current_memory_usage() == hardware.total_memory() - 3 * 1024


@pytest.mark.parametrize(
    "device", ["cuda", "cuda:0", "rocm", "xpu", "xla:0", "tpu", "mps", "cpu:x", "meta", 3.5]
)
@pytest.mark.usefixtures("no_cuda")
def test_a_device_that_is_not_there(device: Any) -> None:
    with pytest.raises(PlatformError, match=r"valid: cpu$") as caught:
        detect(device)
    assert (caught.value.found, caught.value.valid) == (str(device), ("cpu",))  # type: ignore[attr-defined]


@pytest.mark.usefixtures("two_cuda_devices")
@pytest.mark.parametrize("make", [detect, CudaPlatform])
def test_a_gpu_that_is_not_there(make: Any) -> None:
    with pytest.raises(PlatformError, match=r"'cuda:2' here; .*cuda:0, cuda:1$"):
        make("cuda:2")


def test_amd_gpus_are_another_kind(
    two_cuda_devices: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "hip", "6.4")
    monkeypatch.setattr(torch.version, "cuda", None)
    platform = detect()
    assert (platform.kind, platform.device) == ("rocm", "cuda:1")
    assert platform == detect("rocm") == detect("rocm:1") == detect("cuda:1")
    assert platform.is_rocm()
    assert platform.is_cuda_alike()
    assert not platform.is_cuda()
    with pytest.raises(PlatformError, match="no device of this family"):
        CudaPlatform()


@pytest.mark.usefixtures("two_cuda_devices")
def test_pickles_are_small_and_need_no_device() -> None:
    platform = detect("cuda:1")
    identity = pickle.dumps(platform.identity)
    assert pickle.loads(pickle.dumps(platform)) == platform
    program = (
        "import pickle, sys; found = pickle.loads(sys.stdin.buffer.read());"
        "assert 'torch' not in sys.modules; print(found.kind, found.capability, found.name)"
    )
    done = subprocess.run([sys.executable, "-c", program], input=identity, capture_output=True, check=True)
    assert done.stdout.decode().strip() == "cuda 9.0 Made Up 9000"


def test_choosing_the_cpu_imports_no_torch() -> None:
    program = (
        "import os, sys; os.environ['SWITCHRAIL_PLATFORM'] = 'cpu'; import switchrail;"
        "platform = switchrail.current_platform; assert platform.is_cpu(), platform;"
        "platform.identity, platform.hardware.current_memory_usage();"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_platform_without_parts_is_unspecified() -> None:
    platform = Platform()
    assert platform.kind == "unspecified"
    assert platform.is_unspecified()


def test_a_device_that_is_described_need_not_be_here() -> None:
    platform = described("cuda:9.0")
    assert (platform.kind, platform.capability) == ("cuda", (9, 0))
    assert platform.identity.total_memory is None
    assert platform.hardware.supported_dtypes()[0] == "bfloat16"
    assert "bfloat16" not in described("cuda:7.5").hardware.supported_dtypes()
    assert platform.serving.engine_defaults()["page_size"] == 64
    assert described("npu").capability is None


@pytest.mark.parametrize("text", ["cuda", "cuda:9", "cuda:0", "cpu:1.0", "cudo:9.0", "", "cuda:9.0:1"])
def test_invalid_descriptions_are_refused(text: str) -> None:
    with pytest.raises(PlatformError, match=r"describes no device.*for example, cuda:9\.0"):
        described(text)


@pytest.mark.parametrize(
    ("text", "near"), [("cuda", "cuda:MAJOR.MINOR"), ("cudaa:9.0", "cuda:MAJOR.MINOR"), ("cpu:1.0", "cpu")]
)
def test_the_nearest_form_of_a_device_is_a_valid_one(text: str, near: str) -> None:
    with pytest.raises(PlatformError, match=f"nearest: {near}") as caught:
        described(text)
    assert caught.value.nearest[0] == near
