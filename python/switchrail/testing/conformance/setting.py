"""The setting of a case (backend, phase, dtype, device), and the calls that it makes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from switchrail._core import LINEAR_OPS, PAGED_OPS
from switchrail.ops.backend import AnyBackend
from switchrail.ops.batch import Phase, RowStatesBatch
from switchrail.ops.catalog import DEFINITIONS
from switchrail.ops.contract import Contract
from switchrail.ops.definition import OpDefinition
from switchrail.ops.samples.scenario import Hardness
from switchrail.testing.compare import Error, measure, verify, verify_commit
from switchrail.testing.conformance.bounds import BOUNDS
from switchrail.testing.conformance.parts import mismatch
from switchrail.testing.conformance.subject import Subject
from switchrail.testing.inputs import Sample

PAGED = PAGED_OPS
GATED = LINEAR_OPS
RECURRENT = tuple(op for op, definition in DEFINITIONS.items() if not definition.paged)
DELTA = tuple(
    op for op, definition in DEFINITIONS.items() if "raw_gates" in definition.claims.get("features", ())
)

_SMALL = 16
"""The preferred head size and page size of calls. The nearest sizes that the backend claims are used."""

_PASTS = (0, 14, 15, 16, 39, 62, 63, 64, 100, 7)
"""Tokens cached before the call, for each sequence; repeated if there are more sequences."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurement of a check.

    Attributes:
        error: The largest error.
        bound: The largest allowed error.
        note: Additional information.
    """

    error: Error
    bound: Error
    note: str = ""

    def __or__(self, other: Measured) -> Measured:
        """Combines two measurements, keeping the larger error and the larger bound."""
        return Measured(self.error | other.error, self.bound | other.bound, self.note or other.note)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The setting in which a case runs.

    Attributes:
        subject: The backend to check.
        phase: The phase.
        dtype: The dtype of activations.
        device: The device.
        quick: Whether to shorten long cases.
    """

    subject: Subject
    phase: Phase
    dtype: torch.dtype
    device: torch.device
    quick: bool

    @property
    def op(self) -> str:
        """The op."""
        return self.subject.op

    @property
    def definition(self) -> OpDefinition:
        """The op's definition."""
        return DEFINITIONS[self.op]

    @property
    def contract(self) -> Contract:
        """The op's contract."""
        return self.definition.contract

    @cached_property
    def backend(self) -> AnyBackend:
        """The backend, constructed once for this setting."""
        return self.subject.build()

    def call(self, lengths: Sequence[int], *, past: bool | None = None, **arguments: Any) -> Sample:
        """A random call with sizes that the backend claims, unless `arguments` set others.

        Args:
            lengths: The rows of each sequence. In decode only the number of sequences is used.
            past: For a paged op, whether sequences have tokens cached before the call. None means True in all
                phases except prefill.
            arguments: Arguments of the op's generator.
        """
        phase = arguments.get("phase", self.phase)
        if phase == "decode":
            lengths = [1] * len(lengths)
        if (
            self.op in PAGED
            and "kv_lengths" not in arguments
            and (past or (past is None and phase != "prefill"))
        ):
            pasts = [_PASTS[n % len(_PASTS)] for n in range(len(lengths))]
            arguments["kv_lengths"] = [length + past for length, past in zip(lengths, pasts, strict=True)]
        given = {"phase": phase, "dtype": self.dtype, "device": self.device, **self._sizes(), **arguments}
        return self.definition.generator(lengths, **given)

    def verify(self, call: Sample, hardness: Hardness = "usual") -> Measured:
        """Compares a call with the oracle; in verify, also each possible commit, if a commit follows.

        Raises:
            AssertionError: The error exceeds the bound, or the backend wrote to memory that the call must not
                change.
        """
        bound = BOUNDS[hardness][self.dtype]
        if call.phase == "verify" and self.op in RECURRENT and not isinstance(call.batch, RowStatesBatch):
            return Measured(verify_commit(self.backend, call, bound=bound), bound)
        return Measured(verify(self.backend, call, bound=bound), bound)

    def compare(self, actual: Sample, expected: Sample) -> Measured:
        """Compares the results of a call with the oracle's.

        Raises:
            AssertionError: The error exceeds the bound.
        """
        worst = Measured(Error(0.0, 0.0), BOUNDS["usual"][self.dtype])
        for name, result in actual.results.items():
            error = measure(result, expected.results[name])
            if not error.within(worst.bound):
                headline = f"{name} is off by {error}, the bound is {worst.bound}"
                raise mismatch(actual, name, result, expected.results[name], headline, worst.bound)
            worst |= Measured(error, worst.bound)
        return worst

    def run(self, call: Sample) -> Sample:
        """Runs a copy of a call and returns it."""
        done = call.clone()
        done.run(self.backend)
        return done

    def _sizes(self) -> dict[str, Any]:
        sizes: dict[str, Any] = {}
        if self.op in PAGED:
            sizes["page"] = _nearest(self.subject.claims("page_sizes"))
        heads = [head_size_pair(size) for size in self.subject.claims("head_sizes")]
        if heads:
            sizes |= self.of_head_size(
                min(heads, key=lambda pair: (abs(pair[0] - _SMALL), pair[0] != pair[1]))
            )
        state_dtypes = self.subject.claims("state_dtypes")
        if self.op in GATED and state_dtypes:
            usual = "float64" if self.dtype == torch.float64 else "float32"
            if usual not in state_dtypes:
                sizes["state_dtype"] = getattr(torch, state_dtypes[0])
        return sizes

    def of_head_size(self, pair: tuple[int, int]) -> dict[str, Any]:
        """The generator's arguments for a head size (of q and k, of v)."""
        axes = self.definition.head_size
        assert axes is not None
        return self.definition.generated(dict(zip(axes, pair, strict=True)))


def head_size_pair(size: int | Sequence[int]) -> tuple[int, int]:
    """Converts a claimed head size to a pair (size of q and k, size of v)."""
    if isinstance(size, int):
        return size, size
    key_size, value_size = size
    return key_size, value_size


def _nearest(claimed: Sequence[int]) -> int:
    return min(claimed, key=lambda size: abs(size - _SMALL), default=_SMALL)
