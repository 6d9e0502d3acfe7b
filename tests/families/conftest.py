"""One checkpoint per family and session, and transformers' uncached results for it."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import switchrail
import switchrail_kernels
import torch
from switchrail.engine import Engine, SamplingParams
from switchrail.engine.checkpoint import read_config
from transformers import AutoModelForCausalLM

from tests.engine.conftest import pytest_runtest_setup
from tests.engine.test_parity import Recorder, disturb
from tests.families.made import make

__all__ = ["LIMIT", "Family", "family_of", "pytest_runtest_setup"]

LIMIT = 1e-4
OPTIONS: dict[str, Any] = {
    "max_sequences": 8,
    "num_pages": 600,
    "page_size": 8,
    "max_tokens_per_step": 128,
    "prefill_chunk": 64,
    "capture": "off",
    "overlap": False,
}

Run = tuple[list[int], torch.Tensor]
"""The new tokens of a prompt, and the logits of all its rows."""


@dataclass
class Family:
    """The checkpoint of a family, and the transformers model loaded from it."""

    model_type: str
    path: Path
    model: Any

    def prompts(self, lengths: Iterable[int]) -> list[list[int]]:
        draw = random.Random(0)
        return [[draw.randrange(256) for _ in range(length)] for length in lengths]

    def run(
        self,
        prompts: list[list[int]],
        new_tokens: int,
        *,
        backend: str = "torch",
        device: str = "cpu",
        dtype: str = "float32",
        alone: bool = False,
        between: Callable[[Any], Iterable[torch.Tensor]] | None = None,
        **options: Any,
    ) -> list[Run]:
        """Run prompts. Before each step, the pool tensors that `between` returns are set to zero."""
        with self.engine(backend, device, dtype, {**OPTIONS, **options}) as engine:
            disturb(engine, seed=1)
            recorder = Recorder(engine)
            params = SamplingParams(max_new_tokens=new_tokens, ignore_eos=True)
            requests = []
            for batch in [[prompt] for prompt in prompts] if alone else [prompts]:
                requests += [engine.submit(prompt, params) for prompt in batch]
                while engine.busy:
                    for tensor in between(engine.pools) if between else ():
                        tensor.zero_()
                    engine.step()
            assert recorder.most_calls == recorder.most_parts
            return [
                (
                    list(request.output.tokens),
                    torch.stack([recorder.rows[request.id, i] for i in range(len(prompt) + new_tokens - 1)]),
                )
                for request, prompt in zip(requests, prompts, strict=True)
            ]

    def engine(
        self, backend: str, device: str, dtype: str = "float32", options: dict[str, Any] = OPTIONS
    ) -> Engine:
        """An engine with one backend for all ops."""
        runtime = switchrail.Runtime()
        with runtime.transaction() as registry:
            switchrail_kernels.register(registry)
        return Engine(
            self.path,
            runtime=runtime,
            device=device,
            dtype=dtype,
            backends=self.choices(backend),
            options=options,
        )

    def choices(self, backend: str) -> dict[str, str]:
        layers = switchrail.Layout.from_config(self.path).layers
        return dict.fromkeys(sorted({op for layer in layers for op in layer.ops}), backend)

    def check(self, prompts: list[list[int]], runs: list[Run], device: str = "cpu") -> None:
        """Compare logits and greedy tokens with one uncached forward pass over each prompt and its new
        tokens.

        The bound is 1e-4, or twice the difference between transformers' own float32 and float64 passes.
        """
        sequences = [prompt + tokens[:-1] for prompt, (tokens, _) in zip(prompts, runs, strict=True)]
        expected = uncached(self.model.to(device), sequences, device)
        for prompt, (tokens, _), logits in zip(prompts, runs, expected, strict=True):
            assert logits[len(prompt) - 1 :].argmax(-1).tolist() == tokens
        worst, bound = distance([rows for _, rows in runs], expected), LIMIT
        if worst > bound:
            exact = uncached(copy.deepcopy(self.model).double(), sequences, device)
            bound = 2 * distance(expected, exact)
        print(f"{self.model_type}: worst {worst:.1e} of {bound:.1e}")
        assert worst <= bound


@torch.inference_mode()
def uncached(model: Any, sequences: list[list[int]], device: str) -> list[torch.Tensor]:
    """The logits of all rows of each sequence."""
    return [model(torch.tensor([one], device=device), use_cache=False).logits[0].cpu() for one in sequences]


def distance(first: list[torch.Tensor], second: list[torch.Tensor]) -> float:
    return max((a - b).abs().max().item() for a, b in zip(first, second, strict=True))


@pytest.fixture(scope="session")
def family_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Family]:
    found: dict[str, Family] = {}

    def get(model_type: str) -> Family:
        if model_type not in found:
            path = make(model_type, tmp_path_factory.mktemp(model_type))
            _, family = read_config(path)
            model = AutoModelForCausalLM.from_pretrained(
                path,
                config=family.config_class().from_pretrained(path),
                dtype=torch.float32,
                attn_implementation="eager",
            )
            found[model_type] = Family(model_type, path, model.eval())
        return found[model_type]

    return get
