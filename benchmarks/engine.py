"""Tokens per second on the CPU: the engine against transformers' own `generate`, on the same checkpoint.

Both continue 32 prompts of 1 to 600 tokens by 64 tokens each, greedily, in float32, in one process with the
same number of threads. The prompts are random passages of text that the checkpoint was not trained on.
transformers runs with its cache, once prompt by prompt and once as a padded batch. Before the timing, the
tokens of these two runs and of the engine's are compared. Those of a prompt may first differ only where the
two largest logits of transformers differ by less than `TIE`; these ties are listed.

Measures wall time, and CPU time of all threads. Other load on the machine affects both; the minimum is
affected least. The floor is the time of the model's matrix products by themselves, at the rate of one large
product.

    python benchmarks/engine.py [CHECKPOINT] [--text FILE] [--threads N] [--repeats N] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import logging
import platform
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import switchrail
import torch
import transformers
from rich.console import Console
from rich.table import Table
from switchrail.engine import Engine, SamplingParams
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

PROMPTS = 32
LONGEST = 600
NEW_TOKENS = 64
TIE = 1e-3
CHECKPOINTS = Path(__file__).parent.parent / "tests/checkpoints"
OURS, BATCH, SINGLE = "switchrail", "generate, padded", "generate, each"

Tokens = list[list[int]]


def cut_prompts(text: list[int]) -> Tokens:
    """Random passages of the text, always the same. The first has one token, the last `LONGEST`."""
    draw = random.Random(0)
    lengths = [1, *(draw.randint(1, LONGEST) for _ in range(PROMPTS - 2)), LONGEST]
    starts = [draw.randint(0, len(text) - length) for length in lengths]
    return [text[start : start + length] for start, length in zip(starts, lengths, strict=True)]


@torch.inference_mode()
def padded(model: PreTrainedModel, prompts: Tokens) -> Tokens:
    width = max(map(len, prompts))
    found = model.generate(
        torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts]),
        attention_mask=torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]),
        do_sample=False,
        max_new_tokens=NEW_TOKENS,
        eos_token_id=None,
        pad_token_id=0,
    )
    return found[:, width:].tolist()


def engine_tokens(engine: Engine, prompts: Tokens) -> Tokens:
    outputs = engine.generate(prompts, SamplingParams(max_new_tokens=NEW_TOKENS, ignore_eos=True))
    return [list(output.tokens) for output in outputs]


@torch.inference_mode()
def find_ties(model: PreTrainedModel, prompts: Tokens, expected: Tokens, found: Tokens) -> list[str]:
    """The ties at which outputs first differ. Exits if outputs first differ anywhere else."""
    ties = []
    for number, (prompt, want, got) in enumerate(zip(prompts, expected, found, strict=True)):
        at = next((i for i, (a, b) in enumerate(zip(want, got, strict=True)) if a != b), None)
        if at is not None:
            logits = model(torch.tensor([prompt + want[:at]]), use_cache=False).logits[0, -1]
            first, second = logits.topk(2).values.tolist()
            told = f"prompt {number} of {len(prompt)} tokens, new token {at}: {got[at]}, expected {want[at]}"
            if first - second >= TIE:
                raise SystemExit(f"{told}, and the two largest logits differ by {first - second:.2g}")
            ties.append(f"{told}; a tie, {first - second:.1e} apart")
    return ties


@torch.inference_mode()
def floor_seconds(model: PreTrainedModel, prompts: Tokens) -> float:
    """The time of the matrix products alone; the output layer is applied only to rows that need logits."""
    config = model.config
    head = model.get_output_embeddings().weight.numel()
    body = 0.0
    for name, weight in model.named_parameters():
        if weight.ndim == 2 and "embed_tokens" not in name and "lm_head" not in name:
            body += weight.numel()
        elif ".experts." in name:
            body += weight.numel() * config.num_experts_per_tok / config.num_experts
    rows = sum(map(len, prompts)) + PROMPTS * (NEW_TOKENS - 1)
    operations = 2 * (rows * body + PROMPTS * NEW_TOKENS * head)
    square = torch.randn(2048, 2048)
    square @ square
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        square @ square
        seconds.append(time.perf_counter() - start)
    return operations * statistics.median(seconds) / (2 * 2048**3)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", nargs="?", type=Path, default=CHECKPOINTS / "kjv-qwen3-next")
    parser.add_argument(
        "--text", type=Path, default=CHECKPOINTS / "held_out.txt", help="the text that prompts are taken from"
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the results")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    logging.disable(logging.WARNING)
    console = Console()

    model = AutoModelForCausalLM.from_pretrained(options.checkpoint, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(options.checkpoint)
    prompts = cut_prompts(tokenizer(options.text.read_text(encoding="utf-8"))["input_ids"])
    clock: dict[str, list[float]] = {OURS: [], BATCH: [], SINGLE: []}
    cpu: dict[str, list[float]] = {name: [] for name in clock}
    with Engine(options.checkpoint, runtime=switchrail.Runtime(), device="cpu", dtype="float32") as engine:
        runs: dict[str, Callable[[], Tokens]] = {
            OURS: lambda: engine_tokens(engine, prompts),
            BATCH: lambda: padded(model, prompts),
            SINGLE: lambda: [padded(model, [prompt])[0] for prompt in prompts],
        }
        with console.status("all three once, to compare their tokens"):
            results = {name: run() for name, run in runs.items()}
            ties = {
                name: find_ties(model, prompts, results[SINGLE], found) for name, found in results.items()
            }
        for repeat in range(options.repeats):
            with console.status(f"timing, {repeat + 1} of {options.repeats}"):
                for name, run in runs.items():
                    start, start_cpu = time.perf_counter(), time.process_time()
                    run()
                    clock[name].append(time.perf_counter() - start)
                    cpu[name].append(time.process_time() - start_cpu)
        floor = floor_seconds(model, prompts)

    size = f"{PROMPTS} prompts, {sum(map(len, prompts))} tokens, {NEW_TOKENS} new tokens each"
    table = Table("", "tokens/s", "s", "least s", "CPU s", "speedup, median", "speedup, least s", title=size)
    ratios = {}
    for name in runs:
        seconds = statistics.median(clock[name])
        # compares runs of the same repeat, which other load affects alike
        neighbours = (a / b for a, b in zip(clock[name], clock[OURS], strict=True))
        ratios[name] = {"median": statistics.median(neighbours), "least": min(clock[name]) / min(clock[OURS])}
        table.add_row(
            name,
            f"{PROMPTS * NEW_TOKENS / seconds:.0f}",
            f"{seconds:.2f}",
            f"{min(clock[name]):.2f}",
            f"{statistics.median(cpu[name]):.2f}",
            *(f"{ratio:.1f}x" for ratio in ratios[name].values()),
        )
    table.add_row("floor", f"{PROMPTS * NEW_TOKENS / floor:.0f}", f"{floor:.2f}", *[""] * 4)
    console.print(table)
    console.print("generate: transformers, all prompts in one padded batch, and each prompt alone")
    console.print(f"{options.threads} threads, medians of {options.repeats} runs; tokens equal", end="")
    listed = [f"{name}: {tie}" for name, found in ties.items() for tie in found]
    console.print(f" up to {len(listed)} ties:" if listed else " throughout")
    for line in listed:
        console.print(line)
    if options.json:
        versions = {"torch": torch.__version__, "transformers": transformers.__version__}
        document = {
            "machine": platform.machine(),
            "versions": {"python": platform.python_version(), **versions},
            "threads": options.threads,
            "prompt_tokens": [len(prompt) for prompt in prompts],
            "new_tokens": NEW_TOKENS,
            "seconds": clock,
            "cpu_seconds": cpu,
            "floor_seconds": floor,
            "engine_faster": ratios,
            "ties": ties,
        }
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
