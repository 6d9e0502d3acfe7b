"""The gated delta rule in plain torch, for all sequences of a batch at once."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from switchrail.ops.backend import GatedDeltaBackend
from switchrail.ops.batch import Phase, StateBatch
from switchrail.ops.gated_delta.contract import CONTRACT
from switchrail.ops.slots import Slots

CHUNK = 32
"""Tokens a chunk. Of 16, 32 and 64 the fastest on a CPU for head sizes from 32 to 128."""

GROUP_TOKENS = 1024
"""About how many tokens are in work at once: what is kept for each takes CHUNK numbers a head and more."""

_NO_DECAY_LEFT = -1e3
"""exp of it is 0 in every dtype; finite, so that a sum of gates keeps the difference of what follows."""


@dataclass(frozen=True, slots=True)
class _Group:
    """Chunks that are worked on at once, ordered by their number within the sequence, then by sequence.

    Attributes:
        rows: [n * C] int64, the packed row of each place; a place past the end of its sequence repeats its
            last row.
        beyond: [n, C, 1] bool, the places past an end; None where there is none.
        levels: For each number within the sequence, the chunks' first and last + 1 in the group. Chunk i of a
            level belongs to sequence i, in the order of `Slots`.
    """

    rows: torch.Tensor
    beyond: torch.Tensor | None
    levels: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class _Plan:
    """What all layers of a step share.

    Attributes:
        slots: The states of the sequences that are not empty, longest first; in decode in order.
        chunk: C, tokens a chunk.
        groups: The chunks.
        places: [T] int64, the place of each packed row among the chunks; None where each sequence has one row
            only.
        padding_rows: [T, 1, 1] bool, the rows of padding; None where it is known that there is none.
    """

    slots: Slots
    chunk: int
    groups: tuple[_Group, ...]
    places: torch.Tensor | None
    padding_rows: torch.Tensor | None


class TorchGatedDelta(GatedDeltaBackend):
    """The chunked form in float32 (float64 for float64 inputs), derived from the recurrence.

    With b_i the sum of the gates g_1 to g_i of a chunk, S_0 the state before it and u_i = beta_i (v_i -
    exp(g_i) S_{i-1} k_i) what token i writes, the recurrence gives S_i = exp(b_i) S_0 + sum over j <= i of
    exp(b_i - b_j) u_j k_j^T. Put into u_i, this is a unit lower triangular system, (I + A) U = beta V - beta
    exp(b) K S_0^T, with A_ij = beta_i exp(b_i - b_j) k_i . k_j below the diagonal. Its inverse does not need
    S_0, and is taken for all chunks at once; only three products a chunk are left to do in order of time.

    On CUDA float32 products are as exact as torch is set to make them, which is IEEE unless it was told
    otherwise.
    """

    def plan(self, phase: Phase, batch: StateBatch) -> _Plan:
        """Cuts the sequences into chunks."""
        CONTRACT.check_batch(phase, batch)
        device = batch.read_slots.device
        starts = [0]
        for length in batch.seqlens:
            starts.append(starts[-1] + length)
        sequences = [n for n, length in enumerate(batch.seqlens) if length]
        longest = max((batch.seqlens[n] for n in sequences), default=1)
        if longest > 1:
            sequences.sort(key=lambda n: -batch.seqlens[n])
        slots = Slots(CONTRACT, batch, sequences)
        padding_rows = None
        if slots.padding is not None:
            counts = torch.tensor([batch.seqlens[n] for n in sequences]).to(device, non_blocking=True)
            owned = [row for n in sequences for row in range(starts[n], starts[n + 1])]
            padding_rows = torch.empty(starts[-1], dtype=torch.bool, device=device)
            padding_rows[torch.tensor(owned, dtype=torch.int64).to(device, non_blocking=True)] = (
                torch.repeat_interleave(slots.padding, counts, output_size=starts[-1])
            )
            padding_rows = padding_rows[:, None, None]
        if longest == 1:
            return _Plan(slots, 1, (), None, padding_rows)
        chunk = min(CHUNK, 1 << (longest - 1).bit_length())
        groups, places = _chunks([(starts[n], starts[n + 1]) for n in sequences], chunk, device)
        return _Plan(slots, chunk, groups, places, padding_rows)

    def prefill(
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
    ) -> None:
        """Runs T packed tokens of N sequences of any length."""
        tensors = {"q": q, "k": k, "v": v, "g": g, "beta": beta, "state": state, "out": out}
        CONTRACT.check_arguments(batch, {**tensors, "scale": scale, "qk_l2norm": qk_l2norm})
        assert isinstance(plan, _Plan)
        if plan.places is None:
            _run_single_tokens(plan, q, k, v, g, beta, state, out, scale, qk_l2norm)
            return
        compute = torch.promote_types(q.dtype, torch.float32)
        heads = q.shape[1]
        keys_queries = torch.cat([k, q], dim=1).to(compute)
        if qk_l2norm:
            keys_queries *= torch.rsqrt(keys_queries.square().sum(-1, keepdim=True) + 1e-6)
        keys_queries[:, heads:] *= scale
        states = plan.slots.load(state, compute)
        gates = g.double()
        results = [
            _run_group(group, plan.chunk, keys_queries, v, gates, beta, states) for group in plan.groups
        ]
        result = (results[0] if len(results) == 1 else torch.cat(results)).index_select(0, plan.places)
        if plan.padding_rows is not None:
            result.masked_fill_(plan.padding_rows, 0)
        out.copy_(result)
        plan.slots.store(state, states)

    def decode(
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
    ) -> None:
        """Runs one token a sequence."""
        tensors = {"q": q, "k": k, "v": v, "g": g, "beta": beta, "state": state, "out": out}
        CONTRACT.check_arguments(batch, {**tensors, "scale": scale, "qk_l2norm": qk_l2norm})
        assert isinstance(plan, _Plan)
        _run_single_tokens(plan, q, k, v, g, beta, state, out, scale, qk_l2norm)


def _run_single_tokens(
    plan: _Plan,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    out: torch.Tensor,
    scale: float,
    qk_l2norm: bool,
) -> None:
    """Runs one token of each sequence that is not empty: the recurrence, with the old state read once."""
    count, heads, key_size = q.shape
    value_heads, value_size = v.shape[1:]
    if count == 0:
        return
    grouped = (count, heads, value_heads // heads)
    compute = torch.promote_types(q.dtype, torch.float32)
    keys_queries = torch.stack([k, q], dim=2).to(compute)
    if qk_l2norm:
        keys_queries *= torch.rsqrt(keys_queries.square().sum(-1, keepdim=True) + 1e-6)
    keys, queries = keys_queries.unbind(2)
    states = plan.slots.load(state, compute)
    by_head = states.view(count * heads, -1, key_size)
    products = torch.bmm(keys_queries.view(count * heads, 2, key_size), by_head.mT)
    predicted, recalled = products.view(count, heads, 2, -1, value_size).unbind(2)
    decay = g.to(compute).exp().view(*grouped, 1)
    written = (v.reshape(*grouped, value_size) - decay * predicted) * beta.reshape(*grouped, 1)
    alignment = (keys * queries).sum(-1).view(count, heads, 1, 1)
    result = (decay * recalled).addcmul_(written, alignment).mul_(scale).view_as(out)
    if plan.padding_rows is not None:
        result.masked_fill_(plan.padding_rows, 0)
    out.copy_(result)
    states.mul_(decay.view(count, value_heads, 1, 1))
    by_head.addcmul_(written.view(count * heads, -1, 1), keys.reshape(count * heads, 1, key_size))
    plan.slots.store(state, states)


def _chunks(
    sequences: list[tuple[int, int]], chunk: int, device: torch.device
) -> tuple[tuple[_Group, ...], torch.Tensor]:
    """Cuts sequences, as first and last + 1 row and longest first, into groups of chunks; places each row."""
    counts = [-(-(stop - start) // chunk) for start, stop in sequences]
    groups: list[_Group] = []
    places = torch.empty(sum(stop - start for start, stop in sequences), dtype=torch.int64)
    done = 0
    active = len(sequences)
    firsts: list[int] = []
    lasts: list[int] = []
    levels: list[tuple[int, int]] = []
    for number in range(counts[0]):
        while counts[active - 1] <= number:
            active -= 1
        levels.append((len(firsts), len(firsts) + active))
        firsts += [start + number * chunk for start, _ in sequences[:active]]
        lasts += [stop - 1 for _, stop in sequences[:active]]
        if len(firsts) * chunk < GROUP_TOKENS and number + 1 < counts[0]:
            continue
        rows = torch.tensor(firsts)[:, None] + torch.arange(chunk)
        last = torch.tensor(lasts)[:, None]
        beyond = rows > last
        rows = rows.minimum(last).flatten()
        is_row = ~beyond.flatten()
        places[rows[is_row]] = done + is_row.nonzero()[:, 0]
        done += len(rows)
        groups.append(
            _Group(
                rows.to(device, non_blocking=True),
                beyond[:, :, None].to(device, non_blocking=True) if beyond.any() else None,
                tuple(levels),
            )
        )
        firsts, lasts, levels = [], [], []
    return tuple(groups), places.to(device, non_blocking=True)


def _run_group(
    group: _Group,
    chunk: int,
    keys_queries: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    states: torch.Tensor,
) -> torch.Tensor:
    """Runs the chunks of a group from the states [M, HV, V, K] on, which it brings up to date.

    Args:
        group: The chunks.
        chunk: C, tokens a chunk.
        keys_queries: [T, 2 H, K], the keys and the scaled queries, in the dtype to compute in.
        v: [T, HV, V].
        g: [T, HV] float64.
        beta: [T, HV].
        states: [M, HV, V, K], in the dtype to compute in.

    Returns:
        [n * C, HV, V], the outputs by place.
    """
    value_heads, value_size, key_size = states.shape[1:]
    heads = keys_queries.shape[1] // 2
    compute = states.dtype
    n = len(group.rows) // chunk
    b = g.index_select(0, group.rows).view(n, chunk, value_heads).clamp_min(_NO_DECAY_LEFT)
    weight = beta.index_select(0, group.rows).view(n, chunk, value_heads).to(compute)
    if group.beyond is not None:
        b = b.masked_fill(group.beyond, 0)
        weight = weight.masked_fill(group.beyond, 0)
    b = b.transpose(1, 2).cumsum(-1)
    weight = weight.transpose(1, 2)
    values = v.index_select(0, group.rows).view(n, chunk, value_heads, value_size).transpose(1, 2)
    by_head = keys_queries.index_select(0, group.rows).view(n, chunk, 2, heads, key_size)
    by_head = by_head.permute(0, 3, 2, 1, 4).contiguous()
    keys, queries = by_head[:, :, None, 0], by_head[:, :, None, 1]

    def per_head(x: torch.Tensor) -> torch.Tensor:
        return x.reshape(n, heads, value_heads // heads, chunk, -1)

    def flat(x: torch.Tensor) -> torch.Tensor:
        return x.reshape(n * value_heads, chunk, -1)

    # In float64: after a strong decay the sums are large, and their differences must still be exact.
    between = (b[..., :, None] - b[..., None, :]).to(compute)
    future = torch.ones(chunk, chunk, dtype=torch.bool, device=b.device).triu(1)
    between = per_head(between.masked_fill_(future, -torch.inf).exp_())
    products = torch.bmm(
        by_head.view(n * heads, 2 * chunk, key_size), keys.reshape(n * heads, chunk, key_size).mT
    )
    products = products.view(n, heads, 2, 1, chunk, chunk)
    system = flat(between * products[:, :, 0] * per_head(weight))
    attention = flat(between.mul_(products[:, :, 1]))
    identity = torch.eye(chunk, dtype=compute, device=b.device)
    inverse = torch.linalg.solve_triangular(system, identity, upper=False, unitriangular=True)

    since_start = b.exp().to(compute)
    right = torch.empty(n * value_heads, chunk, value_size + key_size, dtype=compute, device=b.device)
    torch.mul(values, weight[..., None], out=right[..., :value_size].view_as(values))
    torch.mul(keys, per_head(weight * since_start), out=per_head(right[..., value_size:]))
    solved = torch.bmm(inverse, right)
    values_written, keys_read = solved[..., :value_size], solved[..., value_size:]
    queries_read = flat(queries * per_head(since_start))
    keys_written = flat(keys * per_head((b[..., -1:] - b).exp().to(compute)))
    decay = since_start[..., -1:].reshape(-1, 1, 1)

    written = torch.empty(n * value_heads, chunk, value_size, dtype=compute, device=b.device)
    result = torch.empty_like(written)
    for first, last in group.levels:
        at = slice(first * value_heads, last * value_heads)
        active = states[: last - first].view(-1, value_size, key_size)
        torch.baddbmm(values_written[at], keys_read[at], active.mT, alpha=-1, out=written[at])
        torch.bmm(queries_read[at], active.mT, out=result[at])
        active.mul_(decay[at]).baddbmm_(written[at].mT, keys_written[at])
    result.baddbmm_(attention, written)
    return result.view(n, value_heads, chunk, value_size).transpose(1, 2).reshape(-1, value_heads, value_size)


__all__ = ["CHUNK", "TorchGatedDelta"]
