from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from switchrail import Platform, Runtime
from switchrail.errors import PlatformError


@pytest.fixture
def no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def two_cuda_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = SimpleNamespace(name="Made Up 9000", major=9, minor=0, total_memory=1 << 37)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)


@pytest.mark.usefixtures("no_cuda")
def test_the_cpu_is_what_is_left() -> None:
    platform = Platform.detect()
    assert (platform.kind, platform.device, platform.capability) == ("cpu", "cpu", None)
    assert platform.total_memory > 1 << 28
    assert platform.name
    assert platform == Platform.detect("cpu") == Platform.detect(torch.device("cpu"))
    assert pickle.loads(pickle.dumps(platform)) == platform


@pytest.mark.usefixtures("two_cuda_devices")
def test_a_gpu_comes_first() -> None:
    expected = Platform("cuda", "Made Up 9000", "cuda:1", (9, 0), 1 << 37)
    assert Platform.detect() == Platform.detect("cuda") == expected
    assert Platform.detect("cuda:0").device == "cuda:0"
    assert Platform.detect("cpu").kind == "cpu"


@pytest.mark.parametrize("device", ["cuda", "cuda:0", "xpu", "tpu", "cpu:x", "meta", 3.5])
@pytest.mark.usefixtures("no_cuda")
def test_a_device_that_is_not_there(device: Any) -> None:
    with pytest.raises(PlatformError, match=r"valid: cpu$") as caught:
        Platform.detect(device)
    assert (caught.value.found, caught.value.valid) == (str(device), ("cpu",))


@pytest.mark.usefixtures("two_cuda_devices")
def test_a_gpu_that_is_not_there() -> None:
    with pytest.raises(PlatformError, match="'cuda:2' here; valid: cpu, cuda:0, cuda:1"):
        Platform.detect("cuda:2")


@pytest.mark.usefixtures("two_cuda_devices")
def test_a_runtime_detects_its_platform_once_or_is_told(runtime: Runtime) -> None:
    assert runtime.platform is runtime.platform
    assert runtime.platform.device == "cuda:1"
    runtime.use_platform("cpu")
    assert runtime.platform.kind == "cpu"
    with pytest.raises(PlatformError):
        runtime.use_platform("cuda:9")
    assert runtime.platform.kind == "cpu"


@pytest.mark.usefixtures("two_cuda_devices")
def test_a_platform_brings_its_capability_along(runtime: Runtime) -> None:
    decision = runtime.resolve("gated_delta", "decode", device=runtime.platform, dtype=torch.bfloat16)
    assert decision.query["device"] == {"kind": "cuda", "capability": (9, 0)}
    assert decision.query["dtype"] == "bfloat16"
