"""Fixtures that put stand-ins in place of the few classes of SGLang that the bridge uses."""

import sys
from pathlib import Path

import pytest
from switchrail.bridges import sglang as bridge
from switchrail.testing import isolated

STANDINS = Path(__file__).parent / "standins"
KERNELS = "tests.sglang_bridge.kernels"


@pytest.fixture
def sglang(monkeypatch):
    """Returns a function that puts the stand-ins of a version on `sys.path`."""

    def use(version):
        for part in ("common", version):
            monkeypatch.syspath_prepend(STANDINS / part)

    yield use
    # Some of the bridge's modules derive classes from stand-ins, so they are removed as well.
    for name in [
        name
        for name in sys.modules
        if name.split(".")[0] in ("sglang", "standin_conv", "standin_delta")
        or name.endswith((".sglang.full", ".sglang.latent", ".sglang.srt_platform"))
    ]:
        del sys.modules[name]


@pytest.fixture(params=["v23", "v11"])
def version(request):
    """The version of SGLang: 0.5.23 or 0.5.11."""
    return request.param


@pytest.fixture
def runtime(sglang, version):
    """A runtime with SGLang's stand-ins, further backends and the active bridge."""
    sglang(version)
    with isolated() as runtime:
        runtime.register(
            "plain", f"{KERNELS}:PlainGatedDelta", op="gated_delta", devices=("cpu",), state_layouts=("VK",)
        )
        for op, kind in (
            ("gated_delta", "RecordedGatedDelta"),
            ("short_conv", "RecordedConvolution"),
            ("attention", "RecordedAttention"),
        ):
            features = runtime.backend(op, "torch").capabilities["features"]
            runtime.register(
                "recorded",
                f"{KERNELS}:{kind}",
                op=op,
                priority=-50,
                phases=("prefill", "decode", "verify"),
                devices=("cpu",),
                features=features,
            )
        runtime.load()
        for op in ("gated_delta", "short_conv", "kda"):
            triton = runtime.backend(op, "triton")
            features = triton.capabilities["features"]
            runtime.register(
                "interpreted",
                triton.path,
                op=op,
                phases=("prefill", "decode", "verify"),
                devices=("cpu",),
                features=features,
                priority=-50,
            )
        bridge.activate()
        yield runtime
