"""The common parts of the delta rule's plain-torch backends, for all kinds of gates."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import partial

import torch

from switchrail.ops.chunks import After, Group
from switchrail.ops.delta_call import DeltaCallT, DeltaLayer
from switchrail.ops.recurrent import RunGroup, Step, TorchChunked


@dataclass(frozen=True, slots=True)
class Tokens:
    """The rows of a call, prepared for the delta rule.

    Attributes:
        keys_queries: [T, H, 2, K], the keys and the scaled queries, in the compute dtype.
        v: [T, HV, V], the values.
        g: [T, HV] or [T, HV, K], the log of the decay.
        beta: [T, HV], the write weights.
    """

    keys_queries: torch.Tensor
    v: torch.Tensor
    g: torch.Tensor
    beta: torch.Tensor

    def pick(self, rows: torch.Tensor | None) -> Tokens:
        """The selected rows; None selects all."""
        if rows is None:
            return self
        picked = (t.index_select(0, rows) for t in (self.keys_queries, self.v, self.g, self.beta))
        return Tokens(*picked)


class TorchDelta(TorchChunked[DeltaCallT]):
    """The delta rule; `prepare` activates raw gates, and normalises keys and queries if requested."""

    @staticmethod
    @abstractmethod
    def step(states: torch.Tensor, tokens: Tokens) -> torch.Tensor:
        """Runs one token on each of the states [R, HV, V, K], which are updated in place.

        Returns:
            [R, HV, V], the results.
        """

    @staticmethod
    @abstractmethod
    def run_group(
        tokens: Tokens, group: Group, chunk: int, states: torch.Tensor, after: After
    ) -> torch.Tensor:
        """Runs the chunks of a group from the states [M, HV, V, K]; see `RunGroup`."""

    def prepare(self, call: DeltaCallT, compute: torch.dtype) -> tuple[Step, RunGroup]:
        """The recurrence and the chunked form for a call, both computing in dtype `compute`."""
        layer, q, k, v, g, beta, _ = call
        keys_queries = torch.stack([k, q], dim=2).to(compute)
        if layer.qk_l2norm:
            keys_queries *= torch.rsqrt(keys_queries.square().sum(-1, keepdim=True) + 1e-6)
        keys_queries[:, :, 1] *= layer.scale
        log_decay = activate_gate(g, layer, compute)
        weight = activate_beta(beta, layer.beta_scale, compute)
        tokens = Tokens(keys_queries, v, log_decay, weight)
        return (lambda states, rows: self.step(states, tokens.pick(rows)), partial(self.run_group, tokens))


def activate_gate(g: torch.Tensor, layer: DeltaLayer, dtype: torch.dtype) -> torch.Tensor:
    """The log of the decay [T, HV] or [T, HV, K], computed in `dtype` from a raw gate.

    With x = g + dt_bias and a = exp(A_log), the result is -a softplus(x) or lower_bound sigmoid(a x),
    depending on `layer.gate`. If `layer.gate` is None, the result is g itself.
    """
    if layer.gate is None:
        return g
    assert layer.A_log is not None
    raw = g.to(dtype)
    if layer.dt_bias is not None:
        raw = raw + layer.dt_bias
    rate = layer.A_log.to(dtype).exp().view(-1, *[1] * (g.ndim - 2))
    if layer.gate == "softplus":
        return -rate * torch.nn.functional.softplus(raw)
    assert layer.lower_bound is not None
    return layer.lower_bound * torch.sigmoid(rate * raw)


def activate_beta(beta: torch.Tensor, beta_scale: float | None, dtype: torch.dtype) -> torch.Tensor:
    """The write weight [T, HV]: beta_scale sigmoid(beta), or beta itself if the scale is None."""
    return beta if beta_scale is None else beta_scale * torch.sigmoid(beta.to(dtype))
