"""Times verifications of drafts beside decodes, and drafts end to end.

    python -m benchmarks.drafts                  # one GPU: 12 layers, B = 1, 32
    python -m benchmarks.drafts --tiny           # a trial without a GPU
    python -m benchmarks.drafts --accepted       # only how many drafts are accepted, on the CPU

Steps of a Qwen3-Next slice with random weights are timed on the device (medians): a *decode*; a *verify* of 4
rows per sequence up to the logits; and the *commit* after it, which determines the accepted rows and writes
states. With deferred commits, a verify includes the commit of the previous verify. Both ways are timed. Then
the trained checkpoint continues texts without drafts and with each kind of draft, greedily. First, the
outputs are compared with those without drafts; in bfloat16 some differ by rounding.

`--accepted` continues 200 passages from chapters that were not in the training text, by 32 tokens each, in
float32, with each kind of draft and different numbers of drafts.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from switchrail import SamplingParams
from switchrail.engine import Engine
from switchrail.engine.drafts import Drafted, Drafts
from switchrail.engine.runner import Runner
from switchrail.engine.scheduler import Schedule

from benchmarks.arguments import make_parser
from benchmarks.serving.slices import TINY, TOKENIZER, WIDTHS, make_checkpoint

HELD_OUT = TOKENIZER.parent / "held_out.txt"
SMALL = TOKENIZER.parent / "kjv-draft"
BATCHES = (1, 32)
ROWS, CACHED, REPEATS = 4, 512, 20
NEW_TOKENS, LONGEST = 128, 256
PASSAGES, CHARACTERS = 200, 200
KINDS: tuple[tuple[str, Any], ...] = (
    ("none", None),
    ("ngram", "ngram"),
    ("mtp", "mtp"),
    ("a small model", SMALL),
    ("the model itself", TOKENIZER),
)


class Nothing(Drafts):
    """Proposes nothing, so that requests keep their lengths."""

    def propose(self, tasks: Any, limits: Any) -> Drafted:
        return Drafted([()] * len(tasks))


def device_ms(parts: Sequence[Callable[[], object]], device: str) -> list[float]:
    """The median milliseconds of each of several functions that are called one after the other."""
    times: list[list[float]] = [[] for _ in parts]
    for _ in range(REPEATS):
        if device == "cpu":
            for work, found in zip(parts, times, strict=True):
                start = time.perf_counter()
                work()
                found.append(1e3 * (time.perf_counter() - start))
            continue
        events = [torch.cuda.Event(enable_timing=True) for _ in range(len(parts) + 1)]
        torch.cuda._sleep(50_000_000)  # the host is ahead of the device
        events[0].record()
        for work, event in zip(parts, events[1:], strict=True):
            work()
            event.record()
        events[-1].synchronize()
        for begin, end, found in zip(events, events[1:], times, strict=False):
            found.append(begin.elapsed_time(end))
    return [statistics.median(found) for found in times]


def count_kernels(work: Callable[[], object]) -> Counter[str]:
    """The kernels and copies that some work launches on a GPU, by name."""
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        work()
        torch.cuda.synchronize()
    return Counter(one.name for one in profile.events() if one.device_type == torch.autograd.DeviceType.CUDA)


def time_steps(
    path: Path, sizes: Sequence[int], device: str, cached: int, *, deferred: bool, kernels: bool = False
) -> list[dict[str, Any]]:
    """A row per number of sequences."""
    options = {
        "draft": Nothing(),
        "draft_tokens": ROWS - 1,
        "max_sequences": max(sizes),
        "max_length": 2 * cached,
        "num_pages": 2 + max(sizes) * 2 * cached // 16,
    }
    with ExitStack() as stack:
        if not deferred:
            stack.enter_context(patch.object(Runner, "_deferred_commits", lambda *_: None))
        engine = stack.enter_context(Engine(path, device=device, options={**options, "page_size": 16}))
        return [time_step(engine, size, device, cached, deferred=deferred, kernels=kernels) for size in sizes]


@torch.inference_mode()
def time_step(
    engine: Engine, size: int, device: str, cached: int, *, deferred: bool, kernels: bool
) -> dict[str, Any]:
    """Time steps of sequences with this many cached tokens each."""
    params = SamplingParams(max_new_tokens=16, ignore_eos=True)
    requests = [engine.submit([7] * cached, params) for _ in range(size)]
    while any(not request.tokens for request in requests):
        engine.step()
    runner, tasks = engine._runner, list(engine._core.sequences.live)
    tasks.sort(key=lambda task: task.slot)
    decode = Schedule(decode=tasks, prefill=[], forks=[])
    verify = replace(decode, drafted=Drafted([[7] * (ROWS - 1)] * size))
    chosen = torch.full((size * ROWS,), 7, device=engine.device)

    ran: Any = None

    def run_verify() -> None:
        nonlocal ran
        ran = runner.run(verify)

    row: dict[str, Any] = {"deferred": deferred, "sequences": size}
    with engine.platform.hardware.active(), engine._core._on_stream():
        (row["decode"],) = device_ms([lambda: runner.run(decode)], device)
        row["verify"], row["commit"] = device_ms([run_verify, lambda: ran.accept(chosen)], device)
        if kernels:
            works = {"verify": run_verify, "commit": lambda: ran.accept(chosen)}
            row["kernels"] = {name: count_kernels(work) for name, work in works.items()}
    row["multiple"] = row["verify"] / row["decode"]
    row["share"] = row["commit"] / row["decode"]
    row["captured"] = sorted({state.kind for state in engine.graphs if state.reason is None})
    print(
        f"commit {'deferred' if deferred else 'at once'}, B={size:<3} decode "
        f"{row['decode']:.3f} ms, verify of {ROWS} rows {row['verify']:.3f} ms "
        f"({row['multiple']:.2f} decodes), commit {row['commit']:.3f} ms ({row['share']:.1%} of a decode, "
        f"{row['commit'] / row['verify']:.1%} of the verify); captured: {', '.join(row['captured'])}",
        flush=True,
    )
    for name, found in row.get("kernels", {}).items():
        print(f"  {name}: {found.total()} kernels and copies, {len(found)} different ones", flush=True)
    for request in requests:
        engine.cancel(request)
    while engine.busy:
        engine.step()
    return row


def time_texts(sizes: Sequence[int], device: str, dtype: str) -> list[dict[str, Any]]:
    """A row per number of texts and kind of draft."""
    text = HELD_OUT.read_text("utf-8")
    found = []
    for size in sizes:
        step = (len(text) - 400) // size
        prompts = [text[i * step : i * step + 200] for i in range(size)]
        params = SamplingParams(max_new_tokens=NEW_TOKENS, ignore_eos=True)
        plain: list[Any] = []
        for name, draft in KINDS:
            options = {"draft": draft, "max_sequences": max(size, 2), "max_length": LONGEST + NEW_TOKENS}
            with Engine(TOKENIZER, device=device, dtype=dtype, options=options) as engine:
                outputs = engine.generate(prompts, params)
                plain = plain or outputs
                before, start = engine.stats, time.perf_counter()
                engine.generate(prompts, params)
                seconds, stats = time.perf_counter() - start, engine.stats
            verified = stats.verifications - before.verifications
            row = {
                "texts": size,
                "draft": name,
                "tokens_per_s": size * NEW_TOKENS / seconds,
                "steps": stats.steps - before.steps,
                "accepted": (stats.accepted_tokens - before.accepted_tokens) / max(1, verified),
                "equal": sum(a.tokens == b.tokens for a, b in zip(plain, outputs, strict=True)),
            }
            against = row["tokens_per_s"] / found[-1]["plain"] if name != "none" else 1.0
            row["plain"] = row["tokens_per_s"] / against
            found.append(row)
            print(
                f"{size} texts, draft {name}: {row['tokens_per_s']:,.0f} tokens/s ({against:.2f} of plain), "
                f"{row['steps']} steps, {row['accepted']:.2f} accepted per verification, "
                f"{row['equal']} of {size} equal",
                flush=True,
            )
    return found


def passages(count: int) -> list[str]:
    """Passages that begin at regular distances. Many overlap."""
    text = HELD_OUT.read_text("utf-8")
    return [text[i * (len(text) - 400) // count :][:CHARACTERS] for i in range(count)]


def count_accepted(count: int) -> list[dict[str, Any]]:
    """A row per kind and number of drafts, with accepted drafts and verified rows per verification."""
    found = []
    params = SamplingParams(max_new_tokens=32, ignore_eos=True)
    for name, draft in KINDS[1:4]:
        for drafts, branches in ((3, 1), (4, 1), (4, 2)):
            if draft == "ngram" and branches > 1:
                continue
            options = {"draft": draft, "draft_tokens": drafts, "draft_branches": branches}
            options |= {"max_sequences": 40, "max_length": LONGEST}
            with Engine(TOKENIZER, device="cpu", dtype="float32", options=options) as engine:
                engine.generate(passages(count), params)
                stats = engine.stats
            row = {"draft": name, "drafts": drafts, "branches": branches}
            row |= {"accepted": stats.accepted_per_verification, "verifications": stats.verifications}
            found.append(row)
            print(
                f"draft {name}, {drafts} drafts{', 2 branches' * (branches == 2)}: "
                f"{row['accepted']:.2f} accepted per verification, {row['verifications']} verifications",
                flush=True,
            )
    return found


def parse(arguments: Sequence[str] | None) -> Namespace:
    parser = make_parser("drafts", __doc__)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--experts", type=int, default=64)
    parser.add_argument("--vocabulary", type=int, default=32768)
    parser.add_argument("--batch", type=int, nargs="+", help="numbers of sequences")
    parser.add_argument("--tiny", action="store_true", help="small sizes on the CPU")
    parser.add_argument("--accepted", action="store_true", help="only count accepted drafts, on the CPU")
    parser.add_argument("--kernels", action="store_true", help="also count kernels; needs a GPU")
    parser.add_argument("--passages", type=int, default=PASSAGES, help="for --accepted")
    parser.add_argument("--json", type=Path)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    if options.accepted:
        accepted = count_accepted(options.passages)
        if options.json:
            options.json.write_text(json.dumps({"accepted": accepted}, indent=1) + "\n")
        return
    device, widths = ("cpu", TINY) if options.tiny else ("cuda", WIDTHS)
    sizes = options.batch or ((1, 2) if options.tiny else BATCHES)
    with tempfile.TemporaryDirectory() as name:
        layers, experts, vocabulary = (
            (4, 16, 3072) if options.tiny else (options.layers, options.experts, options.vocabulary)
        )
        path = make_checkpoint(
            Path(name) / "slice", layers, experts, vocabulary, widths=widths, device=device
        )
        cached = 32 if options.tiny else CACHED
        steps = [
            row
            for deferred in (False, True)
            for row in time_steps(path, sizes, device, cached, deferred=deferred, kernels=options.kernels)
        ]
    texts = time_texts(sizes, device, "float32" if options.tiny else "bfloat16")
    if options.json:
        options.json.write_text(json.dumps({"steps": steps, "texts": texts}, indent=1) + "\n")


if __name__ == "__main__":
    main()
