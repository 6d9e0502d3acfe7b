"""Compiled layers on a GPU, with and without graphs, compared with eager layers in float32."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from switchrail.engine import Engine
from switchrail.platforms.cuda import CudaServing

from tests.engine.test_gpu import OPTIONS, make_params, make_prompts
from tests.engine.test_parity import runtime_with_kernels, without_tf32
from tests.leftovers import ROOT
from tests.processes import Helper

PROGRAM = """
import sys
from tests.engine.test_compiled_gpu import hold_to_eager
hold_to_eager(sys.argv[1], "cuda")
"""


@pytest.mark.gpu
def test_tokens_of_compiled_layers_are_those_of_eager_ones(checkpoint: Path, processes: Helper) -> None:
    """The check runs in a process of its own, because Inductor leaves modules and processes behind."""
    done = processes.run(PROGRAM, [checkpoint], env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr


def hold_to_eager(path: str, device: str) -> None:
    """Compare tokens with those of eager layers. Also compile layers for which the platform's functions are
    faster."""
    CudaServing.compiles = lambda *_, **__: True  # type: ignore[assignment, method-assign]
    prompts = make_prompts() * 2
    params = make_params(len(prompts))

    def run(**options: Any) -> list[Any]:
        runtime, options = runtime_with_kernels(), {**OPTIONS, **options}
        with Engine(path, runtime=runtime, device=device, dtype="float32", options=options) as engine:
            for tensor in engine.pools.tensors():
                tensor.fill_(float("nan"))
            found = [output.tokens for output in engine.generate(prompts, params)]
            assert {state.reason for state in (*engine.graphs, *engine.blocks)} <= {None}
            assert bool(engine.blocks) == ("compile" in options)
        return found

    with without_tf32():
        expected = run(capture="off")
        assert run(compile="blocks", capture="off") == expected
        assert run(compile="blocks") == expected
