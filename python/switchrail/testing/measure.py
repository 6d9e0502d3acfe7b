"""Measures of the error of a result, as a whole and of its worst row."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Error:
    """The relative error of a result; infinite if a value is not finite.

    Attributes:
        norm: The norm of the difference divided by the norm of the expected result.
        row: The largest error of a row (along the last axis): the norm of the row's difference, divided by
            the row's expected norm or by `FLOOR` times the root mean square of all rows' norms, whichever is
            larger.
    """

    norm: float
    row: float

    def within(self, bound: Error) -> bool:
        """Whether both errors are within the bound."""
        return self.norm <= bound.norm and self.row <= bound.row

    def __or__(self, other: Error) -> Error:
        """The larger norm error and the larger row error of two results."""
        return Error(max(self.norm, other.norm), max(self.row, other.row))

    def __str__(self) -> str:
        return f"{self.norm:.2e} / {self.row:.2e}"


FLOOR = 0.1
"""The smallest denominator of a row's error, relative to the root mean square of all rows' norms.

Rounding errors are relative to the terms of a sum, so rows whose terms cancel are compared with the size of
the others. Rows of eight or more numbers rarely cancel this far. Rows of a single number often do; for these,
`BOUNDS` don't apply if a backend rounds intermediate results.
"""

BOUNDS = {
    torch.float64: Error(1e-11, 1e-10),
    torch.float32: Error(2e-5, 2e-4),
    torch.float16: Error(2e-3, 1e-2),
    torch.bfloat16: Error(1e-2, 4e-2),
}
"""The largest allowed error of a backend against the float64 oracle on the rounded inputs, by dtype."""


def measure(actual: torch.Tensor, expected: torch.Tensor) -> Error:
    """Measures the error of `actual` (any shape and float dtype) against `expected` of the same shape.

    A denominator below the dtype's smallest normal number is replaced by that number, because subnormal
    numbers have fewer digits. If all expected numbers are 0, the errors are 0 or infinite.

    Raises:
        ValueError: The shapes differ.
    """
    if actual.shape != expected.shape:
        raise ValueError(f"the result has shape {list(actual.shape)}, expected {list(expected.shape)}")
    if expected.numel() == 0:
        return Error(0.0, 0.0)
    a, e = actual.detach().cpu().double(), expected.detach().cpu().double()
    norm = torch.linalg.vector_norm
    difference, size = norm(a - e, dim=-1), norm(e, dim=-1)
    total, expected_total = float(norm(difference)), float(norm(size))
    # a total may overflow although all numbers are finite
    if not (math.isfinite(total + expected_total) or (a.isfinite().all() and e.isfinite().all())):
        return Error(float("inf"), float("inf"))
    if not size.any():
        worst = float("inf") if difference.any() else 0.0
        return Error(worst, worst)
    least = torch.finfo(actual.dtype).tiny
    floor = (FLOOR * size.square().mean().sqrt()).clamp_min(least)
    return Error(
        total / max(expected_total, least),
        float((difference / size.clamp_min(floor)).max()),
    )


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors of equal shape and dtype have the same bits, including NaN."""
    return torch.equal(a.flatten().contiguous().view(torch.uint8), b.flatten().contiguous().view(torch.uint8))
