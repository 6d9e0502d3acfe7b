"""Timing the backends that fit on a device, so that `auto` takes the fastest; see `switchrail.times`."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

from switchrail.errors import BackendUnfitError
from switchrail.ops.backend import Backend
from switchrail.ops.batch import Phase
from switchrail.testing.conformance import Outcome, Setting, Subject, run_case, select
from switchrail.times import Machine, device_of

if TYPE_CHECKING:
    from switchrail._core import Layout
    from switchrail.platforms import Platform
    from switchrail.runtime import Runtime

HEAD_SIZES: Mapping[str, tuple[tuple[int, int] | None, ...]] = {
    "attention": ((64, 64), (128, 128), (256, 256)),
    "gated_delta": ((128, 128),),
    "kda": ((128, 128),),
    "lightning": ((128, 128),),
    "mamba2": ((128, 64),),
    "mla": ((576, 512),),
    "short_conv": (None,),
}
"""Of q and k, and of v, as models have them."""

HEADS: Mapping[str, Mapping[str, int]] = {
    "attention": {"heads": 32, "kv_heads": 8},
    "gated_delta": {"heads": 16, "value_heads": 32},
    "kda": {"heads": 32, "value_heads": 32},
    "lightning": {"heads": 32},
    "mamba2": {"heads": 64, "groups": 8},
    "mla": {"heads": 16},
    "short_conv": {"channels": 8192},
}
"""Sizes of the generators' calls on a GPU; on another device an eighth of them."""

SECONDS = 0.05
"""How long a backend is timed with a shape, and one call at least."""

_LEAST = 5


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One class of calls.

    Attributes:
        name: Its name.
        phase: Its phase.
        lengths: The rows of each sequence.
        past: Tokens in the cache before them.
    """

    name: str
    phase: Phase
    lengths: tuple[int, ...]
    past: int = 0


def shapes(large: bool) -> tuple[Shape, ...]:
    """The classes of calls: those of a GPU, or small ones."""
    scale = 1 if large else 16
    return (
        Shape(name="one long", phase="prefill", lengths=(8192 // scale,)),
        Shape(name="several", phase="prefill", lengths=(2048 // scale,) * 4),
        Shape(name="ragged", phase="prefill", lengths=(4000 // scale, 96 // scale, *(48 // scale,) * 16)),
        Shape(name="one", phase="decode", lengths=(1,), past=4096 // scale),
        Shape(name="some", phase="decode", lengths=(1,) * (32 if large else 8), past=2048 // scale),
        Shape(name="many", phase="decode", lengths=(1,) * (128 if large else 16), past=1024 // scale),
    )


@dataclass(frozen=True, kw_only=True)
class Timing:
    """What was found of one op in one phase, dtype and head size.

    Attributes:
        op: The op.
        phase: The phase.
        dtype: The dtype's name.
        head_size: Of q and k, and of v; None for an op without heads.
        nanoseconds: By shape, the median of a call by backend.
        left_out: Why a backend was not timed, by name.
    """

    op: str
    phase: str
    dtype: str
    head_size: tuple[int, int] | None
    nanoseconds: dict[str, dict[str, int]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    @property
    def typical(self) -> dict[str, int]:
        """The geometric mean over the shapes, by backend."""
        names = next(iter(self.nanoseconds.values()), {})
        return {
            name: round(
                math.exp(
                    sum(math.log(times[name]) for times in self.nanoseconds.values()) / len(self.nanoseconds)
                )
            )
            for name in names
        }

    def to_dict(self) -> dict[str, Any]:
        """As a measurement of the file."""
        return {
            "op": self.op,
            "phase": self.phase,
            "dtype": self.dtype,
            "head_size": None if self.head_size is None else list(self.head_size),
            "nanoseconds": self.typical,
            "shapes": self.nanoseconds,
            "left_out": self.left_out,
        }


def head_sizes_of(layout: Layout) -> dict[str, list[tuple[int, int] | None]]:
    """The head sizes of a model, by op."""
    found: dict[str, list[tuple[int, int] | None]] = {}
    for layer in layout.layers:
        for op in layer.ops:
            shape = layout.shape(layer.kind, op)
            size = None if op == "short_conv" else (shape["head_size_k"], shape["head_size_v"])
            if size not in found.setdefault(op, []):
                found[op].append(size)
    return found


def tune(
    runtime: Runtime,
    platform: Platform,
    *,
    ops: Sequence[str] = (),
    phases: Sequence[str] = (),
    dtypes: Sequence[str] = ("bfloat16",),
    head_sizes: Mapping[str, Sequence[tuple[int, int] | None]] = HEAD_SIZES,
    large: bool | None = None,
) -> Iterator[Timing]:
    """Times the backends of each op that fit.

    A backend of negative priority, which is never chosen unasked, is left alone; one that fails the
    conformance suite's first case is not timed.

    Args:
        runtime: Where they are registered.
        platform: Where they run.
        ops: Only these; all when empty.
        phases: Only these of prefill and decode; both when empty.
        dtypes: The dtypes of activations.
        head_sizes: The head sizes, by op.
        large: Whether calls are as large as on a GPU; None: on a GPU.
    """
    device = torch.device(platform.device)
    big = device.type == "cuda" if large is None else large
    for op in head_sizes:
        if ops and op not in ops:
            continue
        for dtype in dtypes:
            for size in head_sizes[op]:
                for phase in ("prefill", "decode"):
                    if phases and phase not in phases:
                        continue
                    timing = Timing(op=op, phase=phase, dtype=dtype, head_size=size)
                    backends = _fitting(runtime, platform, timing)
                    for shape in shapes(big):
                        if shape.phase == phase and backends:
                            timing.nanoseconds[shape.name] = {
                                name: _time(platform, backend, setting, shape, timing, big)
                                for name, (setting, backend) in backends.items()
                            }
                    yield timing


def machine(runtime: Runtime, platform: Platform, timings: Sequence[Timing]) -> Machine:
    """What the file keeps: with the versions that the times hold for."""
    installed = runtime._loader.packages()
    needed = {"switchrail", "torch"}
    for timing in timings:
        for name in timing.typical:
            registration = runtime.backend(timing.op, name)
            origin = registration.to_dict()["origin"]
            texts = [origin.get("distribution", ""), *registration.capabilities["packages"]]
            names = (re.match(r"[\w.-]*", text) for text in texts)
            needed |= {re.sub(r"[-_.]+", "-", name[0]).lower() for name in names if name}
    return {
        "device": device_of(platform),
        "packages": {name: installed[name] for name in sorted(needed) if name in installed},
        "measurements": [timing.to_dict() for timing in timings if timing.nanoseconds],
    }


def _fitting(runtime: Runtime, platform: Platform, timing: Timing) -> dict[str, tuple[Setting, Backend]]:
    found = {}
    for registration in runtime.backends(timing.op):
        name = registration.name
        if registration.priority < 0:
            continue
        subject = Subject.of(runtime, timing.op, name, platform)
        reason = _misfit(runtime, platform, timing, name)
        if reason is not None:
            timing.left_out[name] = reason
            continue
        selection = select(
            subject, device=platform.device, phases=(timing.phase,), dtypes=(timing.dtype,), quick=True
        )
        first = next((case for case in selection.cases if case.check.name == "ragged"), None)
        if first is None:
            timing.left_out[name] = "; ".join({left.reason for left in selection.left_out})
            continue
        outcome: Outcome = run_case(first)
        if outcome.status != "passed":
            timing.left_out[name] = f"it fails {first.id}: {outcome.message}"
            continue
        found[name] = (first.setting, first.setting.backend)
    return found


def _misfit(runtime: Runtime, platform: Platform, timing: Timing, name: str) -> str | None:
    try:
        runtime.resolve(
            timing.op,
            timing.phase,
            device=platform,
            dtype=timing.dtype,
            head_size=timing.head_size,
            preferences={timing.op: name},
        )
    except BackendUnfitError as error:
        return str(error).partition("\n")[0].partition(": ")[2]
    return None


def _time(
    platform: Platform, backend: Backend, setting: Setting, shape: Shape, timing: Timing, large: bool
) -> int:
    """The median time of a call in nanoseconds, of `SECONDS` of calls after two to warm up."""
    arguments: dict[str, Any] = {
        name: count if large else max(1, count // 8) for name, count in HEADS[timing.op].items()
    }
    if timing.op == "mla":
        arguments["absorbed"] = True
    if timing.head_size is not None:
        arguments |= setting.of_head_size(timing.head_size)
    if timing.op in ("attention", "mla"):
        arguments["kv_lengths"] = [length + shape.past for length in shape.lengths]
    call = setting.call(shape.lengths, **arguments)
    plan = backend.plan(call.phase, call.batch)
    named = {name: t for name, t in call.tensors.items() if name not in call.contract.positional}
    positional = [call.tensors[name] for name in call.contract.positional]
    method = getattr(backend, call.phase)

    def once() -> None:
        method(*positional, **named, **call.options, batch=call.batch, plan=plan)

    for _ in range(2):
        once()
    measure = _on_cuda if setting.device.type == "cuda" else _on_host
    times: list[float] = []
    began = time.perf_counter()
    while len(times) < _LEAST or time.perf_counter() - began < SECONDS:
        times.append(measure(once, platform))
    return max(1, round(median(times) * 1e9))


def _on_cuda(once: Callable[[], None], platform: Platform) -> float:
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    stream = torch.cuda.current_stream(platform.device)
    start.record(stream)
    once()
    stop.record(stream)
    stop.synchronize()
    milliseconds: float = start.elapsed_time(stop)
    return milliseconds * 1e-3


def _on_host(once: Callable[[], None], platform: Platform) -> float:
    began = time.perf_counter()
    once()
    platform.hardware.synchronize()
    return time.perf_counter() - began


__all__ = ["HEADS", "HEAD_SIZES", "SECONDS", "Shape", "Timing", "head_sizes_of", "machine", "shapes", "tune"]
