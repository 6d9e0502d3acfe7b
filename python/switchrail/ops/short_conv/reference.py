"""Reference for the causal convolution with state, one row at a time; for tests only."""

from __future__ import annotations

import torch

from switchrail.ops.oracle import ReferenceRecurrent, Token
from switchrail.ops.short_conv.contract import CONTRACT, ShortConvBackend, ShortConvCall


class ReferenceShortConv(ReferenceRecurrent[ShortConvCall], ShortConvBackend):
    """The formula in `ShortConvBackend`'s description, in float64."""

    contract = CONTRACT

    def token_of(self, call: ShortConvCall) -> Token:
        """The function that runs one row of a call."""
        layer, x, _ = call
        weight = layer.weight.double()
        bias = None if layer.bias is None else layer.bias.double()
        rows = x.double()[..., None].unbind()

        def token(window: torch.Tensor, t: int) -> tuple[torch.Tensor, torch.Tensor]:
            inputs = torch.cat([window, rows[t]], dim=1)
            y = (inputs * weight).sum(dim=1)
            if bias is not None:
                y = y + bias
            if layer.activation == "silu":
                y = y / (1 + (-y).exp())
            return inputs[:, 1:], y

        return token
