"""Splits batches into chunks and runs recurrences over them, for the plain-torch backends with a state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate

import torch

from switchrail.ops.batch import CheckpointBatch, Phase, StateBatch
from switchrail.ops.contract import Contract
from switchrail.ops.slots import Slots, indices, keep, normal

GROUP_TOKENS = 1024
"""A group of chunks is complete once it has this many tokens. More tokens need more memory."""

LEAST_LOG_DECAY = -1e3
"""Lower log decays are raised to this number.

exp(-1e3) is 0, like exp(-inf), but differences of -1e3 and its products with 0 are numbers, not NaN.
"""


After = Callable[[int, torch.Tensor], None]
"""Called with the number of a chunk within its sequence (from 0), and the states [M, ...] of all sequences
after that chunk. A sequence without that chunk has its final state."""


@dataclass(frozen=True, slots=True)
class Group:
    """Chunks that are processed at once, sorted by their number within the sequence, then by sequence.

    Attributes:
        rows: [n * C] int64, the packed row of each position in the n chunks. Positions past the end of a
            sequence repeat its last row.
        beyond: [n, C, 1] bool, True for positions past a sequence's end; None if there are none.
        levels: For each chunk number, the range (first, last + 1) of its chunks in the group. Chunk i of a
            level belongs to sequence i in the order of `Slots`.
        first_number: The chunk number of the first level.
    """

    rows: torch.Tensor
    beyond: torch.Tensor | None
    levels: tuple[tuple[int, int], ...]
    first_number: int


@dataclass(frozen=True, slots=True)
class ChunkPlan:
    """The chunks of a batch: the data that all layers of a step share.

    Attributes:
        seqlens: The lengths of the batch's sequences.
        slots: The states of the nonempty sequences, longest first; of equal length in the batch's order.
        chunk: C, the number of tokens per chunk.
        groups: The chunks.
        positions: [T] int64, the position of each packed row in the chunks of all groups; None if no
            sequence has more than one row; then there are no chunks.
        padding_rows: [T] bool, which rows are padding; None if it is known that none are.
        kept: The checkpoints. Maps the number of a chunk to [R] int64, the slots (or -1) for the states of
            the first R sequences after that chunk. Chunks without checkpoints are absent.
    """

    seqlens: tuple[int, ...]
    slots: Slots
    chunk: int
    groups: tuple[Group, ...]
    positions: torch.Tensor | None
    padding_rows: torch.Tensor | None
    kept: Mapping[int, torch.Tensor]

    def keep(self, pool: torch.Tensor, number: int, states: torch.Tensor) -> None:
        """Store those of the states [M, ...] after chunk `number` that are checkpoints."""
        if number in self.kept:
            slots = self.kept[number]
            keep(pool, states[: len(slots)], slots)

    def write(self, results: list[torch.Tensor], out: torch.Tensor) -> None:
        """Write the results of the groups, [n * C, ...] each, to `out` [T, ...]."""
        assert self.positions is not None
        result = (results[0] if len(results) == 1 else torch.cat(results)).index_select(0, self.positions)
        self.write_rows(result, out)

    def write_rows(self, result: torch.Tensor, out: torch.Tensor) -> None:
        """Write a result with the shape of `out`, with zeros for padding. May modify the result."""
        if self.padding_rows is not None:
            result.masked_fill_(self.padding_rows.view(-1, *[1] * (result.ndim - 1)), 0)
        out.copy_(result)


def plan_chunks(contract: Contract, phase: Phase, batch: StateBatch, size: int) -> ChunkPlan:
    """Split the sequences of a batch into chunks of `size` tokens, a power of 2.

    Chunks are smaller if all sequences fit into smaller ones, or if a checkpoint would be inside a chunk.

    Raises:
        ContractError: The batch breaks the contract.
    """
    contract.check_batch(phase, batch, contract.features)
    device = batch.read_slots.device
    starts = [0, *accumulate(batch.seqlens)]
    sequences = [n for n, length in enumerate(batch.seqlens) if length]
    longest = max((batch.seqlens[n] for n in sequences), default=1)
    if longest > 1:
        sequences.sort(key=lambda n: -batch.seqlens[n])
    slots = Slots(contract, batch, sequences)
    padding_rows = None
    if slots.padding is not None:
        counts = indices([batch.seqlens[n] for n in sequences], device)
        owned = [row for n in sequences for row in range(starts[n], starts[n + 1])]
        padding_rows = torch.empty(starts[-1], dtype=torch.bool, device=device)
        padding_rows[indices(owned, device)] = torch.repeat_interleave(
            slots.padding, counts, output_size=starts[-1]
        )
    chunk = min(size, 1 << (longest - 1).bit_length())
    kept: dict[int, torch.Tensor] = {}
    if isinstance(batch, CheckpointBatch):
        every = batch.checkpoint_every
        chunk = min(chunk, every & -every)
        order = indices(sequences, device)
        ordered = normal(batch.checkpoint_slots.index_select(0, order), batch)
        for index in range(longest // every):
            reached = sum(batch.seqlens[n] >= (index + 1) * every for n in sequences)
            kept[(index + 1) * every // chunk - 1] = ordered[:reached, index]
    if longest == 1:
        return ChunkPlan(batch.seqlens, slots, 1, (), None, padding_rows, kept)
    groups, positions = _group_chunks([(starts[n], starts[n + 1]) for n in sequences], chunk, device)
    return ChunkPlan(batch.seqlens, slots, chunk, groups, positions, padding_rows, kept)


def _group_chunks(
    sequences: list[tuple[int, int]], chunk: int, device: torch.device
) -> tuple[tuple[Group, ...], torch.Tensor]:
    """Split sequences into groups of chunks. Also return the position of each row in the chunks.

    Each sequence is given as a range (first row, last row + 1); the longest comes first.
    """
    counts = [-(-(stop - start) // chunk) for start, stop in sequences]
    groups: list[Group] = []
    positions = torch.empty(sum(stop - start for start, stop in sequences), dtype=torch.int64)
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
        positions[rows[is_row]] = done + is_row.nonzero()[:, 0]
        done += len(rows)
        groups.append(
            Group(
                rows.to(device, non_blocking=True),
                beyond[:, :, None].to(device, non_blocking=True) if beyond.any() else None,
                tuple(levels),
                number + 1 - len(levels),
            )
        )
        firsts, lasts, levels = [], [], []
    return tuple(groups), positions.to(device, non_blocking=True)


def scan(
    group: Group,
    states: torch.Tensor,
    *,
    attention: torch.Tensor,
    values: torch.Tensor,
    keys: torch.Tensor,
    queries: torch.Tensor,
    decay: torch.Tensor,
    removal: torch.Tensor | None = None,
    after: After,
) -> torch.Tensor:
    """Run the recurrence over the chunks of a group, in the order of time.

    Let S be the state before a chunk and U = values - removal S^T the values that its tokens write. The
    chunk's result is queries S^T + attention U, and the next state is S decay + U^T keys. Chunks and heads
    share one axis.

    Args:
        group: The chunks.
        states: [M, HV, V, K], updated in place.
        attention: [n * HV, C, C], the weight with which each token reads the value that an earlier token or
            itself wrote.
        values: [n * HV, C, V].
        keys: [n * HV, C, K], multiplied by the decay from each token to the chunk's end.
        queries: [n * HV, C, K], multiplied by the decay from the chunk's start to each token.
        decay: [n * HV, 1, 1] or [n * HV, 1, K], the decay over the whole chunk.
        removal: [n * HV, C, K], see U above; None if U does not depend on the state.
        after: Called after each level.

    Returns:
        [n * C, HV, V], the results in the order of `group.rows`.
    """
    value_heads, value_size, key_size = states.shape[1:]
    chunk = attention.shape[1]
    written = values if removal is None else torch.empty_like(values, memory_format=torch.contiguous_format)
    result = torch.empty(len(attention), chunk, value_size, dtype=states.dtype, device=states.device)
    for number, (first, last) in enumerate(group.levels, group.first_number):
        at = slice(first * value_heads, last * value_heads)
        active = states[: last - first].view(-1, value_size, key_size)
        if removal is not None:
            torch.baddbmm(values[at], removal[at], active.mT, alpha=-1, out=written[at])
        torch.bmm(queries[at], active.mT, out=result[at])
        active.mul_(decay[at]).baddbmm_(written[at].mT, keys[at])
        after(number, states)
    result.baddbmm_(attention, written)
    by_head = result.view(-1, value_heads, chunk, value_size)
    return by_head.transpose(1, 2).reshape(-1, value_heads, value_size)


def invert_unit_lower(system: torch.Tensor) -> torch.Tensor:
    """(I + A)^-1 for each A [..., C, C]. Only the entries of A below the diagonal are read."""
    identity = torch.eye(system.shape[-1], dtype=system.dtype, device=system.device)
    inverse: torch.Tensor = torch.linalg.solve_triangular(system, identity, upper=False, unitriangular=True)
    return inverse
