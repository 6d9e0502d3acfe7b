"""Compiled layers on a GPU, captured and eager, compared with eager layers in float32."""

from __future__ import annotations

from typing import Any

import pytest
import torch._inductor.config
from switchrail.platforms.cuda import CudaServing

from tests.engine.test_gpu import Make, make_params, make_prompts, on_cuda
from tests.engine.test_parity import ieee_products

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("ieee_products")]

assert ieee_products


def test_tokens_of_compiled_layers_are_those_of_eager_ones(
    make_engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the platform's functions are faster, so that it leaves them eager."""
    monkeypatch.setattr(CudaServing, "compiles", lambda *_, **__: True)
    # otherwise torch's compiling processes would outlive the test
    monkeypatch.setattr(torch._inductor.config, "compile_threads", 1)
    prompts = make_prompts() * 2
    params = make_params(len(prompts))

    def run(**options: Any) -> list[Any]:
        engine = on_cuda(make_engine, **options)
        for tensor in engine.pools.tensors():
            tensor.fill_(float("nan"))
        found = [output.tokens for output in engine.generate(prompts, params)]
        assert {state.reason for state in (*engine.graphs, *engine.blocks)} <= {None}
        assert bool(engine.blocks) == ("compile" in options)
        return found

    expected = run(capture="off")
    assert run(compile="blocks", capture="off") == expected
    assert run(compile="blocks") == expected
