"""The delta rule's reference, for all kinds of gates."""

from __future__ import annotations

import torch

from switchrail.ops.delta_call import DeltaCall
from switchrail.ops.oracle import ReferenceRecurrent, Token


class ReferenceDelta(ReferenceRecurrent[DeltaCall]):
    """The delta rule, one token at a time in float64, with a decay per head or per channel.

    Raw `softplus` gates follow Yang et al., arXiv 2412.06464, section 3.4 (after Mamba 2). `sigmoid` and the
    scale of beta follow the Bailing and OLMo models in transformers.
    """

    def token_of(self, call: DeltaCall) -> Token:
        """The function that runs one row of a call."""
        layer, q, k, v, g, beta, _ = call
        group = v.shape[1] // q.shape[1]
        queries = q.double().repeat_interleave(group, dim=1)
        keys = k.double().repeat_interleave(group, dim=1)
        if layer.qk_l2norm:
            queries = queries / (queries.square().sum(-1, keepdim=True) + 1e-6).sqrt()
            keys = keys / (keys.square().sum(-1, keepdim=True) + 1e-6).sqrt()
        alpha = g.double().exp()
        if layer.gate is not None:
            assert layer.A_log is not None
            raw_gate = g.double() if layer.dt_bias is None else g.double() + layer.dt_bias.double()
            rate = layer.A_log.double().exp().view(-1, *[1] * (g.ndim - 2))
            if layer.gate == "softplus":
                # exp(-a log(1 + e^x)) = (1 + e^x)^-a
                alpha = torch.logaddexp(raw_gate, torch.zeros_like(raw_gate)).mul(-rate).exp()
            else:
                assert layer.lower_bound is not None
                alpha = (layer.lower_bound / (1 + (-rate * raw_gate).exp())).exp()
        if alpha.ndim == 2:
            alpha = alpha[:, :, None]
        weight = beta.double()
        if layer.beta_scale is not None:
            weight = layer.beta_scale / (1 + (-weight).exp())
        # by row, with the axes of the state [HV, V, K]
        alphas, weights, values = (
            each.unbind() for each in (alpha[:, :, None], weight[:, :, None, None], v.double()[..., None])
        )
        all_keys, all_queries = keys[:, :, None].unbind(), queries[:, :, None].unbind()

        def token(s: torch.Tensor, t: int) -> tuple[torch.Tensor, torch.Tensor]:
            k_t, q_t = all_keys[t], all_queries[t]
            s = alphas[t] * s
            prediction = (s * k_t).sum(-1, keepdim=True)
            s = s + weights[t] * (values[t] - prediction) * k_t
            return s, layer.scale * (s * q_t).sum(-1)

        return token
