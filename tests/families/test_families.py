"""Each family compared with transformers' own forward pass without a cache."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch

from tests.families.conftest import LIMIT, Family
from tests.families.made import CONFIGS

Get = Callable[[str], Family]

FORGOTTEN: dict[str, Callable[[Any], Iterable[torch.Tensor]]] = {
    "recurrent state": lambda pools: pools.state.states.values(),
    "convolution window": lambda pools: pools.state.windows.values(),
    "keys before a chunk": lambda pools: [one for pool in pools.kv.values() for one in pool.tensors()],
}


@pytest.mark.parametrize("model_type", CONFIGS)
def test_a_family_runs_and_its_past_matters(model_type: str, family_of: Get) -> None:
    """A batch of prompts of different lengths gives transformers' results. If states, windows or cached keys
    are erased before each step, the results change."""
    family = family_of(model_type)
    prompts = family.prompts((1, 2, 7, 33, 70))
    remembered = dict[str, bool]()

    def look(pools: Any) -> tuple[torch.Tensor, ...]:
        remembered.update({what: any(True for _ in find(pools)) for what, find in FORGOTTEN.items()})
        return ()

    runs = family.run(prompts, 16, between=look)
    family.check(prompts, runs)
    lost = dict.fromkeys(FORGOTTEN, 0.0)
    layers = family.model.config.num_hidden_layers
    for what, between in FORGOTTEN.items():
        if not remembered[what]:
            continue
        ((tokens, rows),) = family.run(prompts[-1:], 16, between=between)
        first = len(prompts[-1])  # the row of the first decode, computed without the past
        lost[what] = (rows[first] - runs[-1][1][first]).abs().max().item()
        assert lost[what] > 100 * LIMIT, what
        assert tokens != runs[-1][0], what
    print(f"{model_type} of {layers} layers: {lost}")
    assert any(lost.values())


@pytest.mark.families
@pytest.mark.parametrize("mode", ["alone", "together", "chunks of 1", "chunks of 7", "chunks of 64"])
@pytest.mark.parametrize("model_type", CONFIGS)
def test_long_prompts(model_type: str, mode: str, family_of: Get) -> None:
    family = family_of(model_type)
    prompts = family.prompts((1, 2, 21, 64, 65, 150, 300))
    chunk = int(mode.split()[-1]) if mode.startswith("chunks") else None
    runs = family.run(prompts, 64, alone=mode == "alone", prefill_chunk=chunk, max_tokens_per_step=700)
    family.check(prompts, runs)


@pytest.mark.families
@pytest.mark.parametrize("model_type", CONFIGS)
def test_the_reference_serves(model_type: str, family_of: Get) -> None:
    family = family_of(model_type)
    prompts = family.prompts((1, 5, 40))
    family.check(prompts, family.run(prompts, 8, backend="reference", prefill_chunk=7))


@pytest.mark.families
@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU the kernels are compiled")
@pytest.mark.parametrize("model_type", CONFIGS)
def test_interpreted_kernels_serve(model_type: str, family_of: Get) -> None:
    family = family_of(model_type)
    prompts = family.prompts((1, 5, 18))
    family.check(prompts, family.run(prompts, 3, backend="triton", prefill_chunk=7))
