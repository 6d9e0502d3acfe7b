"""Lightning attention in plain torch, for all sequences of a batch at once."""

from __future__ import annotations

from functools import partial

import torch

from switchrail.ops.backend import check_plan
from switchrail.ops.batch import StateBatch
from switchrail.ops.chunks import After, ChunkPlan, Group, scan
from switchrail.ops.lightning.contract import CONTRACT, LightningBackend, LightningCall
from switchrail.ops.recurrent import TorchRecurrent, TreePlan, run_single, run_tree

FEATURES = tuple(CONTRACT.features)

CHUNK = 32
"""Tokens per chunk. On a CPU 16, 32 and 64 take about the same time, 128 takes longer."""

_NO_DECAY_LEFT = -1e3
"""The lowest gate. Its exponential is 0 in every dtype, and unlike -inf times 0 its multiples are numbers."""


class TorchLightning(TorchRecurrent[LightningCall], LightningBackend):
    """The chunked form in float32 (float64 for float64 inputs).

    With S_0 the state before a chunk, its token i = 1, 2, ... reads exp(i g) S_0 q_i and, from each token j
    up to itself, exp((i - j) g) (k_j . q_i) v_j. The decays depend on distances only, so all chunks share one
    table.

    On CUDA, torch's settings determine the precision of float32 products; the default is IEEE.
    """

    contract = CONTRACT
    chunk = CHUNK

    def run(self, call: LightningCall, batch: StateBatch, plan: ChunkPlan | TreePlan) -> torch.Tensor | None:
        """Run T packed tokens of N sequences of any length, or drafted tokens if the plan is for them."""
        CONTRACT.check_call(call, batch, FEATURES)
        check_plan(plan, batch, (ChunkPlan,), TreePlan)
        layer, q, k, v, out = call
        g, state, scale = layer.g, layer.state, layer.scale
        compute = torch.promote_types(q.dtype, torch.float32)
        decay = g.to(compute).clamp_min(_NO_DECAY_LEFT)

        def step(states: torch.Tensor, rows: torch.Tensor | None) -> torch.Tensor:
            queries, keys, values = (
                (t if rows is None else t.index_select(0, rows)).to(compute) for t in (q, k, v)
            )
            states.mul_(decay.exp()[:, None, None])
            states.addcmul_(values[..., None], keys[:, :, None])
            return (states.flatten(0, 1) @ (queries * scale).reshape(-1, q.shape[2], 1)).view(values.shape)

        if isinstance(plan, TreePlan):
            return run_tree(plan, state, self.row_pool(call), out, compute, step)
        if plan.places is None:
            run_single(plan, state, out, compute, step)
            return None
        decays = (decay[:, None] * torch.arange(plan.chunk + 1, device=g.device)).exp_()
        states = plan.slots.load(state, compute)
        after = partial(plan.keep, state)
        results = [
            _run_group(group, plan.chunk, q, k, v, decays, states, scale, after) for group in plan.groups
        ]
        plan.write(results, out)
        plan.slots.store(state, states)
        return None


def _run_group(
    group: Group,
    chunk: int,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    decays: torch.Tensor,
    states: torch.Tensor,
    scale: float,
    after: After,
) -> torch.Tensor:
    """Run the chunks of a group from the states [M, H, V, K], which are updated in place.

    Args:
        group: The chunks.
        chunk: C, tokens per chunk.
        q: [T, H, K].
        k: [T, H, K].
        v: [T, H, V].
        decays: [H, C + 1], the decay over each distance, in the compute dtype.
        states: [M, H, V, K], in the compute dtype.
        scale: A factor on the queries.
        after: Passed to `scan`.

    Returns:
        [n * C, H, V], the outputs by place.
    """
    heads = states.shape[1]
    n = len(group.rows) // chunk

    def gather(x: torch.Tensor) -> torch.Tensor:
        rows = x.index_select(0, group.rows).view(n, chunk, heads, -1)
        return rows.transpose(1, 2).to(states.dtype).reshape(n * heads, chunk, -1)

    def per_head(x: torch.Tensor) -> torch.Tensor:
        return x.view(n, heads, chunk, -1)

    queries, keys, values = gather(q) * scale, gather(k), gather(v)
    position = torch.arange(1, chunk + 1, device=q.device)
    counts = torch.full((n,), chunk, device=q.device)
    if group.beyond is not None:
        counts = chunk - group.beyond.sum((1, 2))
        keys = per_head(keys).masked_fill(group.beyond[:, None], 0).view_as(keys)
    between = decays[:, (position[:, None] - position).clamp_min(0)].tril()
    attention = per_head(torch.bmm(queries, keys.mT)) * between
    # Keys past the end are zero, so any factor is valid for them.
    until_end = decays[:, (counts[:, None] - position).clamp_min(0)].transpose(0, 1)
    return scan(
        group,
        states,
        attention=attention.view(n * heads, chunk, chunk),
        values=values,
        keys=(per_head(keys) * until_end[..., None]).view_as(keys),
        queries=(per_head(queries) * decays[:, 1:, None]).view_as(queries),
        decay=decays[:, counts].T.reshape(-1, 1, 1),
        after=after,
    )


__all__ = ["CHUNK", "TorchLightning"]
