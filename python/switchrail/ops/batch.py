"""What a backend is told about the sequences packed into one call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

Phase = Literal["prefill", "decode", "verify"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceBatch:
    """N sequences packed one after another into T rows.

    Attributes:
        cu_seqlens: [N + 1] int32 on the call's device: sequence n owns rows `cu_seqlens[n]` to
            `cu_seqlens[n + 1]`.
        seqlens: the N lengths on the host, each >= 0. In decode each is 1, so T = N.
    """

    cu_seqlens: torch.Tensor
    seqlens: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How large the batches are that a plan can be refreshed for.

    Attributes:
        sequences: N, the same in each of them; where there are fewer, the others are padding.
        rows: T, at most; in decode N.
        tokens: Tokens of a sequence in the cache, at most, the batch's own included.
    """

    sequences: int
    rows: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBatch(SequenceBatch):
    """A batch for an op that keeps one state per sequence in a pool of slots.

    Slot 0 is reserved by the engine and never given to a sequence. A sequence with slot -1 in both is
    padding: its rows of `out` are zeros, and no state is read or written. A sequence of length zero keeps its
    state: nothing is read or written for it.

    Attributes:
        read_slots: [N] int64, where the initial state is read.
        write_slots: [N] int64, where the final state is written. No two sequences share a write slot other
            than -1, and no sequence reads a slot that another one writes.
        has_initial_state: [N] bool; where False the initial state is zero and the dirty slot is not read. In
            decode it is True for every sequence that has a slot.
    """

    read_slots: torch.Tensor
    write_slots: torch.Tensor
    has_initial_state: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointBatch(StateBatch):
    """A prefill that keeps states on its way, as prefix caching wants them: the feature `checkpoints`.

    Attributes:
        checkpoint_every: How many rows there are from one kept state to the next, counted from each
            sequence's first row of the batch; 1 or more.
        checkpoint_slots: [N, X] int64, where the state after `checkpoint_every`, twice that, and so on, is
            written; -1 where it is not wanted. What lies beyond a sequence's end is not looked at. No other
            sequence, and no other state, has such a slot. Of padding they are -1.
    """

    checkpoint_every: int
    checkpoint_slots: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyBatch(StateBatch):
    """A batch of drafted tokens, of which each sequence's rows form a chain or a tree.

    Attributes:
        parents: [T] int32, the row that each row follows, counted within its sequence and before it; -1 where
            it follows the state. In a chain row i follows row i - 1.
        parent_rows: The same T numbers on the host.
    """

    parents: torch.Tensor
    parent_rows: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedBatch(SequenceBatch):
    """A batch for softmax attention over a paged key-value cache that already holds the batch's own tokens.

    Row i of sequence n stands at position `kv_seqlens[n] - seqlens[n] + i` and sees every position up to its
    own.

    Attributes:
        page_table: [N, P] int32, the pages of each sequence in order; entries past the last used page are
            undefined.
        kv_lens: [N] int32 on the device, tokens in the cache, the batch's own included; 0 is padding: the
            sequence's rows of `out` are zeros.
        kv_seqlens: the same N lengths on the host.
    """

    page_table: torch.Tensor
    kv_lens: torch.Tensor
    kv_seqlens: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedTreeBatch(PagedBatch):
    """A batch of drafted tokens for softmax attention, of which each sequence's rows form a tree.

    It is the feature `trees`; drafted chains come as a `PagedBatch`. Row i of a sequence stands in the cache
    where a chain's would, and sees what is before the sequence's rows, the rows that it follows, and itself.

    Attributes:
        parents: As in a `VerifyBatch`.
        parent_rows: Likewise.
    """

    parents: torch.Tensor
    parent_rows: tuple[int, ...]
