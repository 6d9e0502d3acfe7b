"""Times `generate` of a plain transformers model and of one served by Switchrail's bridge, in one run.

Both models generate greedily from the same padded batch of random prompts, in alternating rounds. The time of
a prompt pass is that of a run with one new token. The time of a decode step is the rest of a longer run's
time, divided by the number of further steps. The extra cost of a dispatched call is the difference of the two
models' decode steps, divided by the number of dispatched calls in a step.

On a CPU, times are CPU times of all threads, on a GPU wall times. If FLA is installed, transformers
without the bridge uses FLA's kernels on a GPU. The exit status is 1 if the tokens differ before the first
near tie.

    python -m benchmarks.bridge [CHECKPOINT] [--slice LAYERS] [--batch N] [--device cuda] [--dtype bfloat16]
        [--tokens N] [--rounds N] [--backend KEY=NAME] [--alone] [--json FILE]
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import switchrail.bridges.transformers as sr
import torch
import transformers
from transformers import AutoModelForCausalLM

from benchmarks.arguments import make_parser
from benchmarks.serving.slices import TRAINED, make_checkpoint

EXPERTS, VOCABULARY = 64, 3072
LENGTHS = (40, 160)
"""Prompts have at least the first and fewer than the second number of tokens, times 4 for a slice."""
TIE = 0.1
"""At a near tie, the two largest logits are less than this apart."""


def batch_of(count: int, vocabulary: int, scale: int) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    lengths = torch.randint(LENGTHS[0] * scale, LENGTHS[1] * scale, (count,), generator=draw).tolist()
    width = max(lengths)
    ids = torch.randint(2, vocabulary, (count, width), generator=draw)
    mask = torch.stack([torch.arange(width) >= width - length for length in lengths]).long()
    return {"input_ids": ids * mask, "attention_mask": mask}


def timed(work: Callable[[], Any], device: str) -> tuple[float, Any]:
    clock = time.process_time if device == "cpu" else time.perf_counter
    started = clock()
    found = work()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return clock() - started, found


def same_until_ties(first: Any, second: Any, width: int) -> bool:
    """Whether in each sequence, greedy tokens first differ at a near tie of the first run, if at all."""
    top = torch.stack(first.logits, 1).float().topk(2).values
    near = top[..., 0] - top[..., 1] < TIE
    differs = first.sequences[:, width:] != second.sequences[:, width:]
    return all(
        bool(near_row[row.nonzero()[0, 0]]) for near_row, row in zip(near, differs, strict=True) if row.any()
    )


def main() -> int:
    parser = make_parser("bridge", __doc__)
    parser.add_argument("checkpoint", nargs="?", type=Path, default=TRAINED)
    parser.add_argument("--slice", type=int, help="use a slice of Qwen3-Next with this number of layers")
    parser.add_argument("--batch", type=int, nargs="*", default=[1, 8])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--backend", action="append", default=[], metavar="KEY=NAME", help="chosen backend")
    parser.add_argument("--alone", action="store_true", help="time only transformers without the bridge")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() if given.slice else nullcontext() as folder:
        path = given.checkpoint
        if given.slice:
            path = make_checkpoint(Path(folder), given.slice, EXPERTS, VOCABULARY)
        loaded = AutoModelForCausalLM.from_pretrained(path, dtype=given.dtype)
    model = loaded.eval().requires_grad_(False).to(given.device)
    backends = dict(choice.split("=", 1) for choice in given.backend)
    rows, is_equal = [], True
    for count in given.batch:
        inputs = batch_of(count, model.config.vocab_size, 4 if given.slice else 1)
        inputs = {name: tensor.to(given.device) for name, tensor in inputs.items()}
        row, same = measure(model, inputs, backends, given)
        is_equal &= same
        rows.append(row)
        print(json.dumps(row))
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0 if is_equal else 1


def measure(
    model: Any, inputs: dict[str, torch.Tensor], backends: dict[str, str], given: Any
) -> tuple[dict[str, Any], bool]:
    """The row of one batch, and the result of `same_until_ties`; True if only one model was run."""
    options: dict[str, Any] = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}

    def generate(tokens: int, **more: Any) -> Any:
        return model.generate(**inputs, max_new_tokens=tokens, min_new_tokens=tokens, **options, **more)

    count, width = inputs["input_ids"].shape
    times: dict[str, list[tuple[float, float]]] = {}
    calls, outputs = 0, {}
    names = ["alone"] if given.alone else ["alone", "served"]
    for number in range(given.rounds + 1):
        for name in names:
            context = sr.use(model, backends=backends) if name == "served" else nullcontext()
            with context as handle:
                if number == 0:
                    outputs[name] = generate(given.tokens, output_logits=True, return_dict_in_generate=True)
                prompt, _ = timed(lambda: generate(1), given.device)
                run, _ = timed(lambda: generate(given.tokens), given.device)
                if handle is not None:
                    calls = len(
                        {(layer, op) for layer, op, phase, _ in handle.plan.table if phase == "decode"}
                    )
            if number:  # the first round compiles
                times.setdefault(name, []).append((prompt, (run - prompt) / (given.tokens - 1)))
    row: dict[str, Any] = {
        "batch": count,
        "width": width,
        "device": given.device,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "fla": find_spec("fla") is not None,
    }
    for name, found in times.items():
        row[f"{name}, prompts (ms)"] = round(1e3 * statistics.median(prompt for prompt, _ in found), 2)
        row[f"{name}, decode step (ms)"] = round(1e3 * statistics.median(step for _, step in found), 3)
    if "served" in times:
        more = row["served, decode step (ms)"] - row["alone, decode step (ms)"]
        row["dispatched calls per step"] = calls
        row["extra time of a dispatched call (us)"] = round(1e3 * more / calls, 1)
        return row, same_until_ties(outputs["alone"], outputs["served"], width)
    return row, True


if __name__ == "__main__":
    sys.exit(main())
