"""Lightning attention, token by token: the oracle, not for use."""

from __future__ import annotations

import torch

from switchrail.ops.backend import LightningBackend
from switchrail.ops.batch import StateBatch
from switchrail.ops.lightning.contract import CONTRACT


class ReferenceLightning(LightningBackend):
    """Qin et al., arXiv 2405.17381, in float64: kv_t = lambda kv_{t-1} + k_t^T v_t and o_t = q_t kv_t.

    The state here is the transpose of the paper's kv.
    """

    def prefill(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        g: torch.Tensor,
        state: torch.Tensor,
        out: torch.Tensor,
        batch: StateBatch,
        plan: object,
        scale: float,
    ) -> None:
        """Runs T packed tokens of N sequences of any length."""
        tensors = {"q": q, "k": k, "v": v, "g": g, "state": state, "out": out}
        CONTRACT.check("prefill", batch, {**tensors, "scale": scale})
        decay = g.double().exp()[:, None, None]
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
            s = torch.zeros(state.shape[1:], dtype=torch.float64, device=state.device)
            if batch.has_initial_state[n]:
                s = state[read].double()
            for t in rows:
                s = decay * s + v[t].double()[:, :, None] * k[t].double()[:, None, :]
                out[t] = scale * (s * q[t].double()[:, None, :]).sum(-1)
            state[write] = s.to(state.dtype)

    decode = prefill


__all__ = ["ReferenceLightning"]
