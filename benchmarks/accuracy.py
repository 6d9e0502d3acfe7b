"""Compares the engine's tokens and probabilities with those of transformers, in all ways of running.

    python -m benchmarks.accuracy                     # the trained checkpoint, then a slice of Qwen3-Next
    python -m benchmarks.accuracy --prompts 50 --no-slice

*trained*: float32, 200 prompts of 1 to 600 tokens, 32 new ones each, greedy. Eager, captured, compiled and
    overlapped runs, with pools full of NaN, must give the same tokens as each other and as transformers'
    torch code. *slice*: 12 layers at real widths with random weights, where the two largest logits are often
    close. At the first different token, the two largest logits must be within 1e-4 in float64. *bfloat16*:
    the mean distance of the log-probabilities of prompt tokens from those in float32, for the engine and for
    transformers.
"""

from __future__ import annotations

import gc
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from switchrail.engine import Engine, SamplingParams
from torch.overrides import TorchFunctionMode
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.arguments import make_parser
from benchmarks.serving.slices import TINY, WIDTHS, make_checkpoint, make_prompts

TRAINED = Path(__file__).parent.parent / "tests/checkpoints/kjv-qwen3-next"
CLOSE = 1e-4
NEW_TOKENS = 32
WAYS: dict[str, dict[str, Any]] = {
    "eager": {"capture": "off", "overlap": False},
    "captured": {"overlap": False},
    "captured, overlapped": {},
    "compiled, captured, overlapped": {"compile": "blocks"},
}

Tokens = list[list[int]]


def trained_prompts(count: int, longest: int) -> Tokens:
    text = AutoTokenizer.from_pretrained(TRAINED)((TRAINED.parent / "held_out.txt").read_text()[:80_000])
    ids = text["input_ids"]
    draw = random.Random(0)
    lengths = [draw.randint(1, longest) for _ in range(count)]
    starts = [draw.randrange(len(ids) - length) for length in lengths]
    return [ids[start : start + length] for start, length in zip(starts, lengths, strict=True)]


def engine_tokens(folder: Path, device: str, prompts: Tokens, options: dict[str, Any]) -> Tokens:
    """The engine's tokens, with pools full of NaN."""
    sizes = {"max_sequences": 64, "max_length": max(map(len, prompts)) + NEW_TOKENS, **options}
    with Engine(folder, device=device, dtype="float32", options=sizes) as engine:
        for tensor in engine.pools.tensors():
            tensor.fill_(float("nan"))
        outputs = engine.generate(prompts, SamplingParams(max_new_tokens=NEW_TOKENS, ignore_eos=True))
        return [list(output.tokens) for output in outputs]


@torch.inference_mode()
def transformers_tokens(model: Any, prompts: Tokens, batch: int = 25) -> Tokens:
    """Greedy tokens of transformers, for batches of prompts with similar lengths, padded to one length."""
    order = sorted(range(len(prompts)), key=lambda number: len(prompts[number]))
    found: Tokens = [[] for _ in prompts]
    for at in range(0, len(order), batch):
        numbers = order[at : at + batch]
        width = max(len(prompts[number]) for number in numbers)
        rows = [prompts[number] for number in numbers]
        ids = torch.tensor([[1] * (width - len(row)) + row for row in rows], device=model.device)
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows], device=model.device)
        out = model.generate(
            ids,
            attention_mask=mask,
            do_sample=False,
            max_new_tokens=NEW_TOKENS,
            min_new_tokens=NEW_TOKENS,
            eos_token_id=None,
            pad_token_id=1,
        )
        for number, row in zip(numbers, out[:, width:].tolist(), strict=True):
            found[number] = row
    return found


def load(folder: Path, device: str, dtype: torch.dtype) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval().to(device)


def free() -> None:
    gc.collect()
    torch.cuda.empty_cache()


class Float64(TorchFunctionMode):
    """Turns the conversions to float32, with which transformers' norms begin, into conversions to float64."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.float:
            func = torch.Tensor.double
        args = [torch.float64 if value is torch.float32 else value for value in args]
        kwargs = {
            name: torch.float64 if value is torch.float32 else value for name, value in (kwargs or {}).items()
        }
        return func(*args, **kwargs)


@torch.inference_mode()
def gaps(folder: Path, device: str, prompts: Tokens, found: Tokens, expected: Tokens) -> list[float]:
    """The distance of the two largest logits in float64, at the first different token of each prompt."""
    differing = [
        prompt + left[: next(i for i, (a, b) in enumerate(zip(left, right, strict=True)) if a != b)]
        for prompt, left, right in zip(prompts, found, expected, strict=True)
        if left != right
    ]
    if not differing:
        return []
    model = load(folder, device, torch.float64)
    model.config._experts_implementation = "eager"  # torch's grouped products don't support float64
    distances = []
    for ids in differing:
        with Float64():
            logits = model(torch.tensor([ids], device=device), use_cache=False).logits[0, -1]
        first, second = logits.topk(2).values.tolist()
        distances.append(first - second)
    return distances


def check_tokens(name: str, folder: Path, device: str, prompts: Tokens, most: int) -> bool:
    """Compare all ways of running with the eager one, and the eager one with transformers."""
    ways = {way: engine_tokens(folder, device, prompts, options) for way, options in WAYS.items()}
    eager = ways["eager"]
    free()
    model = load(folder, device, torch.float32)
    ways["transformers in float32"] = transformers_tokens(model, prompts)
    del model
    free()
    fine = True
    for way, tokens in ways.items():
        found = gaps(folder, device, prompts, eager, tokens)
        free()
        fine &= len(found) <= most and all(gap <= CLOSE for gap in found)
        told = "".join(f" {gap:.1e}" for gap in sorted(found))
        print(
            f"{name}, {way}: {len(prompts) - len(found)} of {len(prompts)} prompts have the tokens of the "
            f"eager run{'; distances in float64 at first differences:' if found else ''}{told}",
            flush=True,
        )
    return fine


@torch.inference_mode()
def log_probabilities(model: Any, prompts: Tokens) -> torch.Tensor:
    """The log-probabilities of each prompt's tokens, starting with the second."""
    found = []
    for prompt in prompts:
        ids = torch.tensor(prompt, device=model.device)
        logits = model(ids.unsqueeze(0), use_cache=False).logits[0, :-1].double()
        found.append(logits.log_softmax(-1).gather(1, ids[1:, None]).squeeze(1))
    return torch.cat(found)


def engine_log_probabilities(folder: Path, device: str, prompts: Tokens) -> torch.Tensor:
    """The same log-probabilities from the engine, each with a prompt that ends before the token."""
    begun = [prompt[:end] for prompt in prompts for end in range(1, len(prompt))]
    following = [token for prompt in prompts for token in prompt[1:]]
    found = torch.zeros(len(begun), dtype=torch.float64, device=device)
    sizes = {"max_sequences": 64, "max_length": max(map(len, prompts)) + 1}
    with Engine(folder, device=device, dtype="bfloat16", options=sizes) as engine:
        for tensor in engine.pools.tensors():
            tensor.fill_(float("nan"))
        choose, numbers = engine._core._choose, {}

        def look(logits: torch.Tensor, params: Any, draws: Sequence[Any]) -> torch.Tensor:
            rows = torch.tensor([numbers[id(draw)] for draw in draws], device=device)
            tokens = torch.tensor([following[numbers[id(draw)]] for draw in draws], device=device)
            found[rows] = logits.double().log_softmax(-1).gather(1, tokens[:, None]).squeeze(1)
            return choose(logits, params, draws)

        engine._core._choose = look
        params = SamplingParams(max_new_tokens=1, ignore_eos=True)
        requests = [engine.submit(prompt, params) for prompt in begun]
        numbers.update({id(request.draws): number for number, request in enumerate(requests)})
        while engine.busy:
            engine.step()
    return found


def check_probabilities(folder: Path, device: str, prompts: Tokens) -> bool:
    """Compare distances to float32: by chance the engine's may be 5% above that of transformers."""
    own = engine_log_probabilities(folder, device, prompts)
    free()
    model = load(folder, device, torch.bfloat16)
    peer = log_probabilities(model, prompts)
    exact = log_probabilities(model.float(), prompts)
    distances = [(found - exact).abs().mean().item() for found in (own, peer)]
    print(
        f"bfloat16, {len(exact)} prompt tokens: mean distance of log-probabilities to float32 "
        f"{distances[0]:.4f}, transformers' {distances[1]:.4f}",
        flush=True,
    )
    return distances[0] <= 1.05 * distances[1]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = make_parser("accuracy", __doc__)
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--longest", type=int, default=600)
    parser.add_argument("--no-slice", action="store_true", help="only the trained checkpoint")
    parser.add_argument("--no-trained", action="store_true", help="only the slice")
    parser.add_argument("--tiny", action="store_true", help="on a CPU, with small widths")
    options = parser.parse_args(arguments)
    device, widths = ("cpu", TINY) if options.tiny else ("cuda", WIDTHS)
    fine = True
    if not options.no_trained:
        prompts = trained_prompts(options.prompts, options.longest)
        fine &= check_tokens("trained", TRAINED, device, prompts, most=0)
    if not options.no_slice:
        with tempfile.TemporaryDirectory() as name:
            layers, experts = (4, 16) if options.tiny else (12, 64)
            folder = make_checkpoint(Path(name), layers, experts, 3072, widths=widths, device=device)
            prompts = make_prompts(3 if options.tiny else 12)
            fine &= check_tokens("slice", folder, device, prompts, most=5)
            fine &= check_probabilities(folder, device, [prompt[:130] for prompt in prompts[:5]])
    print("all within what is allowed" if fine else "NOT within what is allowed")
    return not fine


if __name__ == "__main__":
    sys.exit(main())
