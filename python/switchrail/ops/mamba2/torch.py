"""The selective state space of Mamba 2 in plain torch, for all sequences of a batch at once."""

from __future__ import annotations

from functools import partial

import torch

from switchrail.ops.chunks import LEAST_LOG_DECAY, After, Group, scan
from switchrail.ops.mamba2.contract import CONTRACT, Mamba2Backend, Mamba2Call, Mamba2Layer
from switchrail.ops.recurrent import RunGroup, Step, TorchChunked

CHUNK = 32
"""Tokens per chunk. On a CPU, 16, 32 and 64 take about the same time; 128 takes longer."""


class TorchMamba2(TorchChunked[Mamba2Call], Mamba2Backend):
    """The chunked form in float32 (float64 for float64 inputs).

    Let s_i be the time step of token i of a chunk, b_i the sum of s A up to this token, and h_0 the state
    before the chunk. Token i reads exp(b_i) h_0 C_i and, from each token j up to itself, exp(b_i - b_j)
    (B_j . C_i) s_j x_j. Its result also has the term D x_i.

    On CUDA, torch's settings determine the precision of float32 products; the default is IEEE.
    """

    contract = CONTRACT
    chunk = CHUNK

    def prepare(self, call: Mamba2Call, compute: torch.dtype) -> tuple[Step, RunGroup]:
        """The recurrence and the chunked form for a call, both computing in dtype `compute`."""
        layer, x, B, C, dt, _ = call
        A, D = layer.A, layer.D
        time_steps = _time_steps(dt.to(compute), layer)

        def step(states: torch.Tensor, rows: torch.Tensor | None) -> torch.Tensor:
            inputs, writes, reads, steps = (
                (t if rows is None else t.index_select(0, rows)).to(compute) for t in (x, B, C, time_steps)
            )
            states.mul_((steps * A).exp_()[:, :, None, None])
            by_group = states.view(len(inputs) * B.shape[1], -1, B.shape[2])
            written = (inputs * steps[..., None]).reshape(len(by_group), -1, 1)
            by_group.addcmul_(written, writes.reshape(len(by_group), 1, -1))
            result = torch.bmm(by_group, reads.reshape(len(by_group), -1, 1)).view_as(inputs)
            return result if D is None else result.addcmul_(inputs, D[:, None].to(compute))

        return step, partial(_run_group, call, time_steps)


def _time_steps(dt: torch.Tensor, layer: Mamba2Layer) -> torch.Tensor:
    if layer.dt_bias is not None:
        dt = dt + layer.dt_bias
    if layer.dt_softplus:
        dt = torch.nn.functional.softplus(dt)
    return dt.clamp(layer.dt_min, layer.dt_max)


def _run_group(
    call: Mamba2Call, steps: torch.Tensor, group: Group, chunk: int, states: torch.Tensor, after: After
) -> torch.Tensor:
    """Runs the chunks of a group from the states [M, H, P, S], with time steps [T, H]; see `RunGroup`."""
    layer, x, B, C, *_ = call
    A, D = layer.A, layer.D
    heads = states.shape[1]
    compute = states.dtype
    n = len(group.rows) // chunk

    def gather(rows: torch.Tensor) -> torch.Tensor:
        """Selects the rows of the chunks: [n, heads or groups, C, ...]."""
        picked = rows.index_select(0, group.rows)
        return picked.view(n, chunk, *rows.shape[1:]).transpose(1, 2)

    def per_group(by_head: torch.Tensor) -> torch.Tensor:
        return by_head.reshape(n, B.shape[1], -1, chunk, by_head.shape[-1])

    def flat(by_head: torch.Tensor) -> torch.Tensor:
        return by_head.reshape(n * heads, chunk, -1)

    weight = gather(steps)
    if group.beyond is not None:
        weight = weight.masked_fill(group.beyond.mT, 0)
    # In float64: after a strong decay the sums are large, but their differences must still be exact.
    b = (weight.double() * A[:, None]).clamp_min_(LEAST_LOG_DECAY).cumsum(-1)
    inputs = gather(x)
    keys, queries = gather(B).to(compute)[:, :, None], gather(C).to(compute)[:, :, None]
    between = (b[..., :, None] - b[..., None, :]).to(compute)
    future = torch.ones(chunk, chunk, dtype=torch.bool, device=b.device).triu(1)
    between = per_group(between.masked_fill_(future, -torch.inf).exp_())
    since_start = b.exp().to(compute)[..., None]
    until_end = (b[..., -1:] - b).exp().to(compute)[..., None]
    result = scan(
        group,
        states,
        attention=flat(between.mul_(queries @ keys.mT)),
        values=flat(inputs * weight[..., None]),
        keys=flat(keys * per_group(until_end)),
        queries=flat(queries * per_group(since_start)),
        decay=since_start[:, :, -1:].reshape(-1, 1, 1),
        after=after,
    )
    if D is not None:
        result.addcmul_(inputs.transpose(1, 2).reshape(result.shape).to(compute), D[:, None].to(compute))
    return result
