"""Reference for the selective state space of Mamba 2, one token at a time; for tests only."""

from __future__ import annotations

import torch

from switchrail.ops.mamba2.contract import CONTRACT, Mamba2Backend, Mamba2Call
from switchrail.ops.oracle import ReferenceRecurrent, Token


class ReferenceMamba2(ReferenceRecurrent[Mamba2Call], Mamba2Backend):
    """The recurrence of Dao and Gu, "Transformers are SSMs", arXiv 2405.21060, in float64.

    h_t = exp(dt_t A) h_{t-1} + dt_t x_t B_t^T and y_t = h_t C_t + D x_t.
    """

    contract = CONTRACT

    def token_of(self, call: Mamba2Call) -> Token:
        """The function that runs one row of a call."""
        layer, x, B, C, dt, _ = call
        group = x.shape[1] // B.shape[1]
        steps = dt.double()
        if layer.dt_bias is not None:
            steps = steps + layer.dt_bias.double()
        if layer.dt_softplus:
            steps = torch.logaddexp(steps, torch.zeros_like(steps))
        steps = steps.clamp(layer.dt_min, layer.dt_max)[:, :, None]
        inputs = x.double()
        skipped = None if layer.D is None else layer.D.double()[:, None] * inputs
        # by row, with the axes of the state [H, P, S]
        decays = (steps * layer.A.double()[:, None]).exp()[..., None].unbind()
        stepped = (steps * inputs)[..., None].unbind()
        bs, cs = (each.double().repeat_interleave(group, dim=1)[:, :, None].unbind() for each in (B, C))

        def token(h: torch.Tensor, t: int) -> tuple[torch.Tensor, torch.Tensor]:
            h = decays[t] * h + stepped[t] * bs[t]
            y = (h * cs[t]).sum(-1)
            return h, y if skipped is None else y + skipped[t]

        return token
