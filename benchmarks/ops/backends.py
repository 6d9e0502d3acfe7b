"""Finds the registered backends that fit a case, and checks them against the float64 reference."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from switchrail._core import LINEAR_OPS
from switchrail.errors import BackendUnfitError, SwitchrailError
from switchrail.ops.backend import AnyBackend
from switchrail.ops.catalog import DEFINITIONS
from switchrail.platforms import Platform
from switchrail.runtime import Runtime
from switchrail.testing.compare import BOUNDS, verify
from switchrail.testing.conformance.setting import DELTA
from switchrail.testing.inputs import Sample, run_reference
from switchrail.tune import way_of
from switchrail.tune.clock import Way

from benchmarks.ops.cases import Case


class Backends:
    """The backends of a runtime, each constructed once.

    Args:
        runtime: The runtime with the backends.
        platform: The platform to run on.
        dtype: The dtype of activations.
        only: The names of the backends to use; all if empty.
    """

    def __init__(
        self, runtime: Runtime, platform: Platform, dtype: torch.dtype, only: Sequence[str] = ()
    ) -> None:
        self._runtime = runtime
        self._platform = platform
        self._dtype = dtype
        self._only = only
        self._built: dict[tuple[str, str], AnyBackend] = {}

    def fitting(self, case: Case) -> tuple[dict[str, AnyBackend], dict[str, str]]:
        """The backends that fit a case, by name, and the reasons why the others don't."""
        found: dict[str, AnyBackend] = {}
        reasons: dict[str, str] = {}
        chosen = None if self._only else self.auto(case)[0]
        for registration in self._runtime.backends(case.op):
            name = registration.name
            if name == "reference" or (self._only and name not in self._only):
                continue
            if name == "torch" and self._platform.kind != "cpu" and not self._only and chosen != "torch":
                continue  # checking may take seconds
            try:
                self._runtime.resolve(case.op, case.phase, **self._query(case), preferences={case.op: name})
                found[name] = self.build(case.op, name)
            except BackendUnfitError as error:
                reasons[name] = error.because
            except SwitchrailError as error:  # the backend's class can't be imported
                reasons[name] = str(error).partition("\n")[0]
        return found, reasons

    def build(self, op: str, name: str) -> AnyBackend:
        """A backend by name."""
        if (op, name) not in self._built:
            self._built[op, name] = self._runtime.build(op, name)
        return self._built[op, name]

    def way(self, case: Case, name: str) -> Way:
        """How `switchrail tune` times a backend in this case."""
        registration = self._runtime.backend(case.op, name, case.phase)
        return way_of(self._platform, case.phase, registration.capabilities["features"])

    def auto(self, case: Case) -> tuple[str, str]:
        """The backend that a route plan chooses for the case (with tuned times, if any), and the reason."""
        query = {**self._query(case), "no_decay": not case.decays}
        heads = DEFINITIONS[case.op].heads
        if heads is not None:
            query["heads"] = tuple(1 if axis is None else case.sizes[axis] for axis in heads)
        decision = self._runtime.resolve(case.op, case.phase, **query)
        seen = [length + case.past for length in case.lengths]
        return decision.at(case.lengths, seen), decision.because

    def _query(self, case: Case) -> dict[str, Any]:
        query: dict[str, Any] = {"device": self._platform, "dtype": self._dtype}
        axes = case.axes
        if "page" in axes:
            query["page_size"] = axes["page"]
        elif case.op in LINEAR_OPS:
            query["state_dtype"] = "float32"
        head_size = DEFINITIONS[case.op].head_size
        if head_size is not None:
            query["head_size"] = tuple(axes[axis] for axis in head_size)
        return query


def check(backend: AnyBackend, case: Case, dtype: torch.dtype, device: torch.device) -> str:
    """Compares a backend with the float64 reference on ragged inputs, with the sizes of the case.

    Returns:
        The error, as relative norm and worst row.

    Raises:
        AssertionError: The error exceeds the bound.
    """
    worst = None
    for decays in (True, False) if case.op in DELTA else (True,):
        call, expected = _expected(
            case.op, case.phase, tuple(sorted(case.sizes.items())), decays, dtype, device
        )
        error = verify(backend, call, expected=expected)
        worst = error if worst is None else worst | error
    return str(worst)


@cache
def _expected(
    op: str,
    phase: str,
    sizes: tuple[tuple[str, int], ...],
    decays: bool,
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[Sample, Sample]:
    definition = DEFINITIONS[op]
    arguments: dict[str, Any] = definition.generated(dict(sizes))
    lengths = [1] * 5 if phase == "decode" else [1, 0, 150, 64, 63]
    if definition.paged:
        arguments["kv_lengths"] = [1, 700, 3000, 64, 65] if phase == "decode" else [1, 0, 333, 64, 100]
    if op == "mla":
        arguments["absorbed"] = dict(sizes)["D"] == dict(sizes)["R"]
    if not decays:
        arguments["gate"] = "one"
    call = definition.generator(lengths, phase=phase, dtype=dtype, device=device, **arguments)
    return call, run_reference(call)


def agree(result: torch.Tensor, other: torch.Tensor, name: str, dtype: torch.dtype) -> None:
    """Compares the results of two backends for the same call.

    Raises:
        AssertionError: They differ by more than twice the bound of one result.
    """
    difference = float((result.double() - other.double()).norm() / other.double().norm())
    allowed = 2 * BOUNDS[dtype].norm
    problem = f"its relative difference from {name} is {difference:.1e}"
    assert difference <= allowed, f"{problem}; valid: at most {allowed:.1e}"
