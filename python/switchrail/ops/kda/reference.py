"""Kimi delta attention, token by token as its paper states it: the oracle, not for use."""

from __future__ import annotations

import torch

from switchrail.ops.backend import KdaBackend
from switchrail.ops.batch import StateBatch
from switchrail.ops.kda.contract import CONTRACT


class ReferenceKda(KdaBackend):
    """Equation 1 of Kimi Team, "Kimi Linear", arXiv 2510.26692, in float64.

    S_t = (I - beta_t k_t k_t^T) Diag(alpha_t) S_{t-1} + beta_t k_t v_t^T and o_t = S_t^T q_t, with alpha_t =
    exp(g_t), written with the product of the decayed state and k_t taken first. The state here is the
    transpose of the paper's.
    """

    def prefill(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        g: torch.Tensor,
        beta: torch.Tensor,
        state: torch.Tensor,
        out: torch.Tensor,
        batch: StateBatch,
        plan: object,
        scale: float,
        qk_l2norm: bool,
    ) -> None:
        """Runs T packed tokens of N sequences of any length."""
        tensors = {"q": q, "k": k, "v": v, "g": g, "beta": beta, "state": state, "out": out}
        CONTRACT.check("prefill", batch, {**tensors, "scale": scale, "qk_l2norm": qk_l2norm})
        group = v.shape[1] // q.shape[1]
        queries = q.double().repeat_interleave(group, dim=1)
        keys = k.double().repeat_interleave(group, dim=1)
        if qk_l2norm:
            queries = queries / (queries.square().sum(-1, keepdim=True) + 1e-6).sqrt()
            keys = keys / (keys.square().sum(-1, keepdim=True) + 1e-6).sqrt()
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
                alpha = g[t].double().exp()[:, None, :]
                b = beta[t].double()[:, None, None]
                v_t = v[t].double()[:, :, None]
                k_t, q_t = keys[t][:, None, :], queries[t][:, None, :]
                s = alpha * s
                s = s + b * (v_t - (s * k_t).sum(-1, keepdim=True)) * k_t
                out[t] = scale * (s * q_t).sum(-1)
            state[write] = s.to(state.dtype)

    decode = prefill


__all__ = ["ReferenceKda"]
