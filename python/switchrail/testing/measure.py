"""Error measures that hide nothing."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Error:
    """How far a result lies from what was expected; infinitely far where either is not finite.

    Attributes:
        norm: The norm of the difference over the norm of what was expected.
        row: The largest norm of the difference in one row (along the last axis) over the norm of that row, or
            over `FLOOR` times the root mean square of all rows' norms where that is more.
    """

    norm: float
    row: float

    def within(self, bound: Error) -> bool:
        """Whether neither is more than its bound."""
        return self.norm <= bound.norm and self.row <= bound.row

    def __or__(self, other: Error) -> Error:
        """The larger of each."""
        return Error(max(self.norm, other.norm), max(self.row, other.row))

    def __str__(self) -> str:
        return f"{self.norm:.2e} / {self.row:.2e}"


FLOOR = 0.1
"""Rounding is relative to the terms of a sum, not to what is left of them, so a row whose terms cancel is
held to the size of the others. Rows of eight numbers or more seldom cancel this far; of one number, many do,
and `BOUNDS` are not for them where a backend rounds on its way.
"""

BOUNDS = {
    torch.float64: Error(1e-11, 1e-10),
    torch.float32: Error(2e-5, 2e-4),
    torch.float16: Error(2e-3, 1e-2),
    torch.bfloat16: Error(1e-2, 4e-2),
}
"""The largest error of a backend against the float64 oracle on the rounded inputs, for each dtype."""


def measure(actual: torch.Tensor, expected: torch.Tensor) -> Error:
    """Measures the error of `actual`, any shape and float dtype, against `expected` of the same shape.

    A norm below the dtype's smallest normal number, where fewer digits are kept, counts as that number.

    Raises:
        ValueError: The shapes differ.
    """
    if actual.shape != expected.shape:
        raise ValueError(f"the result has shape {list(actual.shape)}, expected was {list(expected.shape)}")
    if expected.numel() == 0:
        return Error(0.0, 0.0)
    a, e = actual.detach().cpu().double(), expected.detach().cpu().double()
    if not (a.isfinite().all() and e.isfinite().all()):
        return Error(float("inf"), float("inf"))
    difference = (a - e).norm(dim=-1)
    size = e.norm(dim=-1)
    if not size.any():
        worst = float("inf") if difference.any() else 0.0
        return Error(worst, worst)
    least = torch.finfo(actual.dtype).tiny
    floor = (FLOOR * size.square().mean().sqrt()).clamp_min(least)
    return Error(
        float(difference.norm() / size.norm().clamp_min(least)),
        float((difference / size.clamp_min(floor)).max()),
    )


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors of one shape and dtype hold the same bits, NaN included."""
    return torch.equal(a.flatten().contiguous().view(torch.uint8), b.flatten().contiguous().view(torch.uint8))


__all__ = ["BOUNDS", "FLOOR", "Error", "measure", "same_bits"]
