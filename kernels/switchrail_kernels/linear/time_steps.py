"""The time steps of `mamba2`, which `lightning` has none of."""

# Triton reads the types of a kernel's arguments at the call.
# ruff: noqa: ANN001, ANN201
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from switchrail_kernels.softplus import softplus


@triton.jit
def time_step(b_dt, b_bias, dt_min, dt_max, SOFTPLUS: tl.constexpr):
    """The time step: raw, with its bias, its softplus and its limits."""
    b_dt = b_dt.to(tl.float32) + b_bias
    if SOFTPLUS:
        b_dt = softplus(b_dt)
    return tl.minimum(tl.maximum(b_dt, dt_min), dt_max)


@dataclass(frozen=True, slots=True)
class TimeSteps:
    """What `mamba2` has of time steps, as arguments of the kernels.

    Attributes:
        tensors: dt, and its bias and the skip, or anything where there is none.
        limits: The least and the largest time step.
        strides: Of dt.
        constants: Whether there are time steps, a bias, softplus, and a skip.
    """

    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    limits: tuple[float, float] = (0.0, 0.0)
    strides: tuple[int, ...] = (0, 0)
    constants: tuple[bool, bool, bool, bool] = (False, False, False, False)

    @classmethod
    def of(
        cls,
        dt: torch.Tensor,
        bias: torch.Tensor | None,
        skip: torch.Tensor | None,
        softplus: bool,
        limits: tuple[float, float],
    ) -> TimeSteps:
        """Those of a call of `mamba2`."""
        tensors = (dt, dt if bias is None else bias, dt if skip is None else skip)
        limits = limits[0], min(limits[1], _MOST)
        return cls(tensors, limits, dt.stride(), (True, bias is not None, softplus, skip is not None))

    @classmethod
    def none(cls, rate: torch.Tensor) -> TimeSteps:
        """Those of an op without any."""
        return cls((rate, rate, rate))


_MOST = 3e38
"""Instead of an infinite limit: float32 has no larger time step."""


__all__ = ["TimeSteps", "time_step"]
