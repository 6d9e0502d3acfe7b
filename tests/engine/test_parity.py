"""The engine against transformers' own eager forward, whatever the batching."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from switchrail.engine import Engine, Request, SamplingParams
from transformers import AutoModelForCausalLM

LENGTHS = (1, 2, 3, 7, 16, 33, 64, 65, 130, 257, 400, 600)
NEW_TOKENS = 64
LIMIT = 1e-4


@dataclass(frozen=True)
class Expected:
    """What transformers gives for one prompt: its greedy tokens, and all logits over prompt and tokens."""

    prompt: list[int]
    tokens: list[int]
    logits: torch.Tensor


@dataclass(frozen=True)
class Reference:
    cases: list[Expected]
    bound: float


def compute_reference(checkpoint: Path, lengths: tuple[int, ...], new_tokens: int, device: str) -> Reference:
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32, attn_implementation="eager")
    model = model.eval().to(device)
    draw = random.Random(0)
    cases = []
    noise = 0.0
    with torch.inference_mode():
        for length in lengths:
            prompt = [draw.randrange(model.config.vocab_size) for _ in range(length)]
            given = torch.tensor([prompt], device=device)
            steps = model.generate(
                given,
                attention_mask=torch.ones_like(given),
                max_new_tokens=new_tokens,
                min_new_tokens=new_tokens,
                do_sample=False,
                eos_token_id=None,
                return_dict_in_generate=True,
                output_logits=True,
            )
            logits = model(steps.sequences, use_cache=False).logits[0]
            cached = torch.cat(steps.logits)
            noise = max(noise, (cached - logits[length - 1 : -1]).abs().max().item())
            cases.append(Expected(prompt, steps.sequences[0, length:].tolist(), logits.cpu()))
    return Reference(cases, max(LIMIT, 2 * noise))


@pytest.fixture(scope="module")
def reference(checkpoint: Path) -> Reference:
    return compute_reference(checkpoint, LENGTHS, NEW_TOKENS, "cpu")


class Recorder:
    """Keeps the logits of every row that an engine runs, and counts its backend calls."""

    def __init__(self, engine: Engine) -> None:
        self.rows: dict[tuple[int, int], torch.Tensor] = {}  # (request id, position) -> logits
        self.most_calls = 0
        self.steps = 0
        self._calls: Counter[tuple[Any, ...]] = Counter()
        dispatcher, scheduler, model = engine._dispatcher, engine._scheduler, engine._model
        forward, lookup = model.forward, dispatcher._lookup

        def record(*, logits_to_keep: torch.Tensor, position_ids: torch.Tensor, **kwargs: Any) -> Any:
            self._calls.clear()
            step = dispatcher.step
            requests: dict[int, Request] = {r.slot: r for r in scheduler.prefilling + scheduler.decoding}
            output = forward(position_ids=position_ids, logits_to_keep=0, **kwargs)
            logits = output.logits[0].float().cpu()
            for row, (slot, position) in enumerate(
                zip(step.sequence_ids[0].tolist(), position_ids[0].tolist(), strict=True)
            ):
                key = (requests[slot].id, position)
                assert key not in self.rows, "a position was computed twice"
                self.rows[key] = logits[row]
            output.logits = output.logits[:, logits_to_keep]
            self.most_calls = max(self.most_calls, *self._calls.values())
            self.steps += 1
            return output

        def count(op: str, phase: str, layer: int) -> Callable[..., None]:
            self._calls[op, layer] += 1
            return lookup(op, phase, layer)

        model.forward = record
        dispatcher._lookup = count


def disturb(engine: Engine, seed: int) -> None:
    """Fills the pools with NaN and shuffles which pages and slots come next."""
    for tensor in engine.pools.tensors():
        tensor.fill_(float("nan"))
    draw = random.Random(seed)
    draw.shuffle(engine.pools.pages._free)
    draw.shuffle(engine.pools.slots._free)


def compare(reference: Reference, recorder: Recorder, outputs: list[tuple[int, Any]]) -> tuple[float, list[str]]:
    """Compares every row up to the first tie that went the other way.

    Returns:
        The largest difference, and the ties.
    """
    worst = 0.0
    ties = []
    for case, (request, output) in zip(reference.cases, outputs, strict=True):
        length = len(case.prompt)
        same = next(
            (i for i, (a, b) in enumerate(zip(case.tokens, output.tokens, strict=True)) if a != b), NEW_TOKENS
        )
        if same < len(case.tokens):
            first, second = case.logits[length + same - 1].topk(2).values.tolist()
            assert first - second < reference.bound, f"prompt of {length}: token {same} differs without a tie"
            ties.append(f"prompt of {length} tokens, new token {same}: {first - second:.2e} apart")
        rows = length + min(same, len(case.tokens) - 1)
        found = torch.stack([recorder.rows[request, position] for position in range(rows)])
        assert found.isfinite().all()
        worst = max(worst, (found - case.logits[:rows]).abs().max().item())
    return worst, ties


OPTIONS = {"max_sequences": 12, "num_pages": 600, "page_size": 8, "max_tokens_per_step": 512}


def run_case(engine: Engine, reference: Reference, mode: str) -> tuple[float, list[str], Recorder]:
    disturb(engine, seed=len(mode))
    recorder = Recorder(engine)
    params = SamplingParams(max_new_tokens=len(reference.cases[0].tokens), ignore_eos=True)
    prompts = [case.prompt for case in reference.cases]
    if mode == "alone":
        outputs = [(i, engine.generate([prompt], params)[0]) for i, prompt in enumerate(prompts)]
    else:
        outputs = list(enumerate(engine.generate(prompts, params)))
    worst, ties = compare(reference, recorder, outputs)
    return worst, ties, recorder


@pytest.fixture(params=["reference", "torch"])
def backend(request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    return {op: request.param for op in ("attention", "gated_delta", "short_conv")}


@pytest.mark.parametrize("mode", ["alone", "together", "chunks of 1", "chunks of 7", "chunks of 64"])
def test_parity(
    mode: str, backend: dict[str, str], reference: Reference, make_engine: Callable[..., Engine]
) -> None:
    chunk = int(mode.split()[-1]) if mode.startswith("chunks") else None
    engine = make_engine(backends=backend, options=OPTIONS | {"prefill_chunk": chunk})
    worst, ties, recorder = run_case(engine, reference, mode)
    print(f"{mode}: worst {worst:.2e} of {reference.bound:.2e}; {recorder.steps} steps; ties: {ties}")
    assert worst <= reference.bound
    assert recorder.most_calls == (1 if mode == "alone" else 2)
    assert recorder.steps == engine.stats.steps
    assert engine.stats.prefill_tokens == sum(LENGTHS)
    assert engine.stats.decode_tokens == len(LENGTHS) * (NEW_TOKENS - 1)
