"""Reference for lightning attention, one token at a time; for tests only."""

from __future__ import annotations

import torch

from switchrail.ops.lightning.contract import CONTRACT, LightningBackend, LightningCall
from switchrail.ops.oracle import ReferenceRecurrent, Token


class ReferenceLightning(ReferenceRecurrent[LightningCall], LightningBackend):
    """Qin et al., arXiv 2405.17381, in float64: kv_t = lambda kv_{t-1} + k_t^T v_t and o_t = q_t kv_t.

    Here the state is the transpose of the paper's kv, and the result is multiplied by `scale`.
    """

    contract = CONTRACT

    def token_of(self, call: LightningCall) -> Token:
        """The function that runs one row of a call."""
        layer, q, k, v, _ = call
        decay = layer.g.double().exp()[:, None, None]
        # by row, with the axes of the state [H, V, K]
        queries, keys = (each.double()[:, :, None].unbind() for each in (q, k))
        values = v.double()[..., None].unbind()

        def token(s: torch.Tensor, t: int) -> tuple[torch.Tensor, torch.Tensor]:
            s = decay * s + values[t] * keys[t]
            return s, layer.scale * (s * queries[t]).sum(-1)

        return token
