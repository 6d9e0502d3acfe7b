"""Compares the engine with transformers: its tokens in each way of running, and its probabilities.

    python -m benchmarks.accuracy                     # the trained checkpoint, then a slice of Qwen3-Next
    python -m benchmarks.accuracy --prompts 50 --no-slice

*trained*: float32, 200 prompts of 1 to 600 tokens, 32 new tokens each, greedy. Eager, captured, compiled and
    overlapped runs, with pools full of NaN, must give the same tokens as each other and as transformers'
    torch code.
*slice*: 12 layers of Qwen3-Next at real widths with random weights, where the two largest logits are often
    close. Where two runs first differ, the two largest logits of a model in float64 must be within 1e-4 of
    each other, or this model must accept both tokens. It accepts a token whose logit is within 1e-4 of the
    largest logit, with its own experts or with the run's. The run's are used only if rounding explains them:
    wherever they first differ from the model's own, the smallest router logit of a chosen expert and the
    largest of the others must be within 1e-4 in float64. Experts that differ because earlier ones did are
    not checked. At most 5 prompts may differ.
*bfloat16*: the mean distance of the slice's log-probabilities in bfloat16 from those in float32, for prompt
    tokens and for the whole vocabulary. The engine's distance must not be larger than transformers' by more
    than chance explains; the ratio is printed with its 95% bootstrap interval over the prompts.
"""

from __future__ import annotations

import gc
import random
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from switchrail.engine import Engine, SamplingParams
from torch.overrides import TorchFunctionMode
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.arguments import make_parser
from benchmarks.choices import Choices, Routed, causes, recorded_batches, recorded_engine, routed
from benchmarks.serving.slices import TINY, TRAINED, WIDTHS, make_checkpoint, make_prompts, pad_left

CLOSE = 1e-4
"""Two logits this close may change places by rounding."""

NEW_TOKENS = 32
SCORED = 130
"""Maximum number of tokens of each prompt whose probabilities are compared."""

SAMPLES = 10_000
"""Bootstrap samples."""

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


@dataclass
class Run:
    """The new tokens of each prompt, and the experts that were chosen for all tokens."""

    tokens: Tokens
    choices: Choices = field(default_factory=Choices)


def run_engine(folder: Path, device: str, prompts: Tokens, options: dict[str, Any]) -> Run:
    """Run the engine with pools full of NaN; the experts are recorded in eager runs."""
    sizes = {"max_sequences": 64, "max_length": max(map(len, prompts)) + NEW_TOKENS, **options}
    found = Run([])
    with ExitStack() as stack:
        engine = stack.enter_context(Engine(folder, device=device, dtype="float32", options=sizes))
        if options.get("capture") == "off":
            stack.enter_context(recorded_engine(engine, found.choices))
        for tensor in engine.pools.tensors():
            tensor.fill_(float("nan"))
        outputs = engine.generate(prompts, SamplingParams(max_new_tokens=NEW_TOKENS, ignore_eos=True))
        found.tokens = [list(output.tokens) for output in outputs]
    return found


@torch.inference_mode()
def run_transformers(model: Any, prompts: Tokens, batch: int = 25) -> Run:
    """Run transformers on batches of prompts with similar lengths, padded to one length."""
    order = sorted(range(len(prompts)), key=lambda number: len(prompts[number]))
    found = Run([[] for _ in prompts])
    with recorded_batches(model, found.choices) as begin:
        for at in range(0, len(order), batch):
            numbers = order[at : at + batch]
            ids, mask = pad_left([prompts[number] for number in numbers], model.device)
            width = ids.shape[1]
            begin(numbers, [width - len(prompts[number]) for number in numbers])
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
                found.tokens[number] = row
    return found


def load(folder: Path, device: str, dtype: torch.dtype) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval().to(device)


def free() -> None:
    gc.collect()
    torch.cuda.empty_cache()


class Float64(TorchFunctionMode):
    """Replaces conversions to float32, as in transformers' norms, by conversions to float64."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.float:
            func = torch.Tensor.double
        args = [torch.float64 if value is torch.float32 else value for value in args]
        kwargs = {
            name: torch.float64 if value is torch.float32 else value for name, value in (kwargs or {}).items()
        }
        return func(*args, **kwargs)


@dataclass
class Side:
    """One of two runs, where their tokens first differ.

    Attributes:
        token: The run's token.
        others: In how many layers and positions the run's experts differ from those of float64; 0 if not
            recorded.
        causes: The differences that no earlier difference has caused; see `causes`.
        behind: How far the token's logit is below the largest one, in float64.
        behind_routed: The same distance in float64 with the run's experts.
    """

    token: int
    others: int
    causes: list[tuple[int, int, float]]
    behind: float
    behind_routed: float

    @property
    def is_fine(self) -> bool:
        """Whether the model in float64 accepts the token, with its own experts or with the run's."""
        tied = bool(self.causes) and all(gap <= CLOSE for *_, gap in self.causes)
        return self.behind <= CLOSE or (tied and self.behind_routed <= CLOSE)

    def __str__(self) -> str:
        told = f"chooses token {self.token}, whose logit in float64 is {self.behind:.1e} below the largest"
        if self.causes:
            layer, position, gap = max(self.causes, key=lambda cause: cause[2])
            told += (
                f"; its experts differ from those of float64 at {self.others} (layer, position) pairs; "
                f"{len(self.causes)} of these follow from no earlier difference, and the router logits in "
                f"float64 are at most {gap:.1e} apart there (layer {layer}, position {position}); with its "
                f"experts, the logit is {self.behind_routed:.1e} below"
            )
        return told


@dataclass
class Difference:
    """The first token in which two runs differ.

    Attributes:
        prompt: The number of the prompt.
        index: The number of the new token, from 0.
        gap: The distance of the two largest logits in float64.
        sides: The two runs.
    """

    prompt: int
    index: int
    gap: float
    sides: tuple[Side, Side]

    @property
    def is_fine(self) -> bool:
        """Whether rounding errors explain the difference."""
        return self.gap <= CLOSE or all(side.is_fine for side in self.sides)


def exact_model(folder: Path, device: str) -> Any:
    """The model in float64."""
    model = load(folder, device, torch.float64)
    model.config._experts_implementation = "eager"  # torch's grouped products don't support float64
    return model


def differences(folder: Path, device: str, prompts: Tokens, *runs: Run) -> list[Difference]:
    """For each prompt whose tokens differ between two runs, the first difference."""
    pairs = list(zip(*(run.tokens for run in runs), strict=True))
    if all(left == right for left, right in pairs):
        return []
    model = exact_model(folder, device)
    found = []
    for number, (prompt, (left, right)) in enumerate(zip(prompts, pairs, strict=True)):
        if left == right:
            continue
        index = next(i for i, (a, b) in enumerate(zip(left, right, strict=True)) if a != b)
        ids = prompt + left[:index]
        with Float64():
            exact = routed(model, ids)
            sides = [look(model, ids, exact, number, run, run.tokens[number][index]) for run in runs]
        first, second = exact.last.topk(2).values.tolist()
        found.append(Difference(number, index, first - second, (sides[0], sides[1])))
    return found


def look(model: Any, ids: list[int], exact: Routed, number: int, run: Run, token: int) -> Side:
    """Compare one run's next token after `ids` with the model in float64."""
    behind = (exact.last.max() - exact.last[token]).item()
    if not run.choices.found:
        return Side(token, 0, [], behind, behind)
    experts = run.choices.of(number, len(ids))
    others = int((experts != exact.experts).any(-1).sum())
    if not others:
        return Side(token, 0, [], behind, behind)
    last = routed(model, ids, experts).last
    return Side(token, others, causes(experts, exact), behind, (last.max() - last[token]).item())


def check_tokens(
    name: str, folder: Path, device: str, prompts: Tokens, *, most: int, chosen: Sequence[str]
) -> bool:
    """Compare the eager run with the other chosen ways of running, and with transformers.

    Args:
        name: The checkpoint's name in the output.
        folder: The checkpoint.
        device: Where to run.
        prompts: The prompts.
        most: Maximum number of prompts that may have different tokens.
        chosen: The ways of running, including `eager`.
    """
    ways = {way: run_engine(folder, device, prompts, WAYS[way]) for way in chosen}
    eager = ways["eager"]
    free()
    model = load(folder, device, torch.float32)
    ways["transformers in float32"] = run_transformers(model, prompts)
    del model
    free()
    fine = True
    for way, run in ways.items():
        found = differences(folder, device, prompts, eager, run)
        free()
        fine &= len(found) <= most and all(one.is_fine for one in found)
        gaps = sorted(one.gap for one in found)
        told = "".join(f" {gap:.1e}" for gap in gaps)
        print(
            f"{name}, {way}: {len(prompts) - len(found)} of {len(prompts)} prompts have the tokens of the "
            f"eager run{'; distances in float64 of the two largest logits:' if found else ''}{told}",
            flush=True,
        )
        for one in found:
            verdict = "explained" if one.is_fine else "OPEN"
            print(f"{name}, prompt {one.prompt}, new token {one.index}: {verdict}")
            for which, side in zip(("eager", way), one.sides, strict=True):
                print(f"{name}, prompt {one.prompt}: {which} {side}", flush=True)
    return fine


@torch.inference_mode()
def log_probabilities(model: Any, prompts: Tokens) -> torch.Tensor:
    """The log-probabilities after each prompt's tokens except its last, [rows, vocabulary]."""
    found = []
    for prompt in prompts:
        ids = torch.tensor(prompt, device=model.device)
        logits = model(ids.unsqueeze(0), use_cache=False).logits[0, :-1].double()
        found.append(logits.log_softmax(-1))
    return torch.cat(found)


def engine_log_probabilities(folder: Path, device: str, prompts: Tokens) -> torch.Tensor:
    """The same log-probabilities from the engine, which computes each row from a separate prompt."""
    begun = [prompt[:end] for prompt in prompts for end in range(1, len(prompt))]
    found: list[torch.Tensor | None] = [None] * len(begun)
    sizes = {"max_sequences": 64, "max_length": max(map(len, prompts)) + 1}
    with Engine(folder, device=device, dtype="bfloat16", options=sizes) as engine:
        for tensor in engine.pools.tensors():
            tensor.fill_(float("nan"))
        choose, numbers = engine._core._choose, {}

        def look(logits: torch.Tensor, params: Any, draws: Sequence[Any]) -> torch.Tensor:
            rows = logits.double().log_softmax(-1)
            for draw, row in zip(draws, rows, strict=True):
                found[numbers[id(draw)]] = row
            return choose(logits, params, draws)

        engine._core._choose = look
        params = SamplingParams(max_new_tokens=1, ignore_eos=True)
        requests = [engine.submit(prompt, params) for prompt in begun]
        numbers.update({id(request.draws): number for number, request in enumerate(requests)})
        while engine.busy:
            engine.step()
    return torch.stack([row for row in found if row is not None])


def ratio_interval(own: torch.Tensor, peer: torch.Tensor) -> tuple[float, float]:
    """The 95% bootstrap interval over prompts of the ratio of two means."""
    draws = torch.randint(len(own), (SAMPLES, len(own)), generator=torch.Generator().manual_seed(0))
    ratios = own.cpu()[draws].mean(1) / peer.cpu()[draws].mean(1)
    low, high = ratios.quantile(torch.tensor([0.025, 0.975], dtype=ratios.dtype)).tolist()
    return low, high


def check_probabilities(folder: Path, device: str, prompts: Tokens) -> bool:
    """Compare the distances from float32: the interval of their ratio must begin at 1 or below."""
    own = engine_log_probabilities(folder, device, prompts)
    free()
    model = load(folder, device, torch.bfloat16)
    peer = log_probabilities(model, prompts)
    exact = log_probabilities(model.float(), prompts)
    following = torch.tensor([token for prompt in prompts for token in prompt[1:]], device=exact.device)
    owners = [number for number, prompt in enumerate(prompts) for _ in prompt[1:]]
    fine = True
    for what in ("of prompt tokens", "of all tokens"):
        means = []
        for found in (own, peer):
            rows = (found - exact).abs()
            each = rows.mean(1) if what == "of all tokens" else rows.gather(1, following[:, None]).squeeze(1)
            sums = torch.zeros(len(prompts), dtype=each.dtype, device=each.device)
            sums.index_add_(0, torch.tensor(owners, device=each.device), each)
            means.append(sums / torch.tensor([len(prompt) - 1 for prompt in prompts], device=each.device))
        low, high = ratio_interval(*means)
        own_mean, peer_mean = (one.mean().item() for one in means)
        fine &= low <= 1
        print(
            f"bfloat16, {len(exact)} positions of {len(prompts)} prompts: mean distance of log-probabilities "
            f"{what} to float32 {own_mean:.4f}, transformers' {peer_mean:.4f}; ratio "
            f"{own_mean / peer_mean:.3f}, 95% interval {low:.3f} to {high:.3f}",
            flush=True,
        )
    return fine


def main(arguments: Sequence[str] | None = None) -> int:
    parser = make_parser("accuracy", __doc__)
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--longest", type=int, default=600)
    parser.add_argument("--no-slice", action="store_true", help="only the trained checkpoint")
    parser.add_argument("--no-trained", action="store_true", help="only the slice")
    parser.add_argument("--scored", type=int, default=60, help="number of prompts for probabilities")
    parser.add_argument("--way", action="append", choices=WAYS, help="only this way and eager; repeatable")
    parser.add_argument("--no-tokens", action="store_true", help="skip the tokens of the slice")
    parser.add_argument("--tiny", action="store_true", help="run on a CPU, with small widths")
    options = parser.parse_args(arguments)
    device, widths = ("cpu", TINY) if options.tiny else ("cuda", WIDTHS)
    chosen = list(dict.fromkeys(["eager", *(options.way or WAYS)]))
    fine = True
    if not options.no_trained:
        prompts = trained_prompts(options.prompts, options.longest)
        fine &= check_tokens("trained", TRAINED, device, prompts, most=0, chosen=chosen)
    if not options.no_slice:
        with tempfile.TemporaryDirectory() as name:
            layers, experts = (4, 16) if options.tiny else (12, 64)
            folder = make_checkpoint(Path(name), layers, experts, 3072, widths=widths, device=device)
            prompts = make_prompts(3 if options.tiny else 12)
            if not options.no_tokens:
                fine &= check_tokens("slice", folder, device, prompts, most=5, chosen=chosen)
            scored = make_prompts(options.scored)
            fine &= check_probabilities(folder, device, [prompt[:SCORED] for prompt in scored])
    print("all within the bounds" if fine else "NOT within the bounds")
    return not fine


if __name__ == "__main__":
    sys.exit(main())
