"""Cost of dispatching a layer's call to its backend, compared with calling the backend directly.

Measures two dispatchers for layouts of 48 and 320 layers, with full attention in every fourth layer. One is
Switchrail's lookup in a route plan. The other is equivalent to the code path of SGLang's hybrid backend:
generic arguments, checks of the batch's mode, and two scans of a list for the layer id. Each must dispatch
all layers correctly before it is timed. To check the equivalence, the ratio of the second dispatcher's times
for the two layouts must match that of SGLang's real backend.

Then measures decode steps of 48 layers. The times per layer are those of

- a plain call by keyword,
- a call object with the same arguments that is made and run without a dispatcher,
- such a call object that is made and dispatched,
- the planning of the step.

    python benchmarks/dispatch.py [--json FILE]

The exit status is 1 if a bound is exceeded.
"""

from __future__ import annotations

import argparse
import enum
import json
import statistics
import sys
import time
import timeit
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import switchrail.testing
import torch
from rich.console import Console
from rich.table import Table
from switchrail.dispatch import Dispatcher, Part
from switchrail.ops import (
    AttentionBackend,
    GatedDeltaBackend,
    GatedDeltaCall,
    GatedDeltaLayer,
    StateBatch,
    make_call,
)

CALLS, ROUNDS = 2_000, 101
SIZES = (48, 320)
INTERVAL = 4
SGLANG = {48: 1196, 320: 2080}
"""Nanoseconds of a linear layer's call through SGLang 0.5.23's hybrid backend, by number of layers. Measured
on another machine."""

BOUNDS = {"overhead_ratio": 0.1, "equivalence": 0.2, "growth": 0.1}
"""The largest allowed values.

- `overhead_ratio`: our overhead relative to the other dispatcher's.
- `equivalence`: how far the ratio of the other dispatcher's times, with 320 and with 48 layers, is from that
  of SGLang, as a fraction.
- `growth`: how much our lookup's time changes from 48 to 320 layers, as a fraction.
"""

FORMS = {
    "direct": "direct",
    "lookup": "by id",
    "by_keyword": "keyw.",
    "by_object": "obj.",
    "listed_direct": "direct*",
    "listed": "listed*",
}
"""The statements of a `Case`, with their titles in the table."""


def is_full(layer: int) -> bool:
    return layer % INTERVAL == INTERVAL - 1


class Linear(GatedDeltaBackend):
    """A backend whose calls return its name and the plan."""

    def plan(self, phase, batch, bounds=None):
        return phase

    def run(self, call, batch, plan):
        return "linear", plan


class Full(AttentionBackend):
    """A backend whose calls return its name and the plan."""

    def plan(self, phase, batch, bounds=None):
        return phase

    def run(self, call, batch, plan):
        return "full", plan


class Mode(enum.IntEnum):
    """The kinds of steps that a hybrid backend distinguishes."""

    EXTEND = 1
    DECODE = 2
    MIXED = 3
    IDLE = 4

    def is_idle(self) -> bool:
        return self == Mode.IDLE

    def is_decode(self) -> bool:
        return self == Mode.DECODE


class ListedLinear:
    """A linear backend's two methods, with the generic arguments that the dispatcher needs."""

    def forward_decode(self, q, k, v, layer, forward_batch, save_kv_cache=True, **kwargs):
        return "linear decode", layer.layer_id, kwargs

    def forward_extend(self, q, k, v, layer, forward_batch, save_kv_cache=True, **kwargs):
        return "linear prefill", layer.layer_id, kwargs


class ListedFull:
    """A softmax backend's two methods."""

    def forward_decode(self, q, k, v, layer, forward_batch, save_kv_cache=True, **kwargs):
        return "full decode", layer.layer_id, q, k, v

    def forward_extend(self, q, k, v, layer, forward_batch, save_kv_cache=True, **kwargs):
        return "full prefill", layer.layer_id, q, k, v


class ListedDispatch:
    """Dispatches between two backends by a list of the first one's layers."""

    def __init__(self, full: ListedFull, linear: ListedLinear, full_layers: list[int]) -> None:
        self.full = full
        self.linear = linear
        self.full_layers = full_layers

    def forward(
        self,
        q=None,
        k=None,
        v=None,
        layer=None,
        forward_batch=None,
        save_kv_cache=True,
        **kwargs,
    ):
        layer_id = layer.layer_id if layer else kwargs["layer_id"]
        is_linear = layer_id not in self.full_layers
        if forward_batch.forward_mode.is_idle():
            return kwargs["mixed_qkv"] if is_linear else q
        if forward_batch.forward_mode.is_decode():
            return self.forward_decode(q, k, v, layer, forward_batch, save_kv_cache, **kwargs)
        return self.forward_extend(q, k, v, layer, forward_batch, save_kv_cache, **kwargs)

    def forward_decode(self, q, k, v, layer, forward_batch, save_kv_cache=True, **kwargs):
        layer_id = layer.layer_id if layer else kwargs["layer_id"]
        if layer_id in self.full_layers:
            return self.full.forward_decode(q, k, v, layer, forward_batch, save_kv_cache, **kwargs)
        return self.linear.forward_decode(q, k, v, layer, forward_batch, save_kv_cache, **kwargs)

    def forward_extend(self, q, k, v, layer, forward_batch, save_kv_cache=True, **kwargs):
        layer_id = layer.layer_id if layer else kwargs["layer_id"]
        if layer_id in self.full_layers:
            return self.full.forward_extend(q, k, v, layer, forward_batch, save_kv_cache, **kwargs)
        return self.linear.forward_extend(q, k, v, layer, forward_batch, save_kv_cache, **kwargs)


@dataclass(frozen=True)
class Case:
    """One layer's decode call in each form, as Python statements over `names`."""

    layers: int
    layer: int
    direct: str
    lookup: str
    by_keyword: str
    by_object: str
    listed_direct: str
    listed: str
    names: dict[str, Any]


LISTED_LINEAR = "layer=layer, forward_batch=batch, mixed_qkv=x, a=x, b=x"
LISTED_FULL = "layer=layer, forward_batch=batch"


def make_case(layers: int, layer: int) -> Case:
    kinds = ["full_attention" if is_full(index) else "gated_delta" for index in range(layers)]
    with switchrail.testing.isolated() as runtime:
        runtime.register("linear", Linear, op="gated_delta")
        runtime.register("full", Full, op="attention")
        layout = switchrail.Layout.from_kinds("bench", kinds)
        plan = runtime.bind(runtime.plan(layout, device="cpu", dtype="float32"))
    full, linear = ListedFull(), ListedLinear()
    dispatch = ListedDispatch(full, linear, [index for index in range(layers) if is_full(index)])
    batch = SimpleNamespace(forward_mode=Mode.DECODE)
    check(plan, dispatch, kinds)

    op = "attention" if is_full(layer) else "gated_delta"
    listed = f"q=x, k=x, v=x, {LISTED_FULL}" if is_full(layer) else LISTED_LINEAR
    listed_direct = f"x, x, x, {LISTED_FULL}" if is_full(layer) else f"None, None, None, {LISTED_LINEAR}"
    return Case(
        layers=layers,
        layer=layer,
        direct="run(call, batch, None)",
        lookup=f"lookup({op!r}, 'decode', layer_id)(call, batch, None)",
        by_keyword=f"lookup({op!r}, 'decode', layer_id=layer_id)(call, batch, None)",
        by_object=f"lookup({op!r}, 'decode', layer=layer)(call, batch, None)",
        listed_direct=f"listed_call({listed_direct})",
        listed=f"forward({listed})",
        names={
            "run": plan.lookup(op, "decode", layer),
            "call": object(),
            "lookup": plan.lookup,
            "layer_id": layer,
            "layer": SimpleNamespace(layer_id=layer),
            "listed_call": full.forward_decode if is_full(layer) else linear.forward_decode,
            "forward": dispatch.forward,
            "batch": batch,
            "x": object(),
        },
    )


def check(plan: switchrail.BoundPlan, dispatch: ListedDispatch, kinds: list[str]) -> None:
    """Calls each layer in both phases through both dispatchers, and checks which backend it reaches."""
    for layer, kind in enumerate(kinds):
        op, name = ("attention", "full") if kind == "full_attention" else ("gated_delta", "linear")
        for phase, mode in (("prefill", Mode.EXTEND), ("decode", Mode.DECODE)):
            given = {"q": 1, "k": 2, "v": 3, "mixed_qkv": 4, "a": 5, "b": 6}
            batch = SimpleNamespace(forward_mode=mode)
            reached = dispatch.forward(layer=SimpleNamespace(layer_id=layer), forward_batch=batch, **given)
            passed = (layer, 1, 2, 3) if name == "full" else (layer, {"mixed_qkv": 4, "a": 5, "b": 6})
            assert reached == (f"{name} {phase}", *passed)
            by_id = plan.lookup(op, phase, layer)
            assert by_id(None, None, phase) == (name, phase)
            assert plan.lookup(op, phase, layer=SimpleNamespace(layer_id=layer)) is by_id


def measure(cases: dict[str, Case]) -> dict[str, dict[str, float]]:
    """Median nanoseconds of CPU time of each statement; the statements alternate."""
    timers = {
        (name, form): timeit.Timer(getattr(case, form), timer=time.thread_time, globals=case.names)
        for name, case in cases.items()
        for form in FORMS
    }
    times: dict[tuple[str, str], list[float]] = {key: [] for key in timers}
    for _ in range(ROUNDS):
        for key, timer in timers.items():
            times[key].append(timer.timeit(CALLS) / CALLS * 1e9)
    found: dict[str, dict[str, float]] = {name: {} for name in cases}
    for (name, form), values in times.items():
        found[name][form] = statistics.median(values)
    return found


def keywords(q, k, v, *, g, beta, state, out, batch, plan, scale, qk_l2norm):
    """Stands for a backend that takes the arguments of a call by keyword."""


def measure_steps(layers: int = 48) -> dict[str, float]:
    """Least nanoseconds of CPU time per layer, over rounds of whole steps."""
    x = torch.zeros(1)
    with switchrail.testing.isolated() as runtime:
        runtime.register("linear", Linear, op="gated_delta")
        layout = switchrail.Layout.from_kinds("bench", ["gated_delta"] * layers)
        dispatcher = Dispatcher(
            runtime.bind(runtime.plan(layout, device="cpu", dtype="float32")), ["gated_delta"]
        )
    state = torch.zeros(2, 1, 1, 1)
    halves = [GatedDeltaLayer(state=state, scale=1.0, qk_l2norm=True) for _ in range(layers)]
    for index, half in enumerate(halves):
        dispatcher.add(index, half)
    states = StateBatch(cu_seqlens=x, seqlens=(1,), read_slots=x, write_slots=x, has_initial_state=x)
    parts = [Part(phase="decode", rows=slice(0, 1), states=states)]
    prepared = dispatcher.prepare(parts)
    run = Linear().run

    def plain_call() -> None:
        for _ in halves:
            keywords(x, x, x, g=x, beta=x, state=x, out=x, batch=x, plan=None, scale=1.0, qk_l2norm=True)

    def call_object() -> None:
        for half in halves:
            run(make_call(GatedDeltaCall, (half, x, x, x, x, x, x)), states, None)

    def dispatched_call_object() -> None:
        with dispatcher.running(prepared):
            for half in halves:
                dispatcher.dispatch(make_call(GatedDeltaCall, (half, x, x, x, x, x, x)))

    def planning() -> None:
        dispatcher.prepare(parts)

    found: dict[str, float] = {}
    for _ in range(ROUNDS):
        for step in (plain_call, call_object, dispatched_call_object, planning):
            took = timeit.timeit(step, timer=time.thread_time, number=20) / 20 / layers * 1e9
            found[step.__name__] = min(took, found.get(step.__name__, took))
    return found


def judge(rows: dict[str, dict[str, float]]) -> dict[str, dict[str, Any]]:
    """Each bound with the measured value."""
    small, large = (rows[f"linear of {size}"] for size in SIZES)
    ratio, real = large["listed"] / small["listed"], SGLANG[320] / SGLANG[48]
    worst = max(
        (row["lookup"] - row["direct"]) / (row["listed"] - row["listed_direct"]) for row in rows.values()
    )
    found = {
        "equivalence": abs(ratio / real - 1),
        "overhead_ratio": worst,
        "growth": abs(large["lookup"] / small["lookup"] - 1),
    }
    return {
        name: {"found": value, "bound": BOUNDS[name], "holds": value <= BOUNDS[name]}
        for name, value in found.items()
    }


def show(rows: dict[str, dict[str, float]], bounds: dict[str, dict[str, Any]]) -> None:
    console = Console()
    title = f"CPython {sys.version.split()[0]}: ns of CPU time a call, median of {ROUNDS}"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("layer", no_wrap=True)
    for title in (*FORMS.values(), "over", "over*", "ratio"):
        table.add_column(title, justify="right")
    for name, row in rows.items():
        ours, its = row["lookup"] - row["direct"], row["listed"] - row["listed_direct"]
        cells = [f"{row[form]:.0f}" for form in FORMS]
        table.add_row(name, *cells, f"{ours:.0f}", f"{its:.0f}", f"{ours / its:.3f}")
    console.print(table)
    console.print("over: by id minus direct; *: the equivalent of SGLang's dispatcher; ratio: over to over*")
    for name, bound in bounds.items():
        verdict = "holds" if bound["holds"] else "[bold red]does not hold[/]"
        console.print(f"{name}: {bound['found']:.3f}, at most {bound['bound']}: {verdict}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the results")
    options = parser.parse_args()
    cases = {}
    for size in SIZES:
        cases[f"linear of {size}"] = make_case(size, size - 2)
        cases[f"full of {size}"] = make_case(size, size - 1)
    rows = measure(cases)
    steps = measure_steps()
    bounds = judge(rows)
    show(rows, bounds)
    listed = ", ".join(f"{name.replace('_', ' ')} {value:.0f}" for name, value in steps.items())
    print(f"ns per layer, in steps of 48 layers: {listed}")
    if options.json:
        document = {
            "python": sys.version.split()[0],
            "unit": "ns",
            "rows": rows,
            "steps": steps,
            "bounds": bounds,
        }
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0 if all(bound["holds"] for bound in bounds.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
