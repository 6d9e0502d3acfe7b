"""Runs one case: checks the backends that fit and the peers, and times them on the same inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from switchrail.ops.backend import AnyBackend
from switchrail.testing.inputs import Sample

from benchmarks.ops.backends import Backends, agree, check
from benchmarks.ops.cases import Case
from benchmarks.ops.clock import Clock, Run, copies
from benchmarks.ops.inputs import make_call, with_pools_of_its_own
from benchmarks.ops.peers import libraries, peers

LAYERS = 48
"""Number of decode calls in one graph, each on its own state or cache, like the layers of a model."""


class Bench:
    """Times cases on a device.

    Args:
        backends: The backends to choose from.
        clock: The clock.
        dtype: The dtype of activations.
        layers: Number of decode calls in one graph.
        with_peers: Whether to time peers too.
    """

    def __init__(
        self,
        backends: Backends,
        clock: Clock,
        dtype: torch.dtype,
        layers: int = LAYERS,
        with_peers: bool = True,
    ) -> None:
        self._backends = backends
        self._clock = clock
        self._dtype = dtype
        self._layers = layers
        self._with_peers = with_peers
        self._errors: dict[tuple[str, str, str, tuple[tuple[str, int], ...]], str] = {}
        self.bandwidth, self.rate = clock.ceilings()

    def results(self, case: Case) -> Iterator[dict[str, Any]]:
        """Times all backends and peers. Those that don't fit, are wrong or fail are left out with the reason.

        Yields:
            The result of the backends. Then, because peers may take minutes to compile, the same result
            again, with the peers.
        """
        fitting, reasons = self._backends.fitting(case)
        errors: dict[str, str] = {}
        calls = self._calls(case)
        unused = calls[0].clone()  # the timed calls change their states
        times: dict[str, Any] = {}
        wrong: dict[str, str] = {}
        first = None
        if len(fitting) == 1 and "torch" not in fitting:  # there is no other backend to compare with
            first = "torch", _probe(self._backends.build(case.op, "torch"), unused)
        for name, backend in fitting.items():
            try:
                error = self._check(name, backend, case)
                out = _probe(backend, unused)
                if first is None:
                    first = name, out
                else:
                    agree(out, first[1], first[0], self._dtype)
                plan = backend.plan(case.phase, calls[0].batch)
                runs = [call.bind(backend, plan) for call in calls]
                measured = self._rated(self._clock.measure(runs), case)
                times[name] = {"kind": "backend", "way": self._backends.way(case, name), **measured}
                errors[name] = error
            except Exception as failure:  # a backend may raise anything; the others are still timed
                wrong[name] = told(failure)
        chosen, why = self._backends.auto(case)
        result = {
            "op": case.op,
            "phase": case.phase,
            "shape": case.name,
            "held_out": case.held_out,
            "lengths": list(case.lengths),
            "past": case.past,
            "sizes": dict(case.sizes),
            "bytes": case.bytes,
            "flops": case.flops,
            "floor_s": max(case.bytes / self.bandwidth, case.flops / self.rate),
            "errors": errors,
            "times": times,
            "auto": {"backend": chosen, "because": why},
            "left_out": reasons,
            "wrong": wrong,
        }
        yield result
        if self._with_peers:
            for name, runs in self._peers(case, calls, unused, first, reasons).items():
                try:
                    times[name] = {"kind": "peer", **self._rated(self._clock.measure(runs), case)}
                except Exception as failure:
                    reasons[name] = told(failure)
            yield result

    def _check(self, name: str, backend: AnyBackend, case: Case) -> str:
        key = (name, case.op, case.phase, tuple(sorted(case.sizes.items())))
        if key not in self._errors:
            self._errors[key] = check(backend, case, self._dtype, self._clock.device)
        return self._errors[key]

    def _calls(self, case: Case) -> list[Sample]:
        """Calls of one batch, each with its own memory; in decode as many as `layers`."""
        device = self._clock.device
        first = make_call(case, device, self._dtype)
        if case.phase == "decode":
            return [first, *(with_pools_of_its_own(first) for _ in range(self._layers - 1))]
        others = (make_call(case, device, self._dtype, seed) for seed in range(1, copies(case.bytes)))
        return [first, *(replace(call, batch=first.batch) for call in others)]

    def _peers(
        self,
        case: Case,
        calls: list[Sample],
        unused: Sample,
        first: tuple[str, torch.Tensor] | None,
        left_out: dict[str, str],
    ) -> dict[str, list[Run]]:
        found: dict[str, list[Run]] = {}
        for library in libraries(self._clock.device):
            try:
                names = list(peers(library, case, unused.clone()))
            except Exception as failure:  # a library may raise anything if it doesn't support the case
                left_out[library] = told(failure)
                continue
            for name in names:
                try:
                    out = peers(library, case, unused.clone())[name]()
                    if isinstance(out, torch.Tensor) and first is not None:
                        agree(out, first[1], first[0], self._dtype)
                    found[name] = [peers(library, case, call)[name] for call in calls]
                except Exception as failure:
                    left_out[name] = told(failure)
        return found

    def _rated(self, times: Mapping[str, Any], case: Case) -> dict[str, Any]:
        seconds = usual(times)
        return {
            **times,
            "bytes_per_s": case.bytes / seconds,
            "flops_per_s": case.flops / seconds,
        }


def _probe(backend: AnyBackend, call: Sample) -> torch.Tensor:
    """The output of a backend for a copy of a call."""
    copy = call.clone()
    copy.run(backend)
    return copy.out


def told(error: Exception) -> str:
    """The first line of an error's message, and its type unless it is a failed comparison."""
    text = str(error).partition("\n")[0]
    return text if isinstance(error, AssertionError) else f"{type(error).__name__}: {text}"


def usual(times: Mapping[str, Any]) -> float:
    """The median seconds of a call in a graph, or of an eager call if it can't be captured."""
    return times["graph_s" if "graph_s" in times else "eager_s"]["median"]


def compared(times: Mapping[str, Any]) -> float:
    """The time for comparing backends, in seconds: that of an eager call if an engine can't capture the
    backend's decodes, otherwise `usual`."""
    return times["eager_s"]["median"] if times.get("way") == "eager" else usual(times)
