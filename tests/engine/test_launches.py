"""How many kernels of `switchrail-kernels` are launched by the layers of a decode, and by a verification."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import switchrail
import torch
from switchrail import SamplingParams
from switchrail.engine import Engine
from switchrail.engine.verifications import Verifications
from switchrail.engine.verify_inputs import VerifyInputs
from switchrail.platforms import OPERATIONS, CpuPlatform
from torch.utils._python_dispatch import TorchDispatchMode

pytest.importorskip("triton")

import switchrail_kernels
from switchrail_kernels.launch import Launcher

from .test_graphs import GraphPlatform

MOST = {"linear_attn": 6, "self_attn": 5}
"""Maximum launches per mixer. After a mixer or feed-forward layer, a sum fused with a norm adds one."""


@pytest.fixture(scope="session")
def checkpoint(odd_checkpoint: Path) -> Path:
    return odd_checkpoint


class Launches(TorchDispatchMode):
    """Records operations that would be kernels on a GPU: all except views and allocations."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.found: list[str] = []
        self._within = False
        launch = Launcher.__call__

        def counted(launcher: Any, *args: Any, **kwargs: Any) -> None:
            self.found.append(launcher._kernel.__name__)
            self._within = True  # ignores the torch operations that Triton's interpreter runs
            try:
                launch(launcher, *args, **kwargs)
            finally:
                self._within = False

        monkeypatch.setattr(Launcher, "__call__", counted)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        name = function.__name__.partition(".")[0]
        if not self._within and (name.endswith("_") or not self._is_view(name, args, result)):
            self.found.append(name)
        return result

    @staticmethod
    def _is_view(name: str, args: Any, result: Any) -> bool:
        results = result if isinstance(result, (tuple, list)) else (result,)
        given = {x.untyped_storage().data_ptr() for x in args if isinstance(x, torch.Tensor)}
        return name.startswith(("empty", "new_empty")) or all(
            x.untyped_storage().data_ptr() in given for x in results if isinstance(x, torch.Tensor)
        )


def with_kernels(platform: CpuPlatform) -> CpuPlatform:
    """Register the kernels' functions for all operations that have one."""
    for name, path in switchrail_kernels.OPERATIONS.items():
        module, _, function = path.partition(":")
        assert name in OPERATIONS
        platform.serving.register_oot_forward(name, getattr(import_module(module), function))
    return platform


@pytest.mark.skipif(torch.cuda.is_available(), reason="counts in Triton's interpreter")
def test_a_decode_launches_few_kernels(
    make_engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    platform = with_kernels(CpuPlatform())
    runtime = switchrail.Runtime()
    runtime.load(["switchrail-kernels"])
    engine = make_engine(
        runtime=runtime,
        device=platform,
        backends={"attention": "triton", "gated_delta": "triton", "short_conv": "triton"},
    )
    launches = Launches(monkeypatch)
    spans: dict[tuple[int, str], tuple[int, int]] = {}

    def watch(part: Any, key: tuple[int, str]) -> None:
        began: list[int] = []
        part.register_forward_pre_hook(lambda *_: began.append(len(launches.found)))
        part.register_forward_hook(lambda *_: spans.update({key: (began.pop(), len(launches.found))}))

    for index, layer in enumerate(engine._runner.model.model.layers):
        for name in ("linear_attn", "self_attn", "mlp"):
            if hasattr(layer, name):
                watch(getattr(layer, name), (index, name))
    with launches:
        engine.generate([[7], [8, 9]], SamplingParams(max_new_tokens=2, ignore_eos=True))
    assert {name for _, name in spans} == {"linear_attn", "self_attn", "mlp"}
    for (_, name), (start, stop) in spans.items():
        assert stop - start <= MOST.get(name, len(launches.found)), launches.found[start:stop]
    for (_, stop), (start, _) in pairwise(sorted(spans.values())):
        assert start - stop == 1, launches.found[stop:start]


@pytest.mark.skipif(torch.cuda.is_available(), reason="counts in Triton's interpreter")
def test_a_captured_verification_launches_few_kernels(
    make_engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One kernel computes all inputs, and one accepts drafts, however many layers there are."""
    platform = with_kernels(GraphPlatform())
    runtime = switchrail.Runtime()
    runtime.load(["switchrail-kernels"])
    launches = Launches(monkeypatch)
    counted: dict[str, list[str]] = {}

    def count(owner: Any, method: str) -> None:
        run = getattr(owner, method)

        def counting(*given: Any) -> Any:
            began = len(launches.found)
            found = run(*given)
            counted[method] = launches.found[began:]
            return found

        monkeypatch.setattr(owner, method, counting)

    count(VerifyInputs, "derive")
    count(Verifications, "_keep")
    count(VerifyInputs, "fill")
    with launches:
        engine = make_engine(
            runtime=runtime,
            device=platform,
            backends={"attention": "triton", "gated_delta": "triton", "short_conv": "triton"},
            options={
                "draft": "ngram",
                "draft_tokens": 2,
                "max_sequences": 2,
                "max_length": 32,
                "capture": "decode",
            },
        )
    assert any(state.kind == "verify" and state.reason is None for state in engine.graphs)
    assert counted["fill"] == ["zeros", "copy_"], "expected a buffer on the host and one transfer"
    assert counted["derive"] == ["_derive"]
    layers = engine.plan.layout.layers
    states = sum("gated_delta" in layer.ops for layer in layers)
    assert states > 1
    assert counted["_keep"] == ["_accept", *["replay"] * states], (
        "only windows must be committed layer by layer"
    )
