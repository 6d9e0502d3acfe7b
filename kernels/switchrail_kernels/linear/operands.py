"""What the kernels of linear attention take of a call of `lightning` or `mamba2`."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Operands:
    """A call's tensors by what is done with them; anything stands for a tensor that there is none of.

    Attributes:
        q: [T, G, K], what is read with; `mamba2` has C.
        k: [T, G, K], what is written with; B.
        v: [T, H, V], what is written; x.
        rate: [H] float32, the log of the decay of a token, or in a unit of time; A.
        dt: [T, H], the time steps.
        bias: [H], theirs.
        skip: [H], the factor of v in the output; D.
        state: [slots, H, V, K], the pool.
        out: [T, H, V].
        scale: The factor of the queries.
        limits: The least and the largest time step.
        flags: Whether there are time steps, a bias, softplus, and a skip.
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
        """All, in this order."""
        return (
            *(self.q, self.k, self.v, self.rate, self.dt, self.bias, self.skip),
            *(self.state, self.out),
        )

    @property
    def row_strides(self) -> tuple[int, ...]:
        """Of q, k and v, from row to row and from head to head."""
        return (*self.q.stride()[:2], *self.k.stride()[:2], *self.v.stride()[:2])

    @property
    def dt_strides(self) -> tuple[int, ...]:
        """Of the time steps."""
        return self.dt.stride() if self.flags[0] else (0, 0)

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """The heads, the heads of a group, and the sizes of a state's rows and columns, K and V."""
        _, groups, key_size = self.k.shape
        _, heads, value_size = self.v.shape
        return heads, heads // groups, key_size, value_size


__all__ = ["Operands"]
