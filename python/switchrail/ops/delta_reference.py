"""What the oracles of the delta rule share: the arguments, and gates as their papers state them."""

from __future__ import annotations

from typing import ClassVar

import torch

from switchrail.ops.batch import StateBatch, VerifyBatch
from switchrail.ops.contract import Contract
from switchrail.ops.gates import GateKind
from switchrail.ops.oracle import ReferenceRecurrent, walk


class ReferenceDelta(ReferenceRecurrent):
    """The delta rule token by token in float64, with a decay a head or a channel.

    Raw gates: Yang et al., arXiv 2412.06464, section 3.4 (after Mamba 2) for `softplus`. `sigmoid` and the
    scale of beta are as the Bailing and OLMo models in transformers have them.
    """

    contract: ClassVar[Contract]

    def run(
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
        gate: GateKind | None = None,
        A_log: torch.Tensor | None = None,
        dt_bias: torch.Tensor | None = None,
        lower_bound: float | None = None,
        beta_scale: float | None = None,
    ) -> list[list[torch.Tensor]]:
        """Runs T packed tokens of N sequences of any length, drafted ones where the batch says so."""
        tensors = {"q": q, "k": k, "v": v, "g": g, "beta": beta, "state": state, "out": out}
        raw = {"gate": gate, "A_log": A_log, "dt_bias": dt_bias, "lower_bound": lower_bound}
        options = {"scale": scale, "qk_l2norm": qk_l2norm, "beta_scale": beta_scale}
        phase = "verify" if isinstance(batch, VerifyBatch) else "prefill"
        self.contract.check(phase, batch, {**tensors, **raw, **options})
        group = v.shape[1] // q.shape[1]
        queries = q.double().repeat_interleave(group, dim=1)
        keys = k.double().repeat_interleave(group, dim=1)
        if qk_l2norm:
            queries = queries / (queries.square().sum(-1, keepdim=True) + 1e-6).sqrt()
            keys = keys / (keys.square().sum(-1, keepdim=True) + 1e-6).sqrt()
        alpha = g.double().exp()
        if gate is not None:
            assert A_log is not None
            raw_gate = g.double() if dt_bias is None else g.double() + dt_bias.double()
            rate = A_log.double().exp()[:, None] if g.ndim == 3 else A_log.double().exp()
            if gate == "softplus":
                # exp(-a log(1 + e^x)) = (1 + e^x)^-a
                alpha = torch.logaddexp(raw_gate, torch.zeros_like(raw_gate)).mul(-rate).exp()
            else:
                assert lower_bound is not None
                alpha = (lower_bound / (1 + (-rate * raw_gate).exp())).exp()
        if alpha.ndim == 2:
            alpha = alpha[:, :, None]
        weight = beta.double()
        if beta_scale is not None:
            weight = beta_scale / (1 + (-weight).exp())

        def token(s: torch.Tensor, t: int) -> tuple[torch.Tensor, torch.Tensor]:
            k_t, q_t = keys[t][:, None, :], queries[t][:, None, :]
            s = alpha[t][:, None, :] * s
            prediction = (s * k_t).sum(-1, keepdim=True)
            s = s + weight[t][:, None, None] * (v[t].double()[:, :, None] - prediction) * k_t
            return s, scale * (s * q_t).sum(-1)

        states = walk(batch, state, out, token)
        if phase == "prefill":
            self.finish(batch, state, states)
        return states


__all__ = ["ReferenceDelta"]
