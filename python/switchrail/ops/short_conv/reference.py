"""The causal convolution with state, row by row: the oracle, not for use."""

from __future__ import annotations

from typing import Literal

import torch

from switchrail.ops.backend import ShortConvBackend
from switchrail.ops.batch import StateBatch
from switchrail.ops.short_conv.contract import CONTRACT


class ReferenceShortConv(ShortConvBackend):
    """The sum in `ShortConvBackend`'s description, in float64."""

    def prefill(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        *,
        bias: torch.Tensor | None,
        state: torch.Tensor,
        out: torch.Tensor,
        batch: StateBatch,
        plan: object,
        activation: Literal["silu"] | None,
    ) -> None:
        """Runs T packed rows of N sequences of any length."""
        tensors = {"x": x, "weight": weight, "bias": bias, "state": state, "out": out}
        CONTRACT.check("prefill", batch, {**tensors, "activation": activation})
        row = 0
        for n, length in enumerate(batch.seqlens):
            read, write = int(batch.read_slots[n]), int(batch.write_slots[n])
            rows = range(row, row + length)
            row += length
            if length == 0:
                continue
            if write == -1:
                out[rows.start : rows.stop] = 0
                continue
            window = torch.zeros(weight.shape, dtype=torch.float64, device=x.device)
            if batch.has_initial_state[n]:
                window[:, 1:] = state[read].double()
            for t in rows:
                window = torch.cat([window[:, 1:], x[t].double()[:, None]], dim=1)
                y = (window * weight.double()).sum(dim=1)
                if bias is not None:
                    y = y + bias.double()
                if activation == "silu":
                    y = y / (1 + (-y).exp())
                out[t] = y.to(out.dtype)
            state[write] = window[:, 1:].to(state.dtype)

    decode = prefill


__all__ = ["ReferenceShortConv"]
