"""Times the fitting backends over a grid of batches."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import shorten
from typing import TYPE_CHECKING, Any, get_args

import torch

from switchrail._core import LINEAR_OPS, load_of
from switchrail.engine.options import options_on
from switchrail.errors import BackendUnfitError
from switchrail.ops.backend import AnyBackend
from switchrail.ops.batch import Phase, VerifyBatch
from switchrail.testing.conformance import Outcome, Setting, Subject, run_case, select
from switchrail.testing.conformance.setting import DELTA, PAGED
from switchrail.testing.inputs import Sample
from switchrail.times import NOISY, Machine, device_of
from switchrail.tune.clock import LAYERS, Way, time_calls
from switchrail.tune.grid import SIZES, Batch, Size, batches
from switchrail.tune.inputs import bytes_of, copies, enlarged

if TYPE_CHECKING:
    from switchrail.platforms import Platform
    from switchrail.runtime import Runtime

_TEMPLATE = {"prefill": (256,), "decode": (1,) * 4, "verify": (4,) * 4}
"""Rows per sequence in the small calls from which large ones are created."""

ATTEMPTS = 3
"""Maximum number of attempts to measure a time without noise."""

_MOST_SAID = 300
"""Maximum characters kept of an exception's text."""


@dataclass(frozen=True, kw_only=True)
class Timing:
    """The times of one op in one phase, dtype and size.

    Attributes:
        op: The op.
        phase: The phase.
        dtype: The dtype's name.
        size: Heads and head sizes, or channels.
        no_decay: Whether all gates are 0, so states never decay. If not, gates are like a trained model's.
        samples: For each batch, the median nanoseconds of a call by backend.
        spreads: For each batch, the spread of that time by backend; see `Time`.
        ways: How each backend was timed, by its name.
        left_out: By backend, why the backend was not timed, or not with some batches.
    """

    op: str
    phase: Phase
    dtype: str
    size: Size
    no_decay: bool = False
    samples: dict[Batch, dict[str, int]] = field(default_factory=dict)
    spreads: dict[Batch, dict[str, float]] = field(default_factory=dict)
    ways: dict[str, Way] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    @property
    def has_times(self) -> bool:
        """Whether any backend was timed with any batch."""
        return any(self.samples.values())

    @property
    def noisy(self) -> list[tuple[str, Batch, float]]:
        """The backends, batches and spreads of the times that stayed noisy."""
        return [
            (name, batch, spread)
            for batch, spreads in self.spreads.items()
            for name, spread in spreads.items()
            if spread > NOISY
        ]

    def to_dict(self) -> dict[str, Any]:
        """Converts to a measurement of the times file."""
        size = self.size
        samples = []
        for batch, times in self.samples.items():
            rows, length = load_of(self.op, batch.lengths, batch.cached)
            spreads = {name: round(spread, 3) for name, spread in self.spreads[batch].items()}
            samples.append({"rows": rows, "length": length, "nanoseconds": times, "spread": spreads})
        return {
            "op": self.op,
            "phase": self.phase,
            "dtype": self.dtype,
            "head_size": None if size.head_size is None else list(size.head_size),
            "heads": None if size.heads is None else list(size.heads),
            "no_decay": self.no_decay,
            "samples": samples,
            "ways": self.ways,
            "left_out": self.left_out,
        }


def tune(
    runtime: Runtime,
    platform: Platform,
    *,
    ops: Sequence[str] = (),
    phases: Sequence[str] = (),
    dtypes: Sequence[str] = ("bfloat16",),
    sizes: Mapping[str, Sequence[Size]] | None = None,
    large: bool | None = None,
) -> Iterator[Timing]:
    """Times the fitting backends of each op.

    It skips backends of negative priority, which plans use only if no other fits, and backends that fail the
    conformance suite's case `ragged`. `way_of` says how a backend is timed. On a GPU, calls that are timed
    together use separate memory, enough to evict each other's data from the L2 cache. Caches have the
    platform's default page size for engines, or the nearest page size that the backend supports.

    Args:
        runtime: The runtime with the backends.
        platform: The platform to run on.
        ops: Only these ops; all if empty.
        phases: Only these phases; all if empty.
        dtypes: The dtypes of activations.
        sizes: The sizes to time, by op; None means `SIZES`.
        large: Whether to use GPU-sized calls; None means only on a GPU.
    """
    big = torch.device(platform.device).type == "cuda" if large is None else large
    if sizes is None:
        sizes = {op: [size if big else size.small() for size in known] for op, known in SIZES.items()}
    for op in sizes:
        if ops and op not in ops:
            continue
        for dtype in dtypes:
            for phase in get_args(Phase):
                if not phases or phase in phases:
                    for size in sizes[op]:
                        yield from _timings(runtime, platform, op, phase, dtype, size, big)


def _timings(
    runtime: Runtime, platform: Platform, op: str, phase: Phase, dtype: str, size: Size, large: bool
) -> Iterator[Timing]:
    timing = Timing(op=op, phase=phase, dtype=dtype, size=size)
    fitting = _fitting(runtime, platform, timing)
    _time(platform, timing, fitting, large)
    yield timing
    if op in DELTA and phase == "prefill":  # some backends split the time axis if the states never decay
        timing = Timing(
            op=op, phase=phase, dtype=dtype, size=size, no_decay=True, left_out={**timing.left_out}
        )
        _time(platform, timing, fitting, large)
        yield timing


def machine(runtime: Runtime, platform: Platform, timings: Sequence[Timing]) -> Machine:
    """The entry of this machine in the times file, with the versions that the times are valid for."""
    installed = runtime._loader.installed().packages
    needed = {"switchrail", "torch"}
    for timing in timings:
        for name in timing.ways:
            registration = runtime.backend(timing.op, name, timing.phase)
            origin = registration.to_dict()["origin"]
            texts = [origin.get("distribution", ""), *registration.capabilities["packages"]]
            names = (re.match(r"[\w.-]*", text) for text in texts)
            needed |= {re.sub(r"[-_.]+", "-", name[0]).lower() for name in names if name}
    return {
        "device": device_of(platform),
        "packages": {name: installed[name] for name in sorted(needed) if name in installed},
        "measurements": [timing.to_dict() for timing in timings if timing.has_times],
    }


def _fitting(runtime: Runtime, platform: Platform, timing: Timing) -> dict[str, Setting]:
    """The settings of the backends that fit and pass the check `ragged`; records why others don't.

    Backends of negative priority, or that don't serve the phase, are skipped without a record.
    """
    found = {}
    for name in dict.fromkeys(registration.name for registration in runtime.backends(timing.op)):
        registration = runtime.backend(timing.op, name, timing.phase)
        if registration.priority < 0 or timing.phase not in registration.phases:
            continue
        reason = _misfit(runtime, platform, timing, name)
        if reason is not None:
            timing.left_out[name] = reason
            continue
        subject = Subject.of(runtime, timing.op, name, platform, timing.phase)
        selection = select(
            subject, device=platform.device, phases=(timing.phase,), dtypes=(timing.dtype,), quick=True
        )
        first = next((case for case in selection.cases if case.check.name == "ragged"), None)
        if first is None:
            timing.left_out[name] = "; ".join({left.reason for left in selection.left_out})
            continue
        outcome: Outcome = run_case(first)
        if outcome.status != "passed":
            timing.left_out[name] = f"it fails {first.id}: {outcome.message.splitlines()[0]}"
            continue
        found[name] = first.setting
    return found


def _misfit(runtime: Runtime, platform: Platform, timing: Timing, name: str) -> str | None:
    exact = "float64" if timing.dtype == "float64" else "float32"
    try:
        runtime.resolve(
            timing.op,
            timing.phase,
            device=platform,
            dtype=timing.dtype,
            state_dtype=exact if timing.op in LINEAR_OPS else None,
            head_size=timing.size.head_size,
            preferences={timing.op: name},
        )
    except BackendUnfitError as error:
        return error.because
    return None


def way_of(platform: Platform, phase: Phase, features: Collection[str]) -> Way:
    """The way to time a backend with these features, close to its use by an engine in the phase."""
    if torch.device(platform.device).type != "cuda":
        return "host"
    if "cuda_graph" in features:
        return "graph"
    return "queued" if phase == "prefill" else "eager"


def _time(platform: Platform, timing: Timing, fitting: Mapping[str, Setting], large: bool) -> None:
    page = options_on(platform, None).page_size
    templates = {name: _template(timing, setting, page) for name, setting in fitting.items()}
    for name, setting in fitting.items():
        timing.ways[name] = way_of(platform, timing.phase, setting.subject.features)
    failures: dict[str, list[tuple[Batch, Exception]]] = {}
    for batch in batches(timing.op, timing.phase, large):
        times = timing.samples[batch] = {}
        spreads = timing.spreads[batch] = {}
        made: dict[tuple[Any, ...], list[Sample]] = {}
        waiting = list(fitting)
        # Noise may last a while, so the other backends are measured before a noisy measurement is repeated.
        for _ in range(ATTEMPTS):
            for name in waiting:
                template = templates[name]
                key = tuple((n, t.dtype, t.shape[1:]) for n, t in template.tensors.items() if t is not None)
                try:
                    if key not in made:
                        made[key] = _calls(platform, enlarged(template, batch))
                    found = time_calls(_runs(fitting[name].backend, made[key]), timing.ways[name], platform)
                except Exception as error:  # a failure of the backend, or lack of memory
                    failures.setdefault(name, []).append((batch, error.with_traceback(None)))
                    continue
                if found.spread < spreads.get(name, math.inf):
                    times[name], spreads[name] = found.nanoseconds, found.spread
            waiting = [name for name in waiting if spreads.get(name, 0.0) > NOISY]
    for name, failed in failures.items():
        batch, first = failed[0]
        others = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
        timing.left_out[name] = f"with {batch}{others}: {shorten(repr(first), _MOST_SAID)}"


def _template(timing: Timing, setting: Setting, page: int) -> Sample:
    arguments = timing.size.arguments(timing.op)
    if timing.size.head_size is not None:
        arguments |= setting.of_head_size(timing.size.head_size)
    arguments |= setting.definition.served(timing.phase)
    if timing.no_decay:
        arguments["gate"] = "one"
    lengths = _TEMPLATE[timing.phase]
    if timing.op in PAGED:
        arguments["kv_lengths"] = lengths
        claimed = setting.subject.claims("page_sizes") or [page]
        arguments["page"] = min(claimed, key=lambda size: abs(size - page))
    return setting.call(lengths, **arguments)


def _calls(platform: Platform, call: Sample) -> list[Sample]:
    """The call; on a GPU also copies of it, so that the data of all calls is twice as large as the L2 cache.

    So running all of them evicts each call's data from the cache. Calls with little data may not fill it,
    because there are at most `LAYERS` calls.
    """
    device = torch.device(platform.device)
    if device.type != "cuda":
        return [call]
    cache = torch.cuda.get_device_properties(device).L2_cache_size
    return copies(call, min(LAYERS, max(1, -(-2 * cache // bytes_of(call)))))


def _runs(backend: AnyBackend, calls: Sequence[Sample]) -> list[Callable[[], None]]:
    first = calls[0]
    plan = backend.plan(first.phase, first.batch)
    lasts = torch.tensor([length - 1 for length in first.batch.seqlens], device=first.out.device)

    def run(call: Sample) -> Callable[[], None]:
        made = call.made

        def once() -> None:
            record = backend.run(made, call.batch, plan)
            if isinstance(call.batch, VerifyBatch):
                backend.commit(made, call.batch, plan, record, lasts)

        return once

    return [run(call) for call in calls]
