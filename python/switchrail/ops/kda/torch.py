"""Kimi delta attention in plain torch, for all sequences of a batch at once."""

from __future__ import annotations

import torch

from switchrail.ops.chunks import After, Group, invert_unit_lower, scan
from switchrail.ops.delta import Tokens, TorchDelta
from switchrail.ops.kda.contract import CONTRACT, KdaBackend, KdaCall

CHUNK = 32
"""Tokens per chunk, a power of 2.

On a CPU this is the fastest of 16, 32, 64 and 128 for head sizes 32 and 128.
"""


class TorchKda(TorchDelta[KdaCall], KdaBackend):
    """The chunked form in float32 (float64 for float64 inputs), derived from the recurrence.

    Let b_i be the sums of the gates g_1 to g_i of a chunk, one per channel. The linear system for the written
    values u_i is that of the gated delta rule with A_ij = beta_i sum over c of k_ic k_jc exp(b_ic - b_jc).
    Here the exponential can't be moved out of the product: exp(b_i) exp(-b_j) would overflow. But for any
    token m between j and i, exp(b_i - b_j) equals exp(b_i - b_m) exp(b_m - b_j), and both factors are at most
    1. So the pairs of tokens are computed by halves: m is the middle of the chunk for pairs across the
    middle, then the middle of each half, and so on. Both exponents are sums of gates, computed without
    subtractions. So they stay accurate after a strong decay, and a gate of -inf needs no special case.

    On CUDA, torch's settings determine the precision of float32 products; the default is IEEE.
    """

    contract = CONTRACT
    chunk = CHUNK

    @staticmethod
    def step(states: torch.Tensor, tokens: Tokens) -> torch.Tensor:
        """Run one token, reading the old state once."""
        count, value_heads, value_size, key_size = states.shape
        keys_queries = tokens.keys_queries.repeat_interleave(
            value_heads // tokens.keys_queries.shape[1], dim=1
        )
        keys, queries = keys_queries.unbind(2)
        decay = tokens.g.to(states.dtype).exp()[:, :, None]
        by_head = states.view(-1, value_size, key_size)
        products = torch.bmm((keys_queries * decay).view(-1, 2, key_size), by_head.mT)
        predicted, recalled = products.view(count, value_heads, 2, value_size).unbind(2)
        written = (tokens.v - predicted) * tokens.beta[:, :, None]
        states.mul_(decay)
        by_head.addcmul_(written.reshape(-1, value_size, 1), keys.reshape(-1, 1, key_size))
        return recalled.addcmul(written, (keys * queries).sum(-1, keepdim=True))

    @staticmethod
    def run_group(
        tokens: Tokens, group: Group, chunk: int, states: torch.Tensor, after: After
    ) -> torch.Tensor:
        """Computes the terms without the state for all chunks of the group at once, then scans the chunks."""
        value_heads, value_size, key_size = states.shape[1:]
        repeats = value_heads // tokens.keys_queries.shape[1]
        compute = states.dtype
        n = len(group.rows) // chunk
        gates = tokens.g.index_select(0, group.rows).view(n, chunk, value_heads, key_size).to(compute)
        weight = tokens.beta.index_select(0, group.rows).view(n, chunk, value_heads).to(compute)
        if group.beyond is not None:
            gates = gates.masked_fill(group.beyond[..., None], 0)
            weight = weight.masked_fill(group.beyond, 0)
        weight = weight.transpose(1, 2)[..., None]
        values = tokens.v.index_select(0, group.rows).view(n, chunk, value_heads, value_size).transpose(1, 2)
        by_head = tokens.keys_queries.repeat_interleave(repeats, dim=1).index_select(0, group.rows)
        by_head = by_head.view(n, chunk, value_heads, 2, key_size).permute(3, 0, 2, 1, 4).contiguous()
        keys, queries = by_head

        since_start = gates.transpose(1, 2).contiguous()
        until_end = torch.zeros_like(since_start)
        # [2, n, HV, C, C], the products of keys (0) and of queries (1) with earlier keys, computed by halves.
        # Queries are also multiplied by the key of their own token.
        products = torch.zeros(2, n, value_heads, chunk, chunk, dtype=compute, device=gates.device)
        products[1].diagonal(dim1=-2, dim2=-1).copy_((keys * queries).sum(-1))
        half = 1
        while half < chunk:
            pairs = chunk // (2 * half)
            split = (n * value_heads, pairs, 2, half, key_size)
            since, until = since_start.view(split), until_end.view(split)
            later = by_head.view(2, *split)[:, :, :, 1] * since[:, :, 1].exp()
            earlier = keys.view(split)[:, :, 0] * until[:, :, 0].exp()
            blocks = products.view(2, n * value_heads, pairs, 2, half, pairs, 2, half)[:, :, :, 1, :, :, 0]
            blocks.diagonal(dim1=2, dim2=4).copy_((later @ earlier.mT).movedim(2, -1))
            total = since[:, :, :, -1:].clone()
            since[:, :, 1] += total[:, :, 0]
            until[:, :, 0] += total[:, :, 1]
            half *= 2

        def flat(x: torch.Tensor) -> torch.Tensor:
            return x.reshape(n * value_heads, chunk, -1)

        inverse = invert_unit_lower(flat(products[0] * weight))
        decayed = since_start.exp()
        right = torch.cat([values * weight, keys * decayed * weight], dim=-1)
        solved = torch.bmm(inverse, flat(right))
        return scan(
            group,
            states,
            attention=flat(products[1]),
            values=solved[..., :value_size],
            removal=solved[..., value_size:],
            keys=flat(keys * until_end.exp()),
            queries=flat(queries * decayed),
            decay=flat(decayed)[:, -1:],
            after=after,
        )
