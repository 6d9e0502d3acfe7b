"""Reference for lightning attention, one token at a time; for tests only."""

from __future__ import annotations

import torch

from switchrail.ops.batch import StateBatch, VerifyBatch
from switchrail.ops.lightning.contract import CONTRACT, LightningBackend, LightningCall
from switchrail.ops.oracle import ReferenceRecurrent, walk


class ReferenceLightning(ReferenceRecurrent[LightningCall], LightningBackend):
    """Qin et al., arXiv 2405.17381, in float64: kv_t = lambda kv_{t-1} + k_t^T v_t and o_t = q_t kv_t.

    The state here is the transpose of the paper's kv.
    """

    def run(self, call: LightningCall, batch: StateBatch, plan: object) -> list[list[torch.Tensor]] | None:
        """Run T packed tokens of N sequences of any length, drafted if the batch is a `VerifyBatch`."""
        phase = "verify" if isinstance(batch, VerifyBatch) else "prefill"
        CONTRACT.check(phase, call, batch)
        layer, q, k, v, out = call
        g, state, scale = layer.g, layer.state, layer.scale
        decay = g.double().exp()[:, None, None]

        def token(s: torch.Tensor, t: int) -> tuple[torch.Tensor, torch.Tensor]:
            s = decay * s + v[t].double()[:, :, None] * k[t].double()[:, None, :]
            return s, scale * (s * q[t].double()[:, None, :]).sum(-1)

        states = walk(batch, state, out, token)
        return self.finish(call, batch, states)


__all__ = ["ReferenceLightning"]
