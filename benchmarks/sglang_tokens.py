"""Compares tokens of SGLang, with its own kernels and with Switchrail's, with those of transformers.

    python -m benchmarks.sglang_tokens PYTHON
    python -m benchmarks.sglang_tokens PYTHON --options '{"attention_backend": "triton"}' --way own --way all
    python -m benchmarks.sglang_tokens PYTHON --jobs 8

PYTHON is the interpreter of an environment with SGLang and Switchrail. The model is the repository's trained
checkpoint in bfloat16, with experts in every layer. SGLang continues 30 prompts of 4 to 90 tokens by 16
tokens each, greedily.

A position is a near tie if the two largest logits of transformers in float32 are within 0.1; there, bfloat16
may choose another token. Each prompt is chosen from 16 passages of equal length: the one whose continuation
by transformers has its first near tie as late as possible. So the choice does not depend on SGLang or
Switchrail.

*tokens*: new tokens must equal those of transformers in float32. They may only differ from a near tie on, and
    at most a tenth of all tokens may come after such a difference.
*texts* (without drafts): for each position of the prompts and of transformers' continuations, SGLang's most
    probable token must be that of transformers in float32, except at near ties. At most a tenth of the
    positions may be near ties. Also prints the mean distance of the log-probabilities from those in float32.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.arguments import make_parser
from benchmarks.serving.sglang_peer import SGLang
from benchmarks.serving.slices import Work
from benchmarks.serving.trained import TRAINED, for_sglang

NEAR = 0.1
"""At a near tie, the two largest logits are less than this apart."""

PROMPTS, NEW_TOKENS, PASSAGES = 30, 16, 16

_LINEAR = {"linear_attn_backend": "switchrail"}
_ALL = {**_LINEAR, "attention_backend": "switchrail"}
_CHAINS = {
    "speculative_algorithm": "NEXTN",
    "speculative_num_steps": 3,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 4,
    "speculative_draft_attention_backend": "triton",
}
_TREES = {**_CHAINS, "speculative_eagle_topk": 2, "speculative_num_draft_tokens": 6}
WAYS: dict[str, dict[str, Any]] = {
    "own": {},
    "linear": _LINEAR,
    "attention": {"attention_backend": "switchrail"},
    "all": _ALL,
    "eager": {**_ALL, "disable_cuda_graph": True},
    "cache": {**_ALL, "disable_radix_cache": False, "mamba_radix_cache_strategy": "extra_buffer"},
    "chains": {**_ALL, **_CHAINS},
    "trees": {**_ALL, **_TREES},
    "own trees": _TREES,
}
"""Way of running -> arguments of SGLang's engine. `own` and `own trees` use SGLang's own kernels, `linear`
uses Switchrail's in linear layers, `attention` in attention layers, and the others in all layers.

Drafts come from the checkpoint's MTP head, because SGLang 0.5.11 updates no states after n-gram drafts.
"""

Tokens = list[list[int]]


class Expected(NamedTuple):
    """Results of transformers, in float32 unless stated otherwise. A text is a prompt with its new tokens.

    Attributes:
        prompts: The prompts.
        tokens: The new tokens of each prompt.
        gaps: For each token of a text after the first, how far apart the two largest logits for it are.
        best: The most probable tokens at the same positions.
        scores: The log-probabilities of the texts' tokens at the same positions.
        rounded: The same log-probabilities in bfloat16.
    """

    prompts: Tokens
    tokens: Tokens
    gaps: list[list[float]]
    best: Tokens
    scores: list[list[float]]
    rounded: list[list[float]]


class Compared(NamedTuple):
    """A comparison of new tokens.

    Attributes:
        equal: The number of tokens before each prompt's first difference, summed over the prompts.
        dropped: The number of the other tokens.
        wrong: The numbers of the prompts whose first difference is not at a near tie.
    """

    equal: int
    dropped: int
    wrong: list[int]


def passages(count: int) -> list[Tokens]:
    """For each prompt, candidates of equal length from text that the checkpoint was not trained on."""
    text = (TRAINED.parent / "held_out.txt").read_text()[:80_000]
    ids = AutoTokenizer.from_pretrained(TRAINED)(text)["input_ids"]
    draw = random.Random(0)
    lengths = [draw.randint(4, 90) for _ in range(count)]
    starts = [[draw.randrange(len(ids) - length) for _ in range(PASSAGES)] for length in lengths]
    return [
        [ids[start : start + length] for start in several]
        for length, several in zip(lengths, starts, strict=True)
    ]


@torch.inference_mode()
def expect(count: int, new_tokens: int, device: str) -> Expected:
    """Run transformers on the unchanged checkpoint, and choose the prompts by their near ties."""
    found = Expected([], [], [], [], [], [])
    model = AutoModelForCausalLM.from_pretrained(TRAINED, dtype=torch.float32).eval().to(device)
    for several in passages(count):
        ids = torch.tensor(several, device=device)
        more = {"max_new_tokens": new_tokens, "min_new_tokens": new_tokens, "eos_token_id": None}
        texts = model.generate(ids, do_sample=False, pad_token_id=1, **more)
        logits = model(texts).logits[:, :-1]
        first, second = logits.topk(2).values.unbind(-1)
        near = (first - second)[:, ids.shape[1] - 1 :] < NEAR
        chosen = int(torch.where(near.any(1), near.int().argmax(1), new_tokens).argmax())
        found.prompts.append(several[chosen])
        found.tokens.append(texts[chosen, ids.shape[1] :].tolist())
        found.gaps.append((first - second)[chosen].tolist())
        found.best.append(logits[chosen].argmax(-1).tolist())
        found.scores.append(_scores(logits[chosen], texts[chosen]))
    model = model.to(torch.bfloat16)
    for prompt, tokens in zip(found.prompts, found.tokens, strict=True):
        text = torch.tensor(prompt + tokens, device=device)
        found.rounded.append(_scores(model(text[None]).logits[0, :-1], text))
    return found


def _scores(logits: torch.Tensor, text: torch.Tensor) -> list[float]:
    scores: list[float] = logits.float().log_softmax(-1).gather(1, text[1:, None])[:, 0].tolist()
    return scores


def compare(found: Tokens, expected: Expected) -> Compared:
    """Compare new tokens up to the first different one of each prompt."""
    equal, dropped, wrong = 0, 0, []
    texts = zip(expected.prompts, found, expected.tokens, strict=True)
    for number, (prompt, own, peer) in enumerate(texts):
        same = next((i for i, (a, b) in enumerate(zip(own, peer, strict=True)) if a != b), len(peer))
        equal += same
        dropped += len(peer) - same
        if same < len(peer) and expected.gaps[number][len(prompt) - 1 + same] >= NEAR:
            wrong.append(number)
    return Compared(equal, dropped, wrong)


def check_tokens(way: str, sglang: SGLang, expected: Expected) -> bool:
    """Compare new tokens with transformers', in two runs: the second may use SGLang's prefix cache."""
    fine = True
    for run in ("first", "second"):
        answers = sglang.tokens(Work(expected.prompts, len(expected.tokens[0]), {}))
        found = compare([one["tokens"] for one in answers], expected)
        total = found.equal + found.dropped
        fine &= not found.wrong and found.dropped <= total / 10
        print(
            f"{way}, {run} run: {found.equal} of {total} new tokens equal; prompts that differ without "
            f"a near tie: {found.wrong}; prompt tokens from the cache: "
            f"{sum(one['cached'] for one in answers)}; accepted drafts: "
            f"{sum(one['accepted'] for one in answers)}",
            flush=True,
        )
    return fine


def check_texts(way: str, sglang: SGLang, expected: Expected) -> bool:
    """Compare the most probable token and the log-probability at each position of the texts."""
    texts = [prompt + tokens for prompt, tokens in zip(expected.prompts, expected.tokens, strict=True)]
    answers = sglang.scores(texts)
    other = [
        gap
        for one, best, gaps in zip(answers, expected.best, expected.gaps, strict=True)
        for own, peer, gap in zip(one["best"], best, gaps, strict=True)
        if own != peer
    ]
    distance = _distance([one["scores"] for one in answers], expected.scores)
    rounded = _distance(expected.rounded, expected.scores)
    positions = sum(map(len, expected.best))
    near = sum(gap < NEAR for gaps in expected.gaps for gap in gaps)
    print(
        f"{way}, texts: {positions - len(other)} of {positions} most probable tokens equal, the others at "
        f"gaps of at most {max(other, default=0.0):.3f}, {near} near ties; mean distance of "
        f"log-probabilities to float32 {distance:.4f}, transformers' in bfloat16 {rounded:.4f}",
        flush=True,
    )
    return max(other, default=0.0) < NEAR and near <= positions / 10


def _distance(found: Sequence[Sequence[float]], expected: Sequence[Sequence[float]]) -> float:
    return statistics.mean(
        abs(a - b) for own, peer in zip(found, expected, strict=True) for a, b in zip(own, peer, strict=True)
    )


def check(
    way: str,
    folder: Path,
    log: Path,
    python: str,
    options: Mapping[str, Any],
    new_tokens: int,
    peer: Future[Expected],
) -> bool:
    """Compare one way of running with transformers, whose results may not be ready when SGLang starts."""
    with SGLang(
        folder,
        python=python,
        sequences=8,
        new_tokens=new_tokens,
        options={
            "context_length": 1024,
            "mem_fraction_static": 0.9,
            "max_mamba_cache_size": 64,
            "cuda_graph_max_bs_decode": 8,
            **options,
        },
        log=log,
    ) as sglang:
        expected = peer.result()
        fine = check_tokens(way, sglang, expected)
        if "speculative_algorithm" not in options:
            fine &= check_texts(way, sglang, expected)
    return fine


def main(arguments: Sequence[str] | None = None) -> int:
    parser = make_parser("sglang_tokens", __doc__)
    parser.add_argument("python")
    parser.add_argument("--way", action="append", choices=WAYS, help="only this way of running; repeatable")
    parser.add_argument("--options", type=json.loads, default={}, metavar="JSON", help="SGLang's arguments")
    parser.add_argument("--prompts", type=int, default=PROMPTS)
    parser.add_argument("--new-tokens", type=int, default=NEW_TOKENS)
    parser.add_argument("--logs", type=Path, metavar="DIR", help="folder for the engines' output")
    parser.add_argument("--jobs", type=int, default=1, help="number of engines that run at the same time")
    options = parser.parse_args(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with (
        tempfile.TemporaryDirectory() as name,
        ThreadPoolExecutor(1) as other,
        ThreadPoolExecutor(options.jobs) as pool,
    ):
        expected = other.submit(expect, options.prompts, options.new_tokens, device)
        folder = for_sglang(Path(name))
        logs = options.logs or folder
        logs.mkdir(parents=True, exist_ok=True)

        def run(way: str) -> bool:
            more = {**options.options, **WAYS[way]}
            log = logs / f"{way}.log"
            try:
                return check(way, folder, log, options.python, more, options.new_tokens, expected)
            except RuntimeError as error:
                print(f"{way}: {error}", flush=True)
                return False

        fine = all([*pool.map(run, options.way or WAYS)])
    print("all as in transformers" if fine else "NOT as in transformers")
    return not fine


if __name__ == "__main__":
    sys.exit(main())
