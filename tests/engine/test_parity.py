"""The engine compared with transformers' own eager forward, for any batching."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import switchrail
import switchrail_kernels
import torch
from switchrail.engine import Engine, Request, SamplingParams
from transformers import AutoModelForCausalLM

from tests.engine.around import around_backends

LENGTHS = (1, 2, 3, 7, 16, 33, 64, 65, 130, 257)
NEW_TOKENS = 12
LENGTHS_ON_CUDA = (*LENGTHS, 400, 600)
NEW_TOKENS_ON_CUDA = 64
LIMIT = 1e-4


@dataclass(frozen=True)
class Expected:
    """The result of transformers for one prompt: its greedy tokens, and all logits over prompt and tokens."""

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
        self.rows: dict[tuple[int, int], torch.Tensor] = {}  # by request id and position
        self.most_calls = 0  # the most calls of one (layer, op) in a step
        self.most_parts = 0
        self.steps = 0
        self._calls: Counter[tuple[Any, ...]] = Counter()
        sequences, model = engine._core.sequences, engine._runner.model
        forward, running = model.forward, engine._runner.running

        def record(*, logits_to_keep: torch.Tensor, position_ids: torch.Tensor, **kwargs: Any) -> Any:
            self._calls.clear()
            step = running.step
            requests: dict[int, Request] = {request.slot: request for request in sequences.live}
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
            self.most_parts = max(self.most_parts, len(step.parts))
            self.steps += 1
            return output

        def count(place: tuple[int, str], phase: str, run: Callable[[], Any]) -> Any:
            self._calls[place] += 1
            return run()

        model.forward = record
        around_backends(engine._runner.dispatcher, count)


def disturb(engine: Engine, seed: int) -> None:
    """Fill the pools with NaN and shuffle the free pages and slots."""
    for tensor in engine.pools.tensors():
        tensor.fill_(float("nan"))
    draw = random.Random(seed)
    draw.shuffle(engine.pools.pages._free)
    draw.shuffle(engine.pools.slots._free)


def compare(
    reference: Reference, recorder: Recorder, outputs: list[tuple[int, Any]]
) -> tuple[float, list[str]]:
    """Compare every row up to the first token that differs, which must be due to a tie between two logits.

    Returns:
        The largest difference, and descriptions of the ties.
    """
    worst = 0.0
    ties = []
    for case, (request, output) in zip(reference.cases, outputs, strict=True):
        length = len(case.prompt)
        same = next(
            (i for i, (a, b) in enumerate(zip(case.tokens, output.tokens, strict=True)) if a != b),
            len(case.tokens),
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
MODES = ("alone", "together", "chunks of 1", "chunks of 7", "chunks of 64")


def choices(backend: str) -> dict[str, str]:
    return dict.fromkeys(("attention", "gated_delta", "short_conv"), backend)


def options_of(mode: str) -> dict[str, Any]:
    """Options for eager steps without overlap, so that calls are counted and rows checked step by step."""
    chunk = int(mode.split()[-1]) if mode.startswith("chunks") else None
    return OPTIONS | {"prefill_chunk": chunk, "capture": "off", "overlap": False}


def check_parity(engine: Engine, reference: Reference, mode: str) -> None:
    """Run the reference's prompts; compare logits, tokens and the number of backend calls."""
    disturb(engine, seed=len(mode))
    recorder = Recorder(engine)
    new_tokens = len(reference.cases[0].tokens)
    params = SamplingParams(max_new_tokens=new_tokens, ignore_eos=True)
    prompts = [case.prompt for case in reference.cases]
    batches = [[prompt] for prompt in prompts] if mode == "alone" else [prompts]
    outputs = [output for batch in batches for output in engine.generate(batch, params)]
    worst, ties = compare(reference, recorder, list(enumerate(outputs)))
    print(f"{mode}: worst {worst:.2e} of {reference.bound:.2e}; {recorder.steps} steps; ties: {ties}")
    assert worst <= reference.bound
    assert recorder.most_calls == recorder.most_parts
    assert recorder.most_parts == (1 if mode == "alone" else 2)
    assert recorder.steps == engine.stats.steps
    assert engine.stats.prefill_tokens == sum(map(len, prompts))
    assert engine.stats.decode_tokens == len(prompts) * (new_tokens - 1)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("backend", ["reference", "torch"])
def test_parity(backend: str, mode: str, reference: Reference, make_engine: Callable[..., Engine]) -> None:
    if mode == "chunks of 1":  # longer prompts only repeat the same step
        reference = Reference([case for case in reference.cases if len(case.prompt) <= 65], reference.bound)
    check_parity(make_engine(backends=choices(backend), options=options_of(mode)), reference, mode)


def runtime_with_kernels() -> switchrail.Runtime:
    runtime = switchrail.Runtime()
    with runtime.transaction() as registry:
        switchrail_kernels.register(registry)
    return runtime


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU the kernels are compiled")
@pytest.mark.parametrize("mode", ["together", "chunks of 7"])
def test_parity_interpreted(mode: str, checkpoint: Path, make_engine: Callable[..., Engine]) -> None:
    reference = compute_reference(checkpoint, (1, 5, 18), 3, "cpu")
    engine = make_engine(
        runtime=runtime_with_kernels(),
        backends=choices("triton"),
        options=options_of(mode) | {"max_tokens_per_step": 12},
    )
    check_parity(engine, reference, mode)


@contextmanager
def without_tf32() -> Iterator[None]:
    """In the block, float32 products on CUDA are IEEE. (`monkeypatch` can't restore these settings of
    torch.)"""
    settings = (torch.backends.cudnn, torch.backends.cuda.matmul)
    before = [each.allow_tf32 for each in settings]
    try:
        for each in settings:
            each.allow_tf32 = False
        yield
    finally:
        for each, value in zip(settings, before, strict=True):
            each.allow_tf32 = value


@pytest.fixture
def ieee_products() -> Iterator[None]:
    with without_tf32():
        yield


@pytest.fixture(scope="module")
def reference_on_cuda(checkpoint: Path) -> Reference:
    with without_tf32():
        return compute_reference(checkpoint, LENGTHS_ON_CUDA, NEW_TOKENS_ON_CUDA, "cuda")


@pytest.mark.gpu
@pytest.mark.usefixtures("ieee_products")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("backend", ["triton", "torch"])
def test_parity_compiled(
    backend: str, mode: str, reference_on_cuda: Reference, make_engine: Callable[..., Engine]
) -> None:
    engine = make_engine(
        device="cuda", runtime=runtime_with_kernels(), backends=choices(backend), options=options_of(mode)
    )
    check_parity(engine, reference_on_cuda, mode)


def row_errors(found: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """For each row the norm of the difference, divided by the norm of the expected row."""
    return (found.float() - expected).norm(dim=-1) / expected.norm(dim=-1)


@pytest.mark.parametrize(
    ("device", "backend", "mode"),
    [
        ("cpu", "torch", "chunks of 64"),
        *(pytest.param("cuda", "triton", mode, marks=pytest.mark.gpu) for mode in MODES),
    ],
)
def test_parity_in_bfloat16(
    device: str,
    backend: str,
    mode: str,
    checkpoint: Path,
    make_engine: Callable[..., Engine],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    """In bfloat16, the engine is about as close to the float32 forward as transformers' bfloat16 forward.

    Both get the reference's tokens. Over all rows, the engine's mean relative error is at most 1.25 times
    that of transformers, and its 99th percentile is at most 1.5 times that of transformers.
    """
    reference = request.getfixturevalue("reference" if device == "cpu" else "reference_on_cuda")
    model = AutoModelForCausalLM.from_pretrained(
        checkpoint, dtype=torch.bfloat16, attn_implementation="eager"
    )
    model = model.eval().to(device)
    with torch.inference_mode():
        sequences = [torch.tensor([case.prompt + case.tokens], device=device) for case in reference.cases]
        theirs = torch.cat(
            [
                row_errors(model(sequence, use_cache=False).logits[0].cpu(), case.logits)
                for sequence, case in zip(sequences, reference.cases, strict=True)
            ]
        )

    def follow(logits: torch.Tensor, params: list[SamplingParams], draws: Any) -> torch.Tensor:
        return torch.tensor([fed[param.seed].pop(0) for param in params], device=logits.device)

    engine = make_engine(
        device=device,
        dtype="bfloat16",
        runtime=runtime_with_kernels(),
        backends=choices(backend),
        options=options_of(mode),
    )
    disturb(engine, seed=3)
    recorder = Recorder(engine)
    monkeypatch.setattr(engine._core, "_choose", follow)
    fed = [[*case.tokens, 0] for case in reference.cases]
    params = [
        SamplingParams(max_new_tokens=len(case.tokens) + 1, ignore_eos=True, seed=i)
        for i, case in enumerate(reference.cases)
    ]
    if mode == "alone":
        for case, param in zip(reference.cases, params, strict=True):
            engine.generate([case.prompt], param)
    else:
        engine.generate([case.prompt for case in reference.cases], params)
    ours = torch.cat(
        [
            row_errors(torch.stack([recorder.rows[i, row] for row in range(len(case.logits))]), case.logits)
            for i, case in enumerate(reference.cases)
        ]
    )
    print(
        f"{mode}: mean {ours.mean():.2e} ({theirs.mean():.2e}), worst {ours.max():.2e} ({theirs.max():.2e})"
    )
    assert len(ours) == len(theirs) == sum(len(case.prompt) + len(case.tokens) for case in reference.cases)
    assert ours.mean() <= 1.25 * theirs.mean()
    assert ours.quantile(0.99) <= 1.5 * theirs.quantile(0.99)
