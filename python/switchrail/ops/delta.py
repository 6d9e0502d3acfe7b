"""What the plain-torch backends of the delta rule share, whatever their gates are."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch

from switchrail.ops.batch import StateBatch
from switchrail.ops.chunks import After, ChunkPlan, Group
from switchrail.ops.gates import GateKind, activate_beta, activate_gate
from switchrail.ops.recurrent import TorchRecurrent, TreePlan, run_single, run_tree


@dataclass(frozen=True, slots=True)
class Tokens:
    """The rows of a call.

    Attributes:
        keys_queries: [T, H, 2, K], the keys and the scaled queries, in the dtype to compute in.
        v: [T, HV, V].
        g: [T, HV] or [T, HV, K], the log of the decay.
        beta: [T, HV].
    """

    keys_queries: torch.Tensor
    v: torch.Tensor
    g: torch.Tensor
    beta: torch.Tensor

    def pick(self, rows: torch.Tensor | None) -> Tokens:
        """Some rows; all where it is None."""
        if rows is None:
            return self
        picked = (t.index_select(0, rows) for t in (self.keys_queries, self.v, self.g, self.beta))
        return Tokens(*picked)


class TorchDelta(TorchRecurrent):
    """Chunks where sequences are long, the recurrence where each has one token, and both for drafted ones."""

    gate_dtype: ClassVar[torch.dtype | None] = None
    """The dtype that gates are widened to, once a call; None: they are as they come."""

    @staticmethod
    @abstractmethod
    def step(states: torch.Tensor, tokens: Tokens) -> torch.Tensor:
        """Runs one token from each of the states [R, HV, V, K] on, which it brings up to date.

        Returns:
            [R, HV, V], the results.
        """

    @staticmethod
    @abstractmethod
    def run_group(
        group: Group, chunk: int, tokens: Tokens, states: torch.Tensor, after: After
    ) -> torch.Tensor:
        """Runs the chunks of a group from the states [M, HV, V, K] on, which it brings up to date.

        `after` is for `scan`.

        Returns:
            [n * C, HV, V], the results by place.
        """

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
        plan: ChunkPlan | TreePlan,
        scale: float,
        qk_l2norm: bool,
        gate: GateKind | None = None,
        A_log: torch.Tensor | None = None,
        dt_bias: torch.Tensor | None = None,
        lower_bound: float | None = None,
        beta_scale: float | None = None,
    ) -> torch.Tensor | None:
        """Runs T packed tokens of N sequences of any length, drafted ones where the plan is for them."""
        tensors = {"q": q, "k": k, "v": v, "g": g, "beta": beta, "state": state, "out": out}
        raw = {"gate": gate, "A_log": A_log, "dt_bias": dt_bias, "lower_bound": lower_bound}
        options = {"scale": scale, "qk_l2norm": qk_l2norm, "beta_scale": beta_scale}
        self.contract.check_arguments(batch, {**tensors, **raw, **options})
        compute = torch.promote_types(q.dtype, torch.float32)
        keys_queries = torch.stack([k, q], dim=2).to(compute)
        if qk_l2norm:
            keys_queries *= torch.rsqrt(keys_queries.square().sum(-1, keepdim=True) + 1e-6)
        keys_queries[:, :, 1] *= scale
        log_decay = activate_gate(g, gate, A_log, dt_bias, lower_bound, compute)
        weight = activate_beta(beta, beta_scale, compute)
        tokens = Tokens(keys_queries, v, log_decay, weight)
        if isinstance(plan, TreePlan):
            return run_tree(
                plan, state, out, compute, lambda states, rows: self.step(states, tokens.pick(rows))
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


__all__ = ["Tokens", "TorchDelta"]
