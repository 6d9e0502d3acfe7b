"""Reference for the causal convolution with state, one row at a time; for tests only."""

from __future__ import annotations

import torch

from switchrail.ops.batch import StateBatch, VerifyBatch
from switchrail.ops.oracle import ReferenceRecurrent, walk
from switchrail.ops.short_conv.contract import CONTRACT, ShortConvBackend, ShortConvCall


class ReferenceShortConv(ReferenceRecurrent[ShortConvCall], ShortConvBackend):
    """The sum in `ShortConvBackend`'s docstring, in float64."""

    def run(self, call: ShortConvCall, batch: StateBatch, plan: object) -> list[list[torch.Tensor]] | None:
        """Run T packed tokens of N sequences of any length, drafted if the batch is a `VerifyBatch`."""
        phase = "verify" if isinstance(batch, VerifyBatch) else "prefill"
        CONTRACT.check(phase, call, batch)
        layer, x, out = call
        weight, bias, state = layer.weight, layer.bias, layer.state

        def token(window: torch.Tensor, t: int) -> tuple[torch.Tensor, torch.Tensor]:
            inputs = torch.cat([window, x[t].double()[:, None]], dim=1)
            y = (inputs * weight.double()).sum(dim=1)
            if bias is not None:
                y = y + bias.double()
            if layer.activation == "silu":
                y = y / (1 + (-y).exp())
            return inputs[:, 1:], y

        states = walk(batch, state, out, token)
        return self.finish(call, batch, states)


__all__ = ["ReferenceShortConv"]
