"""Lightning attention in plain torch, for all sequences of a batch at once."""

from __future__ import annotations

from functools import partial

import torch

from switchrail.ops.chunks import LEAST_LOG_DECAY, After, Group, scan
from switchrail.ops.lightning.contract import CONTRACT, LightningBackend, LightningCall
from switchrail.ops.recurrent import RunGroup, Step, TorchChunked

CHUNK = 32
"""Tokens per chunk. On a CPU, 16, 32 and 64 take about the same time; 128 takes longer."""


class TorchLightning(TorchChunked[LightningCall], LightningBackend):
    """The chunked form in float32 (float64 for float64 inputs).

    Let S_0 be the state before a chunk. Token i = 1, 2, ... of the chunk reads exp(i g) S_0 q_i and, from
    each token j up to itself, exp((i - j) g) (k_j . q_i) v_j. The decays depend only on distances, so all
    chunks share one table.

    On CUDA, torch's settings determine the precision of float32 products; the default is IEEE.
    """

    contract = CONTRACT
    chunk = CHUNK

    def prepare(self, call: LightningCall, compute: torch.dtype) -> tuple[Step, RunGroup]:
        """The recurrence and the chunked form for a call, both computing in dtype `compute`."""
        layer, q, k, v, _ = call
        scale = layer.scale
        decay = layer.g.to(compute).clamp_min(LEAST_LOG_DECAY)

        def step(states: torch.Tensor, rows: torch.Tensor | None) -> torch.Tensor:
            queries, keys, values = (
                (t if rows is None else t.index_select(0, rows)).to(compute) for t in (q, k, v)
            )
            states.mul_(decay.exp()[:, None, None])
            states.addcmul_(values[..., None], keys[:, :, None])
            return (states.flatten(0, 1) @ (queries * scale).reshape(-1, q.shape[2], 1)).view(values.shape)

        return step, partial(_run_group, q, k, v, decay, scale)


def _run_group(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    decay: torch.Tensor,
    scale: float,
    group: Group,
    chunk: int,
    states: torch.Tensor,
    after: After,
) -> torch.Tensor:
    """Runs the chunks of a group from the states [M, H, V, K], with log decays [H]; see `RunGroup`."""
    decays = (decay[:, None] * torch.arange(chunk + 1, device=decay.device)).exp_()  # by distance
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
