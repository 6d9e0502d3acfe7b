"""Shared parts of the plain-torch backends of the delta rule, for all kinds of gates."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch

from switchrail.ops.backend import check_plan
from switchrail.ops.batch import StateBatch
from switchrail.ops.chunks import After, ChunkPlan, Group
from switchrail.ops.delta_call import DeltaCallT, DeltaLayer
from switchrail.ops.recurrent import TorchRecurrent, TreePlan, run_single, run_tree


@dataclass(frozen=True, slots=True)
class Tokens:
    """The rows of a call.

    Attributes:
        keys_queries: [T, H, 2, K], the keys and the scaled queries, in the compute dtype.
        v: [T, HV, V].
        g: [T, HV] or [T, HV, K], the log of the decay.
        beta: [T, HV].
    """

    keys_queries: torch.Tensor
    v: torch.Tensor
    g: torch.Tensor
    beta: torch.Tensor

    def pick(self, rows: torch.Tensor | None) -> Tokens:
        """Select rows; None returns all."""
        if rows is None:
            return self
        picked = (t.index_select(0, rows) for t in (self.keys_queries, self.v, self.g, self.beta))
        return Tokens(*picked)


class TorchDelta(TorchRecurrent[DeltaCallT]):
    """Chunks for long sequences, the recurrence for single tokens, and a tree walk for drafted tokens."""

    features: ClassVar[tuple[str, ...]]
    """The features of the contract."""
    gate_dtype: ClassVar[torch.dtype | None] = None
    """The dtype that gates are converted to, once per call; None leaves them unchanged."""

    @staticmethod
    @abstractmethod
    def step(states: torch.Tensor, tokens: Tokens) -> torch.Tensor:
        """Run one token from each of the states [R, HV, V, K], which are updated in place.

        Returns:
            [R, HV, V], the results.
        """

    @staticmethod
    @abstractmethod
    def run_group(
        group: Group, chunk: int, tokens: Tokens, states: torch.Tensor, after: After
    ) -> torch.Tensor:
        """Run the chunks of a group from the states [M, HV, V, K], which are updated in place.

        `after` is passed to `scan`.

        Returns:
            [n * C, HV, V], the results by place.
        """

    def run(self, call: DeltaCallT, batch: StateBatch, plan: ChunkPlan | TreePlan) -> torch.Tensor | None:
        """Run T packed tokens of N sequences of any length, or drafted tokens if the plan is for them."""
        self.contract.check_call(call, batch, self.features)
        check_plan(plan, batch, (ChunkPlan,), TreePlan)
        layer, q, k, v, g, beta, out = call
        state = layer.state
        compute = torch.promote_types(q.dtype, torch.float32)
        keys_queries = torch.stack([k, q], dim=2).to(compute)
        if layer.qk_l2norm:
            keys_queries *= torch.rsqrt(keys_queries.square().sum(-1, keepdim=True) + 1e-6)
        keys_queries[:, :, 1] *= layer.scale
        log_decay = activate_gate(g, layer, compute)
        weight = activate_beta(beta, layer.beta_scale, compute)
        tokens = Tokens(keys_queries, v, log_decay, weight)
        if isinstance(plan, TreePlan):
            return run_tree(
                *(plan, state, self.row_pool(call), out, compute),
                lambda states, rows: self.step(states, tokens.pick(rows)),
            )
        if plan.places is None:
            run_single(plan, state, out, compute, lambda states, _: self.step(states, tokens))
            return None
        if self.gate_dtype is not None:
            tokens = Tokens(keys_queries, v, log_decay.to(self.gate_dtype), weight)
        states = plan.slots.load(state, compute)
        after = partial(plan.keep, state)
        plan.write([self.run_group(group, plan.chunk, tokens, states, after) for group in plan.groups], out)
        plan.slots.store(state, states)
        return None


def activate_gate(g: torch.Tensor, layer: DeltaLayer, dtype: torch.dtype) -> torch.Tensor:
    """The log of the decay [T, HV] or [T, HV, K], computed in `dtype` from a raw gate.

    With x = g + dt_bias and a = exp(A_log): -a softplus(x), or lower_bound sigmoid(a x). Without `gate`, g
    itself.
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


__all__ = ["Tokens", "TorchDelta", "activate_beta", "activate_gate"]
