"""Tokens a second on the CPU: the engine against transformers' own `generate`, on the same checkpoint.

32 seeded prompts of 1 to 600 tokens, 64 new tokens each, greedy, in the same run with the same threads. transformers
runs with its cache, once prompt by prompt and once as a padded batch. Before anything is timed all three must have
given the same tokens, except where the first two candidates of transformers' own logits are closer than `TIE`.

    python benchmarks/engine.py [CHECKPOINT] [--threads N] [--repeats N]
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import switchrail
import torch
from switchrail.engine import Engine, SamplingParams
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers import logging as transformers_logging

PROMPTS = 32
LONGEST = 600
NEW_TOKENS = 64
TIE = 1e-3
DEFAULT = Path(__file__).parent.parent / "tests/checkpoints/kjv-qwen3-next"

Tokens = list[list[int]]


def make_prompts(vocab_size: int) -> Tokens:
    """Seeded prompts; the first has one token, the last `LONGEST`."""
    draw = random.Random(0)
    lengths = [1, *(draw.randint(1, LONGEST) for _ in range(PROMPTS - 2)), LONGEST]
    return [[draw.randrange(vocab_size) for _ in range(length)] for length in lengths]


def one_by_one(model: PreTrainedModel, prompts: Tokens) -> Tokens:
    return [padded(model, [prompt])[0] for prompt in prompts]


@torch.inference_mode()
def padded(model: PreTrainedModel, prompts: Tokens) -> Tokens:
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    found = model.generate(
        ids, attention_mask=mask, do_sample=False, max_new_tokens=NEW_TOKENS, eos_token_id=None, pad_token_id=0
    )
    return found[:, width:].tolist()


def engine_tokens(engine: Engine, prompts: Tokens) -> Tokens:
    outputs = engine.generate(prompts, SamplingParams(max_new_tokens=NEW_TOKENS, ignore_eos=True))
    return [list(output.tokens) for output in outputs]


@torch.inference_mode()
def count_ties(model: PreTrainedModel, prompts: Tokens, expected: Tokens, found: Tokens) -> int:
    """How many outputs part at a tie; one that parts anywhere else stops the benchmark."""
    ties = 0
    for prompt, want, got in zip(prompts, expected, found, strict=True):
        at = next((i for i, (a, b) in enumerate(zip(want, got, strict=True)) if a != b), None)
        if at is not None:
            logits = model(torch.tensor([prompt + want[:at]]), use_cache=False).logits[0, -1]
            first, second = logits.topk(2).values.tolist()
            if first - second >= TIE:
                raise SystemExit(f"prompt of {len(prompt)} tokens: new token {at} is {got[at]}, expected {want[at]}")
            ties += 1
    return ties


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", nargs="?", type=Path, default=DEFAULT)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    transformers_logging.set_verbosity_error()
    logging.disable(logging.WARNING)

    model = AutoModelForCausalLM.from_pretrained(args.checkpoint, dtype=torch.float32).eval()
    prompts = make_prompts(model.config.vocab_size)
    with Engine(args.checkpoint, runtime=switchrail.Runtime(), device="cpu", dtype="float32") as engine:
        runs: dict[str, Callable[[], Tokens]] = {
            "switchrail": lambda: engine_tokens(engine, prompts),
            "transformers, padded batch": lambda: padded(model, prompts),
            "transformers, one by one": lambda: one_by_one(model, prompts),
        }
        results = {name: run() for name, run in runs.items()}
        expected = results["transformers, one by one"]
        ties = {name: count_ties(model, prompts, expected, found) for name, found in results.items()}
        seconds: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(args.repeats):
            for name, run in runs.items():
                start = time.perf_counter()
                run()
                seconds[name].append(time.perf_counter() - start)

    medians = {name: statistics.median(times) for name, times in seconds.items()}
    rates = {name: PROMPTS * NEW_TOKENS / median for name, median in medians.items()}
    if args.json:
        print(json.dumps({"tokens_per_s": rates, "seconds": seconds, "ties": ties, "threads": args.threads}))
        return
    print(f"{PROMPTS} prompts of 1 to {LONGEST} tokens, {NEW_TOKENS} new tokens each, {args.threads} threads")
    for name, rate in rates.items():
        ratio = rates["switchrail"] / rate
        spread = max(seconds[name]) - min(seconds[name])
        print(f"{name:27} {rate:8.0f} tokens/s  {medians[name]:6.2f} s (spread {spread:.2f})  x{ratio:.2f}", end="")
        print(f"  parts at a tie: {ties[name]}" if ties[name] else "")


if __name__ == "__main__":
    main()
