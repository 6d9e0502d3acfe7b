"""The causal convolution with state, row by row: the oracle, not for use."""

from __future__ import annotations

from typing import Literal

import torch

from switchrail.ops.backend import ShortConvBackend
from switchrail.ops.batch import StateBatch, VerifyBatch
from switchrail.ops.oracle import ReferenceRecurrent, walk
from switchrail.ops.short_conv.contract import CONTRACT


class ReferenceShortConv(ReferenceRecurrent, ShortConvBackend):
    """The sum in `ShortConvBackend`'s description, in float64."""

    def run(
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
    ) -> list[list[torch.Tensor]]:
        """Runs T packed rows of N sequences of any length, drafted ones where the batch says so."""
        tensors = {"x": x, "weight": weight, "bias": bias, "state": state, "out": out}
        phase = "verify" if isinstance(batch, VerifyBatch) else "prefill"
        CONTRACT.check(phase, batch, {**tensors, "activation": activation})

        def token(window: torch.Tensor, t: int) -> tuple[torch.Tensor, torch.Tensor]:
            inputs = torch.cat([window, x[t].double()[:, None]], dim=1)
            y = (inputs * weight.double()).sum(dim=1)
            if bias is not None:
                y = y + bias.double()
            if activation == "silu":
                y = y / (1 + (-y).exp())
            return inputs[:, 1:], y

        states = walk(batch, state, out, token)
        if phase == "prefill":
            self.finish(batch, state, states)
        return states


__all__ = ["ReferenceShortConv"]
