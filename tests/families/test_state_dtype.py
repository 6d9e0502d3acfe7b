"""Tests of the option `state_dtype`, which stores recurrent states in bfloat16."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import switchrail
import torch
from switchrail.engine import Engine
from switchrail.errors import BackendUnfitError, ConfigError
from switchrail.ops.kda.torch import TorchKda

from tests.families.conftest import OPTIONS, Family

Get = Callable[[str], Family]


@pytest.mark.parametrize("model_type", ["kimi_linear", "mamba2", "minimax", "qwen3_5_text"])
def test_states_are_rounded_and_nothing_else(model_type: str, family_of: Get) -> None:
    family = family_of(model_type)
    prompts = family.prompts((70,))
    (tokens, rows), *_ = family.run(prompts, 4)
    (others, rounded), *_ = family.run(prompts, 4, state_dtype="bfloat16")
    assert torch.equal(rows[:64], rounded[:64])  # the first chunk reads no state
    moved = (rows[64] - rounded[64]).abs().max().item()
    assert 1e-4 < moved < 0.5
    assert len(tokens) == len(others)


def test_pools_have_states_in_bfloat16_and_windows_in_float32(family_of: Get) -> None:
    options = {**OPTIONS, "state_dtype": "bfloat16"}
    runtime = switchrail.Runtime()
    with Engine(family_of("kimi_linear").path, runtime=runtime, device="cpu", options=options) as engine:
        assert {state.dtype for state in engine.pools.state.states.values()} == {torch.bfloat16}
        assert {window.dtype for window in engine.pools.state.windows.values()} == {torch.float32}


def test_a_backend_without_bfloat16_states_is_refused(family_of: Get) -> None:
    runtime = switchrail.Runtime()
    runtime.register("exact", TorchKda, op="kda", state_dtypes=("float32",), state_layouts=("VK",))
    options = {**OPTIONS, "state_dtype": "bfloat16"}
    with pytest.raises(BackendUnfitError, match="bfloat16"):
        Engine(
            family_of("kimi_linear").path,
            runtime=runtime,
            device="cpu",
            backends={"kda": "exact"},
            options=options,
        )


def test_other_dtypes_are_refused() -> None:
    with pytest.raises(ConfigError, match="'float32' or 'bfloat16'"):
        switchrail.EngineOptions(state_dtype="float16")  # type: ignore[arg-type]
