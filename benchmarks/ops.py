"""Verifies the Triton kernels on this machine's GPU, then times them.
    python benchmarks/ops.py                      # everything, a table
    python benchmarks/ops.py --op gated_delta --shape "N=16" --json times.json
Each op is first held against the float64 oracle on ragged inputs with the heads and head sizes that are
timed; a failure ends the run. Times are those of a captured CUDA graph, medians over its replays; one graph
holds enough calls on inputs of their own to leave nothing in the L2 cache (a decode step of gated_delta and
short_conv: 48 calls, as many as a model has layers). `host` is what a call costs the Python thread. The floor
is the larger of the least bytes over this run's copy bandwidth and the operations over this run's bf16 matmul
rate. Peers, each with our time over its: torch's SDPA on contiguous keys and values; an in-place `mul_` over
the states; and flash-linear-attention's Triton kernels where they are installed, bare: on states of the
batch's own, without the slots. What can't be captured is timed call by call (eager)."""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch
import triton
from switchrail.ops.backend import Backend
from switchrail.ops.batch import PagedBatch, StateBatch
from switchrail.testing import inputs
from switchrail.testing.compare import BOUNDS, verify
from switchrail_kernels.attention.triton import TritonAttention
from switchrail_kernels.gated_delta.triton import TritonGatedDelta
from switchrail_kernels.kda.triton import TritonKda
from switchrail_kernels.lightning.triton import TritonLightning
from switchrail_kernels.mamba2.triton import TritonMamba2
from switchrail_kernels.short_conv.triton import TritonShortConv

os.environ |= {"FLA_FLASH_QLA": "0", "FLA_TILELANG": "0"}  # else FLA calls other libraries that it finds
try:
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule, fused_recurrent_gated_delta_rule
    from fla.ops.kda import chunk_kda, fused_recurrent_kda
    from fla.ops.lightning_attn import chunk_lightning_attn
    from fla.ops.simple_gla import chunk_simple_gla
except ImportError:
    HAS_FLA = False
else:
    HAS_FLA = True

DTYPE = torch.bfloat16
DEVICE = torch.device("cuda")
L2_BYTES = 60 << 20
LAYERS = 48
HEADS, VALUE_HEADS, HEAD_SIZE = 16, 32, 128
CHANNELS, WIDTH = 2 * HEADS * HEAD_SIZE + VALUE_HEADS * HEAD_SIZE, 4
Q_HEADS, KV_HEADS, ATTENTION_SIZE, PAGE = 16, 2, 256, 64
KDA_HEADS, LIGHTNING_HEADS = 32, 64
MAMBA_HEADS, MAMBA_GROUPS, MAMBA_SIZE, MAMBA_STATE = 128, 8, 64, 128

Call = Callable[[], None]
Made = tuple[Call, dict[str, Call]]
"""A call, and the same of its peers."""


@dataclass(frozen=True)
class Case:
    """One line of the table: `calls` makes one call each on inputs of its own, which move `bytes` and compute
    `flops`."""

    op: str
    phase: str
    shape: str
    bytes: float
    flops: float
    make: Callable[[int], Made]
    copies: int = 0


def sequences(lengths: list[int]) -> dict[str, object]:
    starts = torch.zeros(len(lengths) + 1, dtype=torch.int32)
    starts[1:] = torch.tensor(lengths).cumsum(0)
    return {"cu_seqlens": starts.to(DEVICE), "seqlens": tuple(lengths)}


def state_batch(lengths: list[int]) -> StateBatch:
    slots = (torch.randperm(len(lengths)) + 1).to(DEVICE)
    started = torch.ones(len(lengths), dtype=torch.bool, device=DEVICE)
    return StateBatch(**sequences(lengths), read_slots=slots, write_slots=slots, has_initial_state=started)


def split(total: int, count: int) -> list[int]:
    return [total // count] * count


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=DTYPE, device=DEVICE)


def delta(op: str, lengths: list[int], phase: str, decays: bool = True) -> Callable[[int], Made]:
    heads, value_heads = (HEADS, VALUE_HEADS) if op == "gated_delta" else (KDA_HEADS, KDA_HEADS)
    backend = TritonGatedDelta() if op == "gated_delta" else TritonKda()
    shared: dict[str, Callable[[torch.Tensor], Made]] = {}

    def make(index: int) -> Made:
        rows = sum(lengths)
        torch.manual_seed(index)
        state = torch.randn(len(lengths) + 1, value_heads, HEAD_SIZE, HEAD_SIZE, device=DEVICE)
        if phase == "decode" and shared:  # the layers of a step differ in their states
            return shared["calls"](state)
        sizes = [heads * HEAD_SIZE, heads * HEAD_SIZE, value_heads * HEAD_SIZE]
        q, k, v = (t.unflatten(1, (-1, HEAD_SIZE)) for t in random(rows, sum(sizes)).split(sizes, dim=1))
        channels = [HEAD_SIZE] if op == "kda" else []
        g = -0.3 * torch.nn.functional.softplus(torch.randn(rows, value_heads, *channels, device=DEVICE))
        if not decays:
            g.zero_()
        beta = torch.rand(rows, value_heads, device=DEVICE).to(DTYPE)
        out = torch.full((rows, value_heads, HEAD_SIZE), math.nan, dtype=DTYPE, device=DEVICE)
        batch = state_batch(lengths)
        plan = backend.plan(phase, batch)
        method = getattr(backend, phase)
        options = {"scale": HEAD_SIZE**-0.5}
        arguments = {
            "g": g,
            "beta": beta,
            "out": out,
            "batch": batch,
            "plan": plan,
            "qk_l2norm": True,
            **options,
        }
        starts = batch.cu_seqlens.long()

        def calls(state: torch.Tensor) -> Made:
            peers: dict[str, Call] = {}
            if phase == "decode":
                peers["mul_"] = lambda: state[1:].mul_(0.999)
            if HAS_FLA:
                if phase == "decode":
                    fused = fused_recurrent_kda if op == "kda" else fused_recurrent_gated_delta_rule
                    peers["FLA"] = fla_call(fused, [q, k, v], starts, state[1:], g=g, beta=beta, **options)
                else:
                    chunked = chunk_kda if op == "kda" else chunk_gated_delta_rule
                    peers["FLA"] = fla_call(chunked, [q, k, v], starts, state[1:], g=g, beta=beta, **options)
            return lambda: method(q, k, v, **arguments, state=state), peers

        shared["calls"] = calls
        return calls(state)

    return make


def fla_call(
    function: Callable, packed: list[torch.Tensor], starts: torch.Tensor, state: torch.Tensor, **arguments
) -> Call:
    """A call of FLA's function on packed sequences."""
    for name in ("g", "beta"):
        if name in arguments:
            arguments[name] = arguments[name][None]
    if "beta" in arguments:
        arguments["use_qk_l2norm_in_kernel"] = True
    packed = [tensor.contiguous()[None] for tensor in packed]

    def call() -> None:
        with torch.inference_mode():
            function(*packed, **arguments, initial_state=state, output_final_state=True, cu_seqlens=starts)

    return call


def lightning(lengths: list[int], phase: str) -> Callable[[int], Made]:
    def make(index: int) -> Made:
        rows, width = sum(lengths), LIGHTNING_HEADS * HEAD_SIZE
        fused = random(rows, 3 * width)
        q, k, v = (t.unflatten(1, (-1, HEAD_SIZE)) for t in fused.split(width, dim=1))
        g = -0.3 * torch.rand(LIGHTNING_HEADS, device=DEVICE)
        state = torch.randn(len(lengths) + 1, LIGHTNING_HEADS, HEAD_SIZE, HEAD_SIZE, device=DEVICE)
        out = torch.full((rows, LIGHTNING_HEADS, HEAD_SIZE), math.nan, dtype=DTYPE, device=DEVICE)
        batch = state_batch(lengths)
        backend = TritonLightning()
        arguments = {"g": g, "state": state, "out": out, "batch": batch, "plan": backend.plan(phase, batch)}
        method = getattr(backend, phase)
        peers: dict[str, Call] = {}
        if phase == "decode":
            peers["mul_"] = lambda: state[1:].mul_(0.999)
        elif HAS_FLA:
            starts = batch.cu_seqlens.long()
            peers["FLA (eager)"] = fla_call(
                chunk_lightning_attn, [q, k, v], starts, state[1:], layer_idx=1, num_layers=4
            )
        return (lambda: method(q, k, v, **arguments, scale=HEAD_SIZE**-0.5)), peers

    return make


def mamba2(lengths: list[int], phase: str) -> Callable[[int], Made]:
    def make(index: int) -> Made:
        rows = sum(lengths)
        sizes = [MAMBA_HEADS * MAMBA_SIZE, MAMBA_GROUPS * MAMBA_STATE, MAMBA_GROUPS * MAMBA_STATE]
        x, b, c = random(rows, sum(sizes)).split(sizes, dim=1)
        x, b, c = x.unflatten(1, (MAMBA_HEADS, -1)), *(t.unflatten(1, (MAMBA_GROUPS, -1)) for t in (b, c))
        state = torch.randn(len(lengths) + 1, MAMBA_HEADS, MAMBA_SIZE, MAMBA_STATE, device=DEVICE)
        batch = state_batch(lengths)
        backend = TritonMamba2()
        method = getattr(backend, phase)
        arguments = {
            "dt": random(rows, MAMBA_HEADS),
            "A": -torch.rand(MAMBA_HEADS, device=DEVICE),
            "D": torch.randn(MAMBA_HEADS, device=DEVICE),
            "dt_bias": torch.randn(MAMBA_HEADS, device=DEVICE),
            "out": torch.full((rows, MAMBA_HEADS, MAMBA_SIZE), math.nan, dtype=DTYPE, device=DEVICE),
            "state": state,
            "batch": batch,
            "plan": backend.plan(phase, batch),
        }
        peers: dict[str, Call] = {}
        if phase == "decode":
            peers["mul_"] = lambda: state[1:].mul_(0.999)
        elif HAS_FLA:  # groups as heads, time steps as gates: without what leads there
            heads = [t.repeat_interleave(MAMBA_HEADS // MAMBA_GROUPS, dim=1) for t in (c, b)]
            gates = -torch.rand(rows, MAMBA_HEADS, device=DEVICE)
            starts = batch.cu_seqlens.long()
            states = state[1:].transpose(2, 3).contiguous()
            peers["FLA simple_gla (eager)"] = fla_call(chunk_simple_gla, [*heads, x], starts, states, g=gates)
        options = {"dt_softplus": True, "dt_min": 0.0, "dt_max": math.inf}
        return (lambda: method(x, b, c, **arguments, **options)), peers

    return make


def short_conv(lengths: list[int], phase: str) -> Callable[[int], Made]:
    def make(index: int) -> Made:
        rows = sum(lengths)
        x, out = random(rows, CHANNELS), torch.full((rows, CHANNELS), math.nan, dtype=DTYPE, device=DEVICE)
        weight = random(CHANNELS, WIDTH)
        state = random(len(lengths) + 1, WIDTH - 1, CHANNELS).transpose(1, 2)
        batch = state_batch(lengths)
        backend = TritonShortConv()
        plan = backend.plan(phase, batch)
        method = getattr(backend, phase)
        arguments = {"bias": None, "state": state, "out": out, "batch": batch, "plan": plan}
        return (lambda: method(x, weight, **arguments, activation="silu")), {}

    return make


def attention(lengths: list[int], kv_lengths: list[int], phase: str) -> Callable[[int], Made]:
    def make(index: int) -> Made:
        counts = [-(-kv // PAGE) for kv in kv_lengths]
        order = (torch.randperm(sum(counts)) + 1).int()
        table = torch.zeros(len(lengths), max(counts), dtype=torch.int32)
        for n, pages in enumerate(order.split(counts)):
            table[n, : len(pages)] = pages
        k_cache = random(sum(counts) + 1, PAGE, KV_HEADS, ATTENTION_SIZE)
        v_cache = torch.randn_like(k_cache)
        q = random(sum(lengths), Q_HEADS, ATTENTION_SIZE)
        out = torch.full_like(q, math.nan)
        batch = PagedBatch(
            **sequences(lengths),
            page_table=table.to(DEVICE),
            kv_lens=torch.tensor(kv_lengths, dtype=torch.int32, device=DEVICE),
            kv_seqlens=tuple(kv_lengths),
        )
        backend = TritonAttention()
        plan = backend.plan(phase, batch)
        method = getattr(backend, phase)
        scale = ATTENTION_SIZE**-0.5
        peers: dict[str, Call] = {}
        if lengths == kv_lengths and len(lengths) == 1:
            dense = [t.transpose(0, 1)[None] for t in (q, *(c[1:].flatten(0, 1) for c in (k_cache, v_cache)))]
            sdpa = torch.nn.functional.scaled_dot_product_attention
            peers["SDPA, contiguous"] = partial(sdpa, *dense, is_causal=True, scale=scale, enable_gqa=True)
        return (lambda: method(q, k_cache, v_cache, out=out, batch=batch, plan=plan, scale=scale)), peers

    return make


def cases() -> Iterator[Case]:
    state_bytes = VALUE_HEADS * HEAD_SIZE * HEAD_SIZE * 4
    row_bytes = (CHANNELS + VALUE_HEADS * HEAD_SIZE) * 2 + VALUE_HEADS * 6
    for rows, count, decays in (
        (2048, 1, True),
        (8192, 1, True),
        (8192, 8, True),
        (32768, 1, True),
        (32768, 1, False),
        (32768, 8, True),
        (32768, 16, True),
    ):
        yield Case(
            "gated_delta",
            "prefill",
            f"T={rows} N={count}" + ("" if decays else " g=0"),
            rows * row_bytes + 2 * count * state_bytes,
            rows * VALUE_HEADS * 180e3,
            delta("gated_delta", split(rows, count), "prefill", decays),
        )
    for count in (1, 8, 32, 128, 256):
        yield Case(
            "gated_delta",
            "decode",
            f"B={count}",
            count * (row_bytes + 2 * state_bytes),
            0,
            delta("gated_delta", [1] * count, "decode"),
            copies=LAYERS,
        )
    kda_bytes = KDA_HEADS * (HEAD_SIZE * (4 * 2 + 4) + 2)
    for rows, count in ((8192, 1), (8192, 8), (32768, 1), (32768, 16)):
        moved = rows * kda_bytes + 2 * count * state_bytes
        make = delta("kda", split(rows, count), "prefill")
        yield Case("kda", "prefill", f"T={rows} N={count}", moved, rows * KDA_HEADS * 180e3, make)
    for count in (1, 32, 256):
        moved = count * (kda_bytes + 2 * state_bytes)
        make = delta("kda", [1] * count, "decode")
        yield Case("kda", "decode", f"B={count}", moved, 0, make, copies=LAYERS)
    wide_bytes = LIGHTNING_HEADS * HEAD_SIZE * 4 * 2
    for rows, count in ((8192, 1), (32768, 1), (32768, 16)):
        moved = rows * wide_bytes + 4 * count * state_bytes
        make = lightning(split(rows, count), "prefill")
        yield Case("lightning", "prefill", f"T={rows} N={count}", moved, rows * LIGHTNING_HEADS * 98e3, make)
    for count in (1, 32):
        moved = count * (wide_bytes + 4 * state_bytes)
        make = lightning([1] * count, "decode")
        yield Case("lightning", "decode", f"B={count}", moved, 0, make, copies=LAYERS // 2)
    mamba_bytes = 2 * (2 * MAMBA_HEADS * MAMBA_SIZE + 2 * MAMBA_GROUPS * MAMBA_STATE + MAMBA_HEADS)
    mamba_state = MAMBA_HEADS * MAMBA_SIZE * MAMBA_STATE * 4
    for rows, count in ((8192, 1), (32768, 16)):
        moved = rows * mamba_bytes + 2 * count * mamba_state
        make = mamba2(split(rows, count), "prefill")
        yield Case("mamba2", "prefill", f"T={rows} N={count}", moved, rows * MAMBA_HEADS * 57e3, make)
    for count in (1, 32):
        moved = count * (mamba_bytes + 2 * mamba_state)
        make = mamba2([1] * count, "decode")
        yield Case("mamba2", "decode", f"B={count}", moved, 0, make, copies=LAYERS // 2)
    for rows, count in ((2048, 1), (32768, 1), (32768, 16)):
        yield Case(
            "short_conv",
            "prefill",
            f"T={rows} N={count}",
            rows * CHANNELS * 4,
            0,
            short_conv(split(rows, count), "prefill"),
        )
    for count in (1, 32, 256):
        step = count * CHANNELS * 2 * (2 + 2 * (WIDTH - 1))
        yield Case(
            "short_conv", "decode", f"B={count}", step, 0, short_conv([1] * count, "decode"), copies=LAYERS
        )
    for rows, count in ((8192, 1), (32768, 16)):
        flops = count * (rows // count) ** 2 * 2 * Q_HEADS * ATTENTION_SIZE
        moved = rows * 4 * (Q_HEADS + KV_HEADS) * ATTENTION_SIZE
        lengths = split(rows, count)
        yield Case(
            "attention",
            "prefill",
            f"T={rows} N={count}",
            moved,
            flops,
            attention(lengths, lengths, "prefill"),
        )
    for count, kv in ((1, 8192), (1, 32768), (32, 8192), (128, 1024)):
        moved = count * kv * 4 * KV_HEADS * ATTENTION_SIZE
        flops = count * kv * 4 * Q_HEADS * ATTENTION_SIZE
        yield Case(
            "attention",
            "decode",
            f"B={count} of {kv}",
            moved,
            flops,
            attention([1] * count, [kv] * count, "decode"),
        )


def check(op: str) -> str:
    """Holds both phases of an op against the oracle, with the sizes that are timed.
    Raises:
        AssertionError: The error is beyond the bound.
    """
    common = {"dtype": DTYPE, "device": DEVICE}
    ragged = [1, 0, 200, 64, 63]
    calls: list[tuple[Backend, inputs.Call]] = []
    if op == "gated_delta":
        sizes = {"heads": HEADS, "value_heads": VALUE_HEADS, "key_size": HEAD_SIZE, "value_size": HEAD_SIZE}
        for gate in ("decaying", "one"):
            calls.append((TritonGatedDelta(), inputs.gated_delta_call(ragged, gate=gate, **sizes, **common)))
        calls.append(
            (TritonGatedDelta(), inputs.gated_delta_call([1] * 9, phase="decode", **sizes, **common))
        )
    elif op in ("kda", "lightning", "mamba2"):
        backend, make, sizes = {
            "kda": (
                TritonKda(),
                inputs.kda_call,
                {
                    "heads": KDA_HEADS,
                    "value_heads": KDA_HEADS,
                    "key_size": HEAD_SIZE,
                    "value_size": HEAD_SIZE,
                },
            ),
            "lightning": (
                TritonLightning(),
                inputs.lightning_call,
                {"heads": LIGHTNING_HEADS, "key_size": HEAD_SIZE, "value_size": HEAD_SIZE},
            ),
            "mamba2": (
                TritonMamba2(),
                inputs.mamba2_call,
                {
                    "heads": MAMBA_HEADS,
                    "groups": MAMBA_GROUPS,
                    "head_size": MAMBA_SIZE,
                    "state_size": MAMBA_STATE,
                },
            ),
        }[op]
        for phase, lengths in (("prefill", ragged), ("decode", [1] * 9)):
            calls.append((backend, make(lengths, phase=phase, **sizes, **common)))
    elif op == "short_conv":
        for phase, lengths in (("prefill", ragged), ("decode", [1] * 9)):
            call = inputs.short_conv_call(lengths, phase=phase, channels=CHANNELS, width=WIDTH, **common)
            calls.append((TritonShortConv(), call))
    else:
        sizes = {"heads": Q_HEADS, "kv_heads": KV_HEADS, "head_size": ATTENTION_SIZE, "page": PAGE}
        for phase, lengths, kv in (
            ("prefill", ragged, [1, 0, 555, 64, 100]),
            ("decode", [1] * 3, [1, 700, 3000]),
        ):
            call = inputs.attention_call(lengths, kv_lengths=kv, phase=phase, **sizes, **common)
            calls.append((TritonAttention(), call))
    return ", ".join(f"{call.phase} {verify(backend, call)}" for backend, call in calls)


def time_graph(calls: list[Callable[[], None]], replays: int) -> list[float]:
    """Seconds of each replay of a graph of all calls, divided by their number."""
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    for _ in range(3):
        graph.replay()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(replays + 1)]
    events[0].record()
    for event in events[1:]:
        graph.replay()
        event.record()
    torch.cuda.synchronize()
    return [a.elapsed_time(b) / 1e3 / len(calls) for a, b in pairwise(events)]


def time_eager(calls: list[Callable[[], None]], replays: int) -> list[float]:
    """Seconds of each call, the host's part included where it is the slower."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(replays + 1)]
    events[0].record()
    for number, event in enumerate(events[1:]):
        calls[number % len(calls)]()
        event.record()
    torch.cuda.synchronize()
    return [a.elapsed_time(b) / 1e3 for a, b in pairwise(events)]


def time_host(call: Callable[[], None], repeats: int = 10, calls: int = 16) -> float:
    """Seconds that a call takes of the Python thread, the median over rows of calls."""
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        times.append((time.perf_counter() - start) / calls)
    torch.cuda.synchronize()
    return statistics.median(times)


def ceilings() -> tuple[float, float]:
    """This run's copy bandwidth in bytes a second, read and written, and bf16 matmul rate in operations a
    second."""
    source = random(1 << 30)
    target = torch.empty_like(source)
    events = [torch.cuda.Event(enable_timing=True) for _ in range(12)]
    for event in events:  # not in a graph, where a copy is a slower kind of node
        target.copy_(source)
        event.record()
    torch.cuda.synchronize()
    seconds = statistics.median(a.elapsed_time(b) / 1e3 for a, b in pairwise(events))
    bandwidth = 2 * source.numel() * source.element_size() / seconds
    del source, target
    a, b = random(8192, 8192), random(8192, 8192)
    c = torch.empty_like(a)
    rate = 2 * 8192**3 / statistics.median(time_graph([lambda: torch.matmul(a, b, out=c)], 10))
    return bandwidth, rate


def measure(case: Case, bandwidth: float, rate: float) -> dict[str, object]:
    copies = case.copies or min(64, max(1, math.ceil(3 * L2_BYTES / case.bytes)))
    made = [case.make(index) for index in range(copies)]
    replays = 10 if case.copies else 20
    times = time_graph([call for call, _ in made], replays)
    floor = max(case.bytes / bandwidth, case.flops / rate)
    result: dict[str, object] = {
        "op": case.op,
        "phase": case.phase,
        "shape": case.shape,
        "graph_s": statistics.median(times),
        "graph_quantiles_s": statistics.quantiles(times, n=10),
        "host_s": time_host(made[0][0]),
        "floor_s": floor,
        "bytes_per_s": case.bytes / statistics.median(times),
        "flops_per_s": case.flops / statistics.median(times),
    }
    for name in made[0][1]:
        calls = [peers[name] for _, peers in made]
        clock = time_eager if name.endswith("(eager)") else time_graph
        seconds = statistics.median(clock(calls, replays))
        result.setdefault("peers_s", {})[name] = seconds
    return result


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ops = ("gated_delta", "kda", "lightning", "mamba2", "short_conv", "attention")
    parser.add_argument("--op", choices=ops, action="append", help="only this op; repeatable")
    parser.add_argument("--shape", default="", help="only shapes whose text contains this")
    parser.add_argument("--json", type=Path, help="where to write the results")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("benchmarks/ops.py: needs a CUDA device; torch sees none", file=sys.stderr)
        return 2
    chosen = options.op or ops
    for op in chosen:
        print(f"{op}: against the oracle (norm / worst row; bound {BOUNDS[DTYPE]}): {check(op)}", flush=True)
    bandwidth, rate = ceilings()
    document = {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "device": torch.cuda.get_device_name(),
        "versions": {
            "torch": torch.__version__,
            "triton": triton.__version__,
            "python": sys.version.split()[0],
        },
        "copy_bytes_per_s": bandwidth,
        "matmul_flops_per_s": rate,
        "results": [],
    }
    print(f"{document['device']}, {document['versions']}")
    print(f"copy {bandwidth / 1e12:.2f} TB/s, matmul {rate / 1e12:.0f} TFLOP/s")
    print(f"{'op':12}{'phase':9}{'shape':22}{'us':>9}{'floor':>9}", end="")
    print(f"{'ratio':>7}{'GB/s':>7}{'TFLOP/s':>9}{'host us':>9}  peer")
    for case in cases():
        if case.op not in chosen or options.shape not in case.shape:
            continue
        r = measure(case, bandwidth, rate)
        document["results"].append(r)
        peer = ", ".join(
            f"{name} {seconds * 1e6:.1f} ({r['graph_s'] / seconds:.2f})"
            for name, seconds in r.get("peers_s", {}).items()
        )
        print(
            f"{case.op:12}{case.phase:9}{case.shape:22}{r['graph_s'] * 1e6:9.1f}{r['floor_s'] * 1e6:9.1f}"
            f"{r['graph_s'] / r['floor_s']:7.2f}{r['bytes_per_s'] / 1e9:7.0f}{r['flops_per_s'] / 1e12:9.0f}"
            f"{r['host_s'] * 1e6:9.1f}  {peer}",
            flush=True,
        )
        torch.cuda.empty_cache()
    if options.json:
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
