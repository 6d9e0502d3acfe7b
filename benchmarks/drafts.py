"""Times speculative decoding: steps that verify drafts, and whole runs with drafts.

    python -m benchmarks.drafts                  # one GPU: 12 layers, B = 1, 32
    python -m benchmarks.drafts --tiny           # a trial without a GPU
    python -m benchmarks.drafts --part texts     # only one part: steps, forced or texts
    python -m benchmarks.drafts --accepted       # only counts accepted drafts, on the CPU

*steps*: median times on the device of steps of a slice of Qwen3-Next (fewer layers and experts, random
    weights). A *verify* computes 4 rows per sequence, up to the logits. The *commit* after it determines the
    accepted rows and writes states. Steps are timed with and without deferred commits. With deferred commits,
    a verify includes the commit of the previous verify.
*forced*: tokens per second of such a slice. With random weights, hardly any draft would be accepted. So the
    slice's embeddings and output layer are set so that each token determines the next one. The drafted tokens
    are replaced by correct tokens followed by wrong ones. The number of correct ones is drawn from the
    distribution that `--accepted` measured for the trained checkpoint (`ACCEPTED`). An MTP head has random
    weights and still runs all of its steps.
*texts*: tokens per second of the trained checkpoint, which continues texts greedily without drafts and with
    each kind of draft. The outputs are compared with those without drafts; in bfloat16 some differ by
    rounding.

`--accepted` continues 200 passages from chapters that were not in the training text, by 32 tokens each, in
float32, with three kinds of drafts and different numbers of drafts.
"""

from __future__ import annotations

import json
import random
import statistics
import tempfile
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import switchrail
import torch
from safetensors.torch import save_file
from switchrail import SamplingParams
from switchrail.engine import Engine
from switchrail.engine.drafts import Drafted, Drafts
from switchrail.engine.files import WEIGHTS
from switchrail.engine.models.mtp import QwenHead
from switchrail.engine.runner import Runner
from switchrail.engine.scheduler import Schedule
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.arguments import make_parser
from benchmarks.serving.slices import TINY, TRAINED, WIDTHS, make_checkpoint, random_weights

HELD_OUT = TRAINED.parent / "held_out.txt"
SMALL = TRAINED.parent / "kjv-draft"
BATCHES = (1, 32)
ROWS, CACHED, REPEATS = 4, 512, 20
NEW_TOKENS, LONGEST = 128, 256
PASSAGES, CHARACTERS = 200, 200
KINDS: tuple[tuple[str, Any], ...] = (
    ("none", None),
    ("ngram", "ngram"),
    ("mtp", "mtp"),
    ("a small model", SMALL),
    ("the model itself", TRAINED),
)

NEXT, SHIFT = 5, 7
"""In the part `forced`, token t is followed by NEXT t + SHIFT, modulo the size of the vocabulary."""

ACCEPTED = {"ngram": (0.708, 0.169, 0.070, 0.025, 0.028), "mtp": (0.393, 0.197, 0.161, 0.098, 0.151)}
"""By kind of draft, the shares of verifications that accept 0, 1, 2, 3 and 4 of 4 drafts."""


class Forced(Drafts):
    """Proposes correct tokens, then wrong ones. A head runs its steps, but its proposals are discarded.

    Args:
        shares: Probability of 0, 1, 2, ... correct tokens.
        vocab_size: Size of the vocabulary.
        head: The MTP head, if any.
    """

    def __init__(self, shares: Sequence[float], vocab_size: int, head: Drafts | None) -> None:
        self._shares, self._size, self._head = shares, vocab_size, head
        self._draw = random.Random(0)
        self.ahead = 0 if head is None else head.ahead

    def look_ahead(self, tasks: Any, verified: Any) -> None:
        if self._head is not None:
            self._head.look_ahead(tasks, verified)

    def propose(self, tasks: Any, limits: Any) -> Drafted:
        if self._head is not None:
            self._head.propose(tasks, limits)
        found = []
        for task, limit in zip(tasks, limits, strict=True):
            (correct,) = self._draw.choices(range(len(self._shares)), self._shares)
            token, tokens = task.tokens[-1], list[int]()
            for index in range(limit):
                token = (NEXT * token + SHIFT + (index == correct)) % self._size
                tokens.append(token)
            found.append(tokens)
        return Drafted(found)


class Nothing(Drafts):
    """Proposes nothing. The engine gets ready for verifications; `time_step` gives it the tokens."""

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
        torch.cuda._sleep(50_000_000)  # keeps the device busy while the host launches the work
        events[0].record()
        for work, event in zip(parts, events[1:], strict=True):
            work()
            event.record()
        events[-1].synchronize()
        for begin, end, found in zip(events, events[1:], times, strict=False):
            found.append(begin.elapsed_time(end))
    return [statistics.median(found) for found in times]


def count_kernels(work: Callable[[], object]) -> Counter[str]:
    """The number of launches of each kernel and copy on a GPU, by name."""
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        work()
        torch.cuda.synchronize()
    return Counter(one.name for one in profile.events() if one.device_type == torch.autograd.DeviceType.CUDA)


def time_steps(
    path: Path, sizes: Sequence[int], device: str, cached: int, *, deferred: bool, kernels: bool = False
) -> list[dict[str, Any]]:
    """The rows of the part `steps`: one per number of sequences."""
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
    """Time the steps of `size` sequences with `cached` cached tokens each."""
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
    """The rows of the part `texts`: one per number of texts and kind of draft."""
    text = HELD_OUT.read_text("utf-8")
    found: list[dict[str, Any]] = []
    params = SamplingParams(max_new_tokens=NEW_TOKENS, ignore_eos=True)
    for size in sizes:
        step = (len(text) - 400) // size
        prompts = [text[i * step : i * step + 200] for i in range(size)]
        plain, plain_rate = list[Any](), 0.0
        for name, draft in KINDS:
            options = {"draft": draft, "max_sequences": max(size, 2), "max_length": LONGEST + NEW_TOKENS}
            with Engine(TRAINED, device=device, dtype=dtype, options=options) as engine:
                outputs = engine.generate(prompts, params)
                plain = plain or outputs
                before, start = engine.stats, time.perf_counter()
                engine.generate(prompts, params)
                seconds, stats = time.perf_counter() - start, engine.stats
            verified = stats.verifications - before.verifications
            rate = size * NEW_TOKENS / seconds
            plain_rate = plain_rate or rate
            row: dict[str, Any] = {
                "texts": size,
                "draft": name,
                "tokens_per_s": rate,
                "against": rate / plain_rate,
                "steps": stats.steps - before.steps,
                "accepted": (stats.accepted_tokens - before.accepted_tokens) / max(1, verified),
                "equal": sum(a.tokens == b.tokens for a, b in zip(plain, outputs, strict=True)),
            }
            found.append(row)
            print(
                f"{size} texts, draft {name}: {row['tokens_per_s']:,.0f} tokens/s ({row['against']:.2f} of "
                f"plain), {row['steps']} steps, {row['accepted']:.2f} accepted per verification, "
                f"{row['equal']} of {size} equal",
                flush=True,
            )
    return found


def add_head(path: Path, device: str) -> None:
    """Add an MTP head with random weights to a slice without stored weights."""
    config = json.loads((path / "config.json").read_text()) | {
        "mtp_num_hidden_layers": 1,
        "mtp_layer_types": ["full_attention"],
    }
    (path / "config.json").write_text(json.dumps(config))
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(path), dtype=torch.bfloat16)
    with torch.device(device):
        head = QwenHead(model, switchrail.Layout.from_config(path).drafts).to(torch.bfloat16)
    weights = {}
    for name, weight in head.state_dict().items():
        scale = weight.shape[-1] ** -0.5 if weight.dim() > 1 else 0.0
        weights[f"mtp.{name}"] = (torch.randn_like(weight) * scale).cpu()
    save_file(weights, path / WEIGHTS)


@torch.no_grad()
def determine(engine: Engine) -> None:
    """Change the weights so that each token determines the next one, whatever the rounding errors."""
    model: Any = engine._runner.model
    embeddings, output = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    size = len(embeddings)
    embeddings.copy_(torch.randn_like(embeddings) * 8)
    following = (NEXT * torch.arange(size, device=embeddings.device) + SHIFT) % size
    output[following] = embeddings / 64


def time_forced(path: Path, sizes: Sequence[int], device: str, repeats: int = 3) -> list[dict[str, Any]]:
    """The rows of the part `forced`: one per number of sequences and kind of draft."""
    found: list[dict[str, Any]] = []
    params = SamplingParams(max_new_tokens=NEW_TOKENS, ignore_eos=True)
    for size in sizes:
        plain_rate = 0.0
        for name, draft in (("none", None), ("ngram", "ngram"), ("mtp", "mtp")):
            length = LONGEST + NEW_TOKENS
            options = {"draft": draft, "max_sequences": max(size, 2), "max_length": length}
            options |= {"page_size": 16, "num_pages": 2 + max(size, 2) * -(-length // 16)}
            with Engine(path, device=device, options=options) as engine:
                determine(engine)
                if draft is not None:
                    head = engine._core.drafts if draft == "mtp" else None
                    engine._core.drafts = Forced(ACCEPTED[draft], engine._vocab_size, head)
                draw = random.Random(1)
                prompts = [[draw.randrange(engine._vocab_size) for _ in range(200)] for _ in range(size)]
                outputs = engine.generate(prompts, params)
                followed = sum(
                    next == (NEXT * token + SHIFT) % engine._vocab_size
                    for output in outputs
                    for token, next in pairwise(output.tokens)
                )
                seconds = []
                before = engine.stats
                for _ in range(repeats):
                    start = time.perf_counter()
                    engine.generate(prompts, params)
                    seconds.append(time.perf_counter() - start)
                stats = engine.stats
            verified = stats.verifications - before.verifications
            rate = size * NEW_TOKENS / statistics.median(seconds)
            plain_rate = plain_rate or rate
            row: dict[str, Any] = {
                "sequences": size,
                "draft": name,
                "tokens_per_s": rate,
                "against": rate / plain_rate,
                "steps": (stats.steps - before.steps) / repeats,
                "accepted": (stats.accepted_tokens - before.accepted_tokens) / max(1, verified),
                "right": followed / (size * (NEW_TOKENS - 1)),
            }
            found.append(row)
            print(
                f"slice, {size} sequences, draft {name}, acceptance forced: {row['tokens_per_s']:,.0f} "
                f"tokens/s ({row['against']:.2f} of plain), {row['steps']:.0f} steps, "
                f"{row['accepted']:.2f} accepted per verification; {row['right']:.1%} as determined",
                flush=True,
            )
    return found


def passages(count: int) -> list[str]:
    """Passages of the held-out text that begin at regular distances. Many overlap."""
    text = HELD_OUT.read_text("utf-8")
    return [text[i * (len(text) - 400) // count :][:CHARACTERS] for i in range(count)]


def counting(counts: Counter[int], keep: Callable[..., None]) -> Callable[..., None]:
    """Wrap the engine's function that keeps accepted tokens: `counts` gets the accepted drafts of each
    verification."""

    def counted(one: Any, run: Sequence[int]) -> None:
        counts[len(run) - 1] += bool(one.drafts)
        keep(one, run)

    return counted


def count_accepted(count: int) -> list[dict[str, Any]]:
    """A row per kind and number of drafts: mean and distribution of the accepted drafts per verification."""
    found = []
    params = SamplingParams(max_new_tokens=32, ignore_eos=True)
    for name, draft in KINDS[1:4]:
        for drafts, branches in ((3, 1), (4, 1), (4, 2)):
            if draft == "ngram" and branches > 1:
                continue
            options = {"draft": draft, "draft_tokens": drafts, "draft_branches": branches}
            options |= {"max_sequences": 40, "max_length": LONGEST}
            with Engine(TRAINED, device="cpu", dtype="float32", options=options) as engine:
                counts = Counter[int]()
                engine._core._keep = counting(counts, engine._core._keep)  # type: ignore[method-assign]
                engine.generate(passages(count), params)
                stats = engine.stats
            row = {"draft": name, "drafts": drafts, "branches": branches}
            row |= {"accepted": stats.accepted_per_verification, "verifications": stats.verifications}
            row["shares"] = [round(counts[n] / max(1, sum(counts.values())), 4) for n in range(drafts + 1)]
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
    parser.add_argument("--part", choices=("steps", "forced", "texts"), help="only this part")
    parser.add_argument("--tiny", action="store_true", help="small sizes on the CPU")
    parser.add_argument("--accepted", action="store_true", help="only count accepted drafts, on the CPU")
    parser.add_argument("--kernels", action="store_true", help="also count kernels; needs a GPU")
    parser.add_argument("--passages", type=int, default=PASSAGES, help="number of passages for --accepted")
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
        cached = 32 if options.tiny else CACHED

        make = partial(
            make_checkpoint,
            layers=layers,
            experts=experts,
            vocabulary=vocabulary,
            widths=widths,
            device=device,
        )

        def steps() -> list[dict[str, Any]]:
            path = make(Path(name) / "steps")
            time = partial(time_steps, path, sizes, device, cached, kernels=options.kernels)
            return [*time(deferred=False), *time(deferred=True)]

        def forced() -> list[dict[str, Any]]:
            path = make(Path(name) / "forced", stored=False)
            add_head(path, device)
            with random_weights(device):
                return time_forced(path, sizes, device)

        parts: dict[str, Callable[[], list[dict[str, Any]]]] = {
            "steps": steps,
            "forced": forced,
            "texts": lambda: time_texts(sizes, device, "float32" if options.tiny else "bfloat16"),
        }
        chosen = [options.part] if options.part else [*parts]
        rows = {part: parts[part]() for part in chosen}
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
