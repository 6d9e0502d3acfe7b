"""Calls of `lightning` and `mamba2` under the names that their shared kernels use."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Operands:
    """The tensors of one call. Absent tensors are replaced by others, which the kernels then don't read.

    Attributes:
        q: [T, G, K], the queries; C in `mamba2`.
        k: [T, G, K], the keys; B in `mamba2`.
        v: [T, H, V], the values; x in `mamba2`.
        rate: [H] float32, the log of the decay per token, or per unit of time; A in `mamba2`.
        dt: [T, H], the time steps.
        bias: [H], the bias of the time steps.
        skip: [H], the factor of v in the output; D in `mamba2`.
        state: [slots, H, V, K], the pool.
        out: [T, H, V].
        scale: A factor on the queries.
        limits: The lower and upper bound of the time step.
        flags: Whether the call has time steps, a bias, softplus, and a skip connection.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    rate: torch.Tensor
    dt: torch.Tensor
    bias: torch.Tensor
    skip: torch.Tensor
    state: torch.Tensor
    out: torch.Tensor
    scale: float = 1.0
    limits: tuple[float, float] = (0.0, 0.0)
    flags: tuple[bool, bool, bool, bool] = (False, False, False, False)

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """All tensors, in the order of the attributes."""
        return (*(self.q, self.k, self.v, self.rate, self.dt, self.bias, self.skip), *(self.state, self.out))

    @property
    def row_strides(self) -> tuple[int, ...]:
        """The strides of q, k and v along rows and along heads."""
        return (*self.q.stride()[:2], *self.k.stride()[:2], *self.v.stride()[:2])

    @property
    def dt_strides(self) -> tuple[int, ...]:
        """The strides of the time steps; zeros if there are none."""
        return self.dt.stride() if self.flags[0] else (0, 0)

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """H, the heads per group, K and V."""
        _, groups, key_size = self.k.shape
        _, heads, value_size = self.v.shape
        return heads, heads // groups, key_size, value_size
