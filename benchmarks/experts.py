"""Times the experts of a feed-forward block at Qwen3-Next's widths, after checking them.

    python -m benchmarks.experts                      # T from 1 to 8,192, 64 and 512 experts
    python -m benchmarks.experts --experts 64 --rows 1 32
    python -m benchmarks.experts --tune               # also candidates for the tables in tiles.py
    python -m benchmarks.experts --kernels            # also each kernel's time, by torch's profiler

*experts* is the operation by itself: it starts from the router's logits and includes the shared expert.
*block* is the whole block, which also has the router's product. It is compared with two forms of
transformers' own block: unchanged (*eager*), and with torch's grouped products (*grouped_mm*).

Times are microseconds per call in a captured graph. Consecutive calls have different rows and weights, so
the L2 cache is cold. A * marks peers that can't be captured; they are timed call by call. The floor is the
larger of two times: the bytes of the experts in use divided by this run's copy bandwidth, and the operations
divided by this run's bf16 matmul rate. The error is that of the block's result relative to float32 products,
with transformers' error in brackets.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from switchrail_kernels.experts.forward import experts
from switchrail_kernels.experts.tiles import Tile, Tiles
from torch.nn.functional import linear, silu

from benchmarks.arguments import make_parser
from benchmarks.ops.clock import Clock

HIDDEN, INNER, TOP_K = 2048, 512, 10
DTYPE = torch.bfloat16
ROWS = (1, 8, 32, 128, 256, 2048, 8192)
EXPERTS = (64, 512)
SETS = {64: 4, 512: 2}
"""Number of layers with different weights, by number of experts."""

WRONG = 1e-2
"""Relative error above which nothing is timed."""

GATE_UP = {
    16: ((32, 128, 4, 4), (32, 128, 4, 5), (16, 256, 4, 4), (64, 64, 4, 5), (32, 64, 4, 6)),
    32: ((32, 128, 4, 4), (32, 64, 4, 6), (64, 64, 4, 4), (32, 256, 4, 3)),
    64: ((64, 64, 4, 4), (32, 64, 4, 6), (32, 128, 4, 3), (128, 64, 4, 3), (128, 64, 8, 4)),
    128: ((128, 64, 8, 3), (128, 64, 8, 4), (64, 64, 8, 4), (64, 64, 4, 4)),
}
DOWN = {
    16: ((64, 128, 4, 4), (32, 256, 4, 2), (64, 256, 4, 2), (128, 64, 4, 4), (32, 128, 4, 4)),
    32: ((64, 128, 4, 4), (64, 64, 4, 6), (128, 64, 4, 4), (64, 256, 4, 2)),
    64: ((128, 64, 4, 4), (64, 64, 4, 6), (256, 64, 8, 3), (128, 128, 8, 3), (64, 128, 4, 3)),
    128: ((128, 64, 8, 4), (256, 64, 8, 3), (128, 128, 8, 3), (128, 64, 4, 3)),
}
"""Candidate tiles by number of rows: columns, depth, warps, stages."""


@dataclass
class Weights:
    """A block's weights as our kernels take them, and transformers' block on views of the same memory."""

    block: Any
    router: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


def make_weights(count: int, device: torch.device) -> Weights:
    from transformers import Qwen3NextConfig
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextSparseMoeBlock

    config = Qwen3NextConfig(
        hidden_size=HIDDEN,
        num_experts=count,
        num_experts_per_tok=TOP_K,
        moe_intermediate_size=INNER,
        shared_expert_intermediate_size=INNER,
        norm_topk_prob=True,
    )
    with torch.device("meta"):
        block = Qwen3NextSparseMoeBlock(config).to(DTYPE).eval()
    options: dict[str, Any] = {"dtype": DTYPE, "device": device}
    router = torch.zeros(count + 8, HIDDEN, **options)  # padded as in the engine
    router[: count + 1].normal_(std=HIDDEN**-0.5)
    gate_up = torch.empty(count + 1, 2 * INNER, HIDDEN, **options).normal_(std=HIDDEN**-0.5)
    down = torch.empty(count + 1, HIDDEN, INNER, **options).normal_(std=INNER**-0.5)
    views = {
        "gate.weight": router[:count],
        "shared_expert_gate.weight": router[count : count + 1],
        "experts.gate_up_proj": gate_up[:count],
        "experts.down_proj": down[:count],
        "shared_expert.gate_proj.weight": gate_up[count, :INNER],
        "shared_expert.up_proj.weight": gate_up[count, INNER:],
        "shared_expert.down_proj.weight": down[count],
    }
    block.load_state_dict(views, assign=True)
    return Weights(block, router, gate_up, down)


def route(weights: Weights, x: torch.Tensor) -> torch.Tensor:
    return linear(x, weights.router)[:, : len(weights.down)]


def run_block(implementation: str, weights: Weights, x: torch.Tensor) -> torch.Tensor:
    weights.block.experts.config._experts_implementation = implementation
    out: torch.Tensor = weights.block(x.unsqueeze(0))
    return out.squeeze(0)


def run_experts(
    weights: Weights, x: torch.Tensor, logits: torch.Tensor, sizes: Tiles | None = None
) -> torch.Tensor:
    return experts(
        x, logits, weights.gate_up, weights.down, top_k=TOP_K, normalize=True, shared=1, sizes=sizes
    )


def run_ours(weights: Weights, x: torch.Tensor) -> torch.Tensor:
    return run_experts(weights, x, route(weights, x))


def chosen(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Each row's TOP_K experts by descending logit, their weights, and whether the choice is unambiguous.

    The choice is ambiguous if the first expert that was not chosen has the same logit as the last chosen one.
    """
    own = logits[:, :-1].float()
    found, order = own.sort(dim=-1, descending=True, stable=True)
    p = own.softmax(-1).gather(1, order[:, :TOP_K])
    return order[:, :TOP_K], p / p.sum(-1, keepdim=True), found[:, TOP_K - 1] > found[:, TOP_K]


def exact(weights: Weights, x: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """The block's result for these logits, with float32 products."""
    which, shares, _ = chosen(logits)
    out = torch.zeros(x.shape, device=x.device)
    for expert in range(len(weights.gate_up)):
        if expert < logits.shape[1] - 1:
            rows, column = (which == expert).nonzero(as_tuple=True)
            share = shares[rows, column]
        else:
            rows, share = torch.arange(len(x), device=x.device), logits[:, -1].float().sigmoid()
        if len(rows):
            gate, up = linear(x[rows].float(), weights.gate_up[expert].float()).chunk(2, -1)
            y = linear(silu(gate) * up, weights.down[expert].float())
            out[rows] += share[:, None] * y
    return out


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.float() - expected).norm() / expected.norm())


def sizes_of(rows: int, count: int) -> Iterator[int]:
    """Numbers of rows of a tile that are worth trying."""
    average = rows * TOP_K / count
    for size, least, most in ((16, 0, 48), (32, 3, 96), (64, 16, 400), (128, 64, 1 << 20)):
        if least <= average <= most:
            yield size


def candidates(rows: int, count: int) -> list[Tiles]:
    found = []
    for size in sizes_of(rows, count):
        first = Tiles(size, Tile(*GATE_UP[size][0]), Tile(*DOWN[size][0]))
        found.append(first)
        found += [replace(first, gate_up=Tile(*tile)) for tile in GATE_UP[size][1:]]
        found += [replace(first, down=Tile(*tile)) for tile in DOWN[size][1:]]
    return found


def compile_part(number: int, of: int) -> None:
    """Compiles every `of`-th candidate from `number` on, to fill Triton's cache on disk."""
    device = torch.device("cuda")
    weights = make_weights(16, device)
    every = {tiles: None for count in EXPERTS for rows in ROWS for tiles in candidates(rows, count)}
    x = torch.randn(32, HIDDEN, dtype=DTYPE, device=device)
    for tiles in list(every)[number::of]:
        run_experts(weights, x, route(weights, x), tiles)
    torch.cuda.synchronize()


def compile_all(processes: int) -> None:
    command = [sys.executable, "-m", "benchmarks.experts", "--compile"]
    running = [subprocess.Popen([*command, str(i), str(processes)]) for i in range(processes)]
    if max(process.wait() for process in running):
        raise SystemExit("a candidate can't be compiled")


def graph_us(clock: Clock, runs: Sequence[Callable[[], object]]) -> tuple[float, str]:
    """Microseconds of a call, and a mark if it could not be captured."""
    times = clock.measure(runs)
    found = times.get("graph_s", times["eager_s"])
    return found["median"] * 1e6, "" if "graph_s" in times else "*"


def main() -> None:
    parser = make_parser("experts", __doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--experts", type=int, nargs="+", default=EXPERTS)
    parser.add_argument("--tune", action="store_true", help="time the candidates")
    parser.add_argument("--kernels", action="store_true", help="time each kernel")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--compile", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.compile:
        compile_part(*options.compile)
        return
    device = torch.device("cuda")
    torch.backends.cuda.matmul.allow_tf32 = False
    if options.tune:
        compile_all(max(1, (os.cpu_count() or 2) - 2))
    clock = Clock(device, replays=5 if options.tune else 10)
    bandwidth, rate = clock.ceilings()
    print(
        f"{torch.cuda.get_device_name()}: copy {bandwidth / 1e12:.2f} TB/s, matmul {rate / 1e12:.0f} TFLOP/s"
    )
    with torch.inference_mode():
        for count in options.experts:
            layers = [make_weights(count, device) for _ in range(SETS.get(count, 2))]
            for rows in options.rows:
                measure(rows, count, layers, clock, bandwidth, rate, options)
            del layers
            torch.cuda.empty_cache()


def measure(
    rows: int,
    count: int,
    layers: list[Weights],
    clock: Clock,
    bandwidth: float,
    rate: float,
    options: argparse.Namespace,
) -> None:
    """Check and time the blocks of several layers with `rows` rows and `count` experts; print the results."""
    inputs = []
    for number in range(max(len(layers), 8 if rows == 1 else 4)):
        weights = layers[number % len(layers)]
        x = torch.randn(rows, HIDDEN, dtype=DTYPE, device=weights.router.device)
        inputs.append((weights, x, route(weights, x)))
    weights, x, logits = inputs[0]
    _, _, clear = chosen(logits)
    expected = exact(weights, x, logits)
    ours = error(run_ours(weights, x), expected)
    theirs = error(run_block("grouped_mm", weights, x)[clear], expected[clear])
    if not ours < WRONG:
        errors = f"the error is {ours:.1e}, that of transformers {theirs:.1e}"
        raise SystemExit(f"T={rows}, {count} experts: {errors}; valid: below {WRONG:.0e}")
    used = [len(torch.unique(chosen(logits)[0])) + 1 for _, _, logits in inputs]
    moved = sum(used) / len(used) * 3 * INNER * HIDDEN * 2 + 4 * rows * HIDDEN
    floor = max(moved / bandwidth, rows * (TOP_K + 1) * 6 * INNER * HIDDEN / rate) * 1e6
    op = graph_us(clock, [partial(run_experts, *each) for each in inputs])[0]
    line = (
        f"E={count:3} T={rows:5}: floor {floor:7.1f} | experts {op:7.1f} ({op / floor:.2f}) "
        f"| error {ours:.1e} ({theirs:.1e})"
    )
    if not options.no_peers and not options.tune:
        runs: dict[str, Callable[..., torch.Tensor]] = {
            "block": run_ours,
            "grouped_mm": partial(run_block, "grouped_mm"),
            "eager": partial(run_block, "eager"),
        }
        for name, run in runs.items():
            if name == "eager" and rows > 256:
                continue
            few = inputs[:2] if name == "eager" else inputs
            took, mark = graph_us(clock, [partial(run, weights, x) for weights, x, _ in few])
            line += f" | {name} {took:.1f}{mark}"
    print(line, flush=True)
    if options.kernels:
        print_kernels([partial(run_experts, *each) for each in inputs])
    if options.tune:
        print_candidates(rows, count, inputs, clock)


def print_candidates(rows: int, count: int, inputs: list[Any], clock: Clock) -> None:
    """Prints the eight fastest: microseconds, a tile's rows, and its other sizes for both products."""
    found = []
    for tiles in candidates(rows, count):
        took = graph_us(clock, [partial(run_experts, *each, tiles) for each in inputs])[0]
        found.append((took, tiles))
    found.sort(key=lambda one: one[0])
    print(f"    {rows * TOP_K / count:.1f} rows per expert")
    for took, tiles in found[:8]:
        first, second = tiles.gate_up, tiles.down
        shown = " | ".join(f"{t.columns:3},{t.depth:3},{t.warps},{t.stages}" for t in (first, second))
        print(f"    {took:8.1f}  {tiles.rows:3} | {shown}")


def print_kernels(runs: Sequence[Callable[[], object]]) -> None:
    """Prints each kernel's microseconds per run, by torch's profiler."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for run in runs:
            run()
        torch.cuda.synchronize()
    for event in profiler.key_averages():
        print(f"    {event.key[:40]:40} {event.device_time_total / len(runs):8.1f}")


if __name__ == "__main__":
    main()
