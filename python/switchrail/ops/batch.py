"""Descriptions of the sequences that are packed into one call."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

import torch

Phase = Literal["prefill", "decode", "verify"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceBatch:
    """N sequences, packed one after another into T rows.

    Attributes:
        cu_seqlens: [N + 1] int32 on the call's device: sequence n owns the rows from `cu_seqlens[n]` up to,
            but not including, `cu_seqlens[n + 1]`.
        seqlens: The N lengths on the host, each >= 0. In decode each is 1, so T = N.
    """

    cu_seqlens: torch.Tensor
    seqlens: tuple[int, ...]


def sequences(seqlens: tuple[int, ...], device: torch.device | str) -> dict[str, Any]:
    """The fields `seqlens` and `cu_seqlens` of a batch, without waiting for the copy to the device.

    Args:
        seqlens: The number of rows of each sequence.
        device: The device of the call.
    """
    starts = torch.zeros(len(seqlens) + 1, dtype=torch.int32)
    starts[1:] = torch.tensor(seqlens, dtype=torch.int32).cumsum(0)
    return {"seqlens": seqlens, "cu_seqlens": starts.to(device, non_blocking=True)}


def fields_of(batch: SequenceBatch, kind: type[SequenceBatch]) -> dict[str, Any]:
    """The fields of the class `kind`, by name, from a batch of this class or of a subclass."""
    return {field.name: getattr(batch, field.name) for field in fields(kind)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The largest batches that a plan can be refreshed for.

    Attributes:
        sequences: N, the same in every batch; a batch of fewer sequences is padded.
        rows: The largest T; N in decode.
        tokens: The largest number of cached tokens per sequence, including the batch's own.
    """

    sequences: int
    rows: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBatch(SequenceBatch):
    """A batch for an op that keeps one state per sequence in a pool of slots.

    The engine reserves slot 0 and assigns it to no sequence. A sequence with slot -1 for both reading and
    writing is padding: its rows of `out` are zeros, and no state is read or written. The state of an empty
    sequence (one without rows) is neither read nor written, except in a `DeferredBatch`.

    Attributes:
        read_slots: [N] int64, the slots of the initial states.
        write_slots: [N] int64, the slots for the final states. No two sequences share a write slot other than
            -1 and 0, and no sequence reads a slot that another one writes.
        has_initial_state: [N] bool; False means that the initial state is zero and the slot is not read. In
            decode it is True for every sequence that has a slot.
        null_slot: -1; or 0 if slot 0 means the same as -1 in all tables of slots of the batch (the feature
            `null_slot`).
        read_only: Whether sequences may have a slot to read and -1 to write, so that their states stay
            unchanged (the feature `read_only_states`). Slot 0 may then be overwritten.
    """

    read_slots: torch.Tensor
    write_slots: torch.Tensor
    has_initial_state: torch.Tensor
    null_slot: int = -1
    read_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointBatch(StateBatch):
    """A prefill that also stores intermediate states, for prefix caching: the feature `checkpoints`.

    Attributes:
        checkpoint_every: The number of rows between stored states, counted from each sequence's first row of
            the batch; 1 or more.
        checkpoint_slots: [N, X] int64, the slots for the states after `checkpoint_every` rows, after twice as
            many rows, and so on; -1 stores none. Entries past a sequence's end are ignored. No two states
            share a slot. All entries of padding are -1.
    """

    checkpoint_every: int
    checkpoint_slots: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyBatch(StateBatch):
    """A batch of drafted tokens. The rows of each sequence form a chain or a tree.

    Attributes:
        parents: [T] int32, the parent of each row as an index within its sequence, always an earlier row; -1
            if the row follows the state directly. In a chain the parent of row i is row i - 1.
        parent_rows: The same T numbers on the host; None if only the device has them (the feature
            `device_parents`).
    """

    parents: torch.Tensor
    parent_rows: tuple[int, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowStatesBatch(VerifyBatch):
    """A batch of drafted tokens whose states are stored by row: the feature `row_states`.

    `run` writes the state after row i of sequence n to slot `row_slots[n, i]` of the layer's `row_states`, or
    of `state` if `row_states` is None. `run` writes nothing to `write_slots` and returns None, and `commit`
    is not called. The slot that a sequence reads may be one of its own row slots.

    Attributes:
        row_slots: [N, X] int64, X at least the largest number of rows of a sequence; -1 stores none. Entries
            past a sequence's end are ignored. No two states share a slot.
    """

    row_slots: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class DeferredBatch(VerifyBatch):
    """A batch of drafted tokens that is committed by the next verification: the feature `deferred_commit`.

    So each verification reads a state once and writes it once. With a separate commit, the verification and
    the commit would each read the state.

    For each layer, the backend keeps numbered records of the effects of drafted rows. `run` first applies the
    accepted rows of an earlier record to each sequence's state, and writes the result, in the dtype of the
    pool, to the sequence's slot. The batch's rows start from this state, and their effects are kept in
    another record. A sequence without rows applies its record too. `run` returns None, and `commit` is not
    called.

    Each sequence writes the slot that it reads, and `read_only` is False. A sequence with a record to apply
    has True in `has_initial_state`.

    Attributes:
        pending_records: [N] int64, the record to apply first; -1 for none, and for padding.
        pending_rows: [N, X] bool, whether to apply each row of that record; X at least the largest number of
            rows of a sequence, and the same in all batches. The applied rows form a path from the state.
            Ignored if there is no record to apply.
        records: [N] int64, the record that keeps the sequence's rows; -1 for padding, and possibly for
            sequences without rows. No record is listed twice, and no listed record is in `pending_records`.
        record_count: The number of records, the same in all batches.
    """

    pending_records: torch.Tensor
    pending_rows: torch.Tensor
    records: torch.Tensor
    record_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedBatch(SequenceBatch):
    """A batch for softmax attention over a paged cache, which already has the batch's own tokens.

    Row i of sequence n has position `kv_lens[n] - seqlens[n] + i` and attends to all positions up to its
    own, within the layer's window if it has one.

    Attributes:
        page_table: [N, P] int32, the pages of each sequence in order; entries past the last used page are
            undefined.
        kv_lens: [N] int32 on the device, the number of cached tokens of each sequence, including the batch's
            own; 0 means padding: the sequence's rows of `out` are zeros.
        kv_seqlens: The same N lengths on the host.
        kv_bounds: Whether `kv_seqlens` are only upper bounds of `kv_lens` (the feature `kv_bounds`).
    """

    page_table: torch.Tensor
    kv_lens: torch.Tensor
    kv_seqlens: tuple[int, ...]
    kv_bounds: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedTreeBatch(PagedBatch):
    """A batch of drafted tokens for softmax attention. The rows of each sequence form a tree.

    This is the feature `trees`; chains of drafted tokens use a plain `PagedBatch`. Row i of a sequence has
    the same position in the cache as in a chain. The row attends to the tokens before the sequence's rows, to
    its ancestors and to itself.

    Attributes:
        parents: See `VerifyBatch`; -1 if the row directly follows the tokens before the sequence's rows.
        parent_rows: See `VerifyBatch`.
    """

    parents: torch.Tensor
    parent_rows: tuple[int, ...] | None
