"""The gated delta rule in plain torch, for all sequences of a batch at once."""

from __future__ import annotations

import torch

from switchrail.ops.chunks import LEAST_LOG_DECAY, After, Group, invert_unit_lower, scan
from switchrail.ops.delta import Tokens, TorchDelta
from switchrail.ops.gated_delta.contract import CONTRACT, GatedDeltaBackend, GatedDeltaCall

CHUNK = 32
"""Tokens per chunk. On a CPU this is the fastest of 16, 32 and 64 for head sizes from 32 to 128."""


class TorchGatedDelta(TorchDelta[GatedDeltaCall], GatedDeltaBackend):
    """The chunked form in float32 (float64 for float64 inputs), derived from the recurrence.

    Let b_i be the sum of the gates g_1 to g_i of a chunk, S_0 the state before it, and u_i = beta_i (v_i -
    exp(g_i) S_{i-1} k_i) the value that token i writes. The recurrence gives S_i = exp(b_i) S_0 + sum over j
    <= i of exp(b_i - b_j) u_j k_j^T. Substituting this into u_i gives a unit lower triangular system, (I + A)
    U = beta V - beta exp(b) K S_0^T, with A_ij = beta_i exp(b_i - b_j) k_i . k_j below the diagonal. Its
    inverse does not depend on S_0 and is computed for all chunks at once. Only three products per chunk
    remain sequential.

    On CUDA, torch's settings determine the precision of float32 products; the default is IEEE.
    """

    contract = CONTRACT
    chunk = CHUNK

    @staticmethod
    def step(states: torch.Tensor, tokens: Tokens) -> torch.Tensor:
        """Run one token, reading the old state once."""
        count, heads, _, key_size = tokens.keys_queries.shape
        value_heads, value_size = tokens.v.shape[1:]
        grouped = (count, heads, value_heads // heads)
        keys, queries = tokens.keys_queries.unbind(2)
        by_head = states.view(count * heads, -1, key_size)
        products = torch.bmm(tokens.keys_queries.view(count * heads, 2, key_size), by_head.mT)
        predicted, recalled = products.view(count, heads, 2, -1, value_size).unbind(2)
        decay = tokens.g.to(states.dtype).exp().view(*grouped, 1)
        values = tokens.v.reshape(*grouped, value_size)
        written = (values - decay * predicted) * tokens.beta.reshape(*grouped, 1)
        alignment = (keys * queries).sum(-1).view(count, heads, 1, 1)
        result = (decay * recalled).addcmul_(written, alignment)
        states.mul_(decay.view(count, value_heads, 1, 1))
        by_head.addcmul_(written.reshape(count * heads, -1, 1), keys.reshape(count * heads, 1, key_size))
        return result.view(count, value_heads, value_size)

    @staticmethod
    def run_group(
        tokens: Tokens, group: Group, chunk: int, states: torch.Tensor, after: After
    ) -> torch.Tensor:
        """Computes the terms without the state for all chunks of the group at once, then scans the chunks."""
        value_heads, value_size, key_size = states.shape[1:]
        heads = tokens.keys_queries.shape[1]
        compute = states.dtype
        n = len(group.rows) // chunk
        # In float64: after a strong decay the sums are large, but their differences must be exact.
        b = tokens.g.index_select(0, group.rows).view(n, chunk, value_heads).double()
        b = b.clamp_min(LEAST_LOG_DECAY)
        weight = tokens.beta.index_select(0, group.rows).view(n, chunk, value_heads).to(compute)
        if group.beyond is not None:
            b = b.masked_fill(group.beyond, 0)
            weight = weight.masked_fill(group.beyond, 0)
        b = b.transpose(1, 2).cumsum(-1)
        weight = weight.transpose(1, 2)
        values = tokens.v.index_select(0, group.rows).view(n, chunk, value_heads, value_size).transpose(1, 2)
        by_head = tokens.keys_queries.index_select(0, group.rows).view(n, chunk, heads, 2, key_size)
        by_head = by_head.permute(0, 2, 3, 1, 4).contiguous()
        keys, queries = by_head[:, :, None, 0], by_head[:, :, None, 1]

        def per_head(x: torch.Tensor) -> torch.Tensor:
            return x.reshape(n, heads, value_heads // heads, chunk, -1)

        def flat(x: torch.Tensor) -> torch.Tensor:
            return x.reshape(n * value_heads, chunk, -1)

        between = (b[..., :, None] - b[..., None, :]).to(compute)
        future = torch.ones(chunk, chunk, dtype=torch.bool, device=b.device).triu(1)
        between = per_head(between.masked_fill_(future, -torch.inf).exp_())
        products = torch.bmm(
            by_head.view(n * heads, 2 * chunk, key_size), keys.reshape(n * heads, chunk, key_size).mT
        )
        products = products.view(n, heads, 2, 1, chunk, chunk)
        inverse = invert_unit_lower(flat(between * products[:, :, 0] * per_head(weight)))
        attention = flat(between.mul_(products[:, :, 1]))

        since_start = b.exp().to(compute)
        right = torch.empty(n * value_heads, chunk, value_size + key_size, dtype=compute, device=b.device)
        torch.mul(values, weight[..., None], out=right[..., :value_size].view_as(values))
        torch.mul(keys, per_head(weight * since_start), out=per_head(right[..., value_size:]))
        solved = torch.bmm(inverse, right)
        return scan(
            group,
            states,
            attention=attention,
            values=solved[..., :value_size],
            removal=solved[..., value_size:],
            keys=flat(keys * per_head((b[..., -1:] - b).exp().to(compute))),
            queries=flat(queries * per_head(since_start)),
            decay=since_start[..., -1:].reshape(-1, 1, 1),
            after=after,
        )
