"""Drafted tokens of ops with a state: plans and commits.

The rows of a sequence form a chain or a tree, and some may not be accepted. Storing the state after each row
would be expensive: a [V, K] state per head is many times larger than the keys and values of a few rows. So it
is done only for a `RowStatesBatch`. Otherwise `verify` leaves the state that precedes the drafts unchanged,
and records each row's effect on a state: a decay by exp(g) and an added u k^T. `commit` applies the rows on
the path to the last accepted one. For up to 16 rows, `verify` and `commit` together read each state twice and
write it once. With a `DeferredBatch`, there is no `commit`: the next verification applies the recorded rows.
For up to 16 rows, it reads each state once and writes it once.
"""

# Triton infers the types of kernel arguments at the call.
# ruff: noqa: ANN001, ANN201, ANN202
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl
from switchrail.ops.batch import DeferredBatch, RowStatesBatch, VerifyBatch
from switchrail.ops.call import Layer

from switchrail_kernels.alignment import is_transposed
from switchrail_kernels.constants import LOG2E
from switchrail_kernels.launch import TABLES, Launcher, padded
from switchrail_kernels.states import within_slot
from switchrail_kernels.tables import all_to_device, load_slots, split_rows, to_device

DRAFT_ROWS = tl.constexpr(16)
"""Rows per tile: the minimum for a product on tensor cores."""


@dataclass(frozen=True, slots=True)
class Drafts:
    """The drafted rows of a batch.

    Attributes:
        seqlens: The number of rows of each sequence.
        tiles: [tiles, 4] int32, at most `DRAFT_ROWS` rows of one sequence each, as in `split_rows`.
        paths: [T, words] int32: bit j % 32 of word j // 32 is set if row j of the sequence is the row itself
            or one of its ancestors.
    """

    seqlens: tuple[int, ...]
    tiles: torch.Tensor
    paths: torch.Tensor

    @classmethod
    def of(cls, batch: VerifyBatch) -> Drafts:
        """Find the paths to all rows of a batch."""
        words = -(-max(batch.seqlens, default=0) // 32)
        if batch.parent_rows is None:
            tiles = to_device(split_rows(batch.seqlens, DRAFT_ROWS.value), batch.cu_seqlens.device)
            drafts = cls(batch.seqlens, tiles, tiles.new_empty((sum(batch.seqlens), words)))
            drafts.update(batch)
            return drafts
        paths = bytearray()
        row = 0
        for length in batch.seqlens:
            found: list[int] = []
            for i, parent in enumerate(batch.parent_rows[row : row + length]):
                path = 1 << i if parent < 0 else found[parent] | 1 << i
                found.append(path)
                paths += path.to_bytes(4 * words, "little")
            row += length
        tables = [
            split_rows(batch.seqlens, DRAFT_ROWS.value),
            np.frombuffer(paths, dtype="<i4").reshape(row, words),
        ]
        return cls(batch.seqlens, *all_to_device(tables, batch.cu_seqlens.device))

    def update(self, batch: VerifyBatch) -> None:
        """Find the paths for another batch with the same lengths, in place and on the device."""
        words = self.paths.shape[1]
        if self.paths.numel():
            _launch_find_paths(
                (len(self.seqlens), 1, 1),
                (batch.parents, batch.cu_seqlens, self.paths),
                (words,),
                (padded(words),),
                num_warps=1,
            )


@triton.jit(do_not_specialize_on_alignment=TABLES)
def _find_paths(p_parents, p_cu_seqlens, p_paths, words, BW: tl.constexpr):
    """Find the paths to one sequence's rows in order: a row's path is its parent's path and the row."""
    row = tl.load(p_cu_seqlens + tl.program_id(0)).to(tl.int64)
    rows = (tl.load(p_cu_seqlens + tl.program_id(0) + 1) - row).to(tl.int32)
    o_w = tl.arange(0, BW)
    p_paths += row * words
    for i in range(rows):
        parent = tl.minimum(tl.load(p_parents + row + i), i - 1)
        own = tl.where(parent >= 0, words, 0)
        b_path = tl.load(p_paths + parent * words + o_w, mask=o_w < own, other=0)
        b_path |= tl.where(o_w == i // 32, 1 << (i % 32), 0)
        tl.store(p_paths + i * words + o_w, b_path, mask=o_w < words)
        tl.debug_barrier()  # later rows read this row's path


_launch_find_paths = Launcher(_find_paths)


@dataclass(frozen=True, slots=True)
class Record:
    """The effect that one layer's drafted rows have on the states: S <- exp(g) S + u k^T.

    Attributes:
        u: [T, HV, V] float32.
        k: [T, H, K]; value head i uses the keys of head i // (HV / H).
        g: [T, HV] float32, or [T, HV, K] with decays per channel.
        exact: Whether products are IEEE float32, not TF32.
    """

    u: torch.Tensor
    k: torch.Tensor
    g: torch.Tensor
    exact: bool

    @classmethod
    def empty(
        cls, k: torch.Tensor, v: torch.Tensor, *, channels: bool = False, rows: int | None = None
    ) -> Record:
        """Allocate a record for keys [T, H, K] and values [T, HV, V].

        Args:
            k: The keys.
            v: The values.
            channels: Whether channels have separate decays.
            rows: The number of rows; T by default.
        """
        rows = len(k) if rows is None else rows
        shape = (*v.shape[1:2], k.shape[2]) if channels else v.shape[1:2]
        return cls(
            torch.empty((rows, *v.shape[1:]), dtype=torch.float32, device=v.device),
            torch.empty((rows, *k.shape[1:]), dtype=k.dtype, device=v.device),
            torch.empty((rows, *shape), dtype=torch.float32, device=v.device),
            v.dtype == torch.float32,
        )

    @classmethod
    def kept(
        cls, layer: Layer, batch: DeferredBatch, k: torch.Tensor, v: torch.Tensor, *, channels: bool = False
    ) -> Record:
        """The layer's records for deferred commits, allocated by the layer's first call.

        They are in one `Record`, one after another. Each has as many rows as `pending_rows` has columns.
        """
        found: Record | None = layer.kept.get(Record)
        if found is None:
            rows = batch.record_count * batch.pending_rows.shape[1]
            found = layer.kept[Record] = cls.empty(k, v, channels=channels, rows=rows)
        return found

    @property
    def sizes(self) -> tuple[int, ...]:
        """HV, the value heads per key head, K, V, and the block sizes BK and BV of a program."""
        _, groups, key_size = self.k.shape
        _, heads, value_size = self.u.shape
        block_k = padded(key_size, 16)
        block_v = min(padded(value_size, 16), max(4096 // block_k, 16))
        return heads, heads // groups, key_size, value_size, block_k, block_v


@triton.jit
def on_path(p_path, o_j, rows):
    """Whether each row of `o_j` is below `rows` and on the path at `p_path`."""
    b_word = tl.load(p_path + (o_j >> 5), mask=o_j < rows, other=0)
    return ((b_word >> (o_j & 31)) & 1) != 0


@triton.jit
def apply_rows(
    b_s, p_u, p_k, p_g, p_path, o_k, m_k, o_v, m_v, rows, H,
    GROUP: tl.constexpr, K: tl.constexpr, V: tl.constexpr, CHANNELS: tl.constexpr, EXACT: tl.constexpr,
    BITS: tl.constexpr,
):  # fmt: skip
    """The state after the rows below `rows` on the path at `p_path`, starting from the state `b_s`.

    The path has a bit per row, or without `BITS` a bool per row.
    """
    for i in range(0, rows, DRAFT_ROWS):
        o_j = i + tl.arange(0, DRAFT_ROWS)
        o_row = o_j.to(tl.int64)
        end = tl.minimum(i + DRAFT_ROWS, rows)
        m_j = o_j < end
        m_next = o_j + 1 < end
        m_jk = m_j[:, None] & m_k[None, :]
        b_u = tl.load(
            p_u + o_row[:, None] * (H * V) + o_v[None, :], mask=m_j[:, None] & m_v[None, :], other=0.0
        )
        b_k = tl.load(p_k + o_row[:, None] * (H // GROUP * K) + o_k[None, :], mask=m_jk, other=0.0)
        if BITS:
            on = on_path(p_path, o_j, end)
            on_next = on_path(p_path, o_j + 1, end)
        else:
            on = tl.load(p_path + o_j, mask=m_j, other=0) != 0
            on_next = tl.load(p_path + o_j + 1, mask=m_next, other=0) != 0
        # A row's contribution is decayed by the rows after it. The logs of these decays are sums of gates:
        # differences of cumulative sums would be less exact.
        if CHANNELS:
            p_row = p_g + o_row[:, None] * (H * K) + o_k[None, :]
            b_g = tl.load(p_row, mask=m_jk, other=0.0)
            b_later = tl.load(p_row + H * K, mask=m_next[:, None] & m_k[None, :], other=0.0)
            b_g = tl.where(on[:, None], b_g, 0.0) * LOG2E
            b_later = tl.where(on_next[:, None], b_later, 0.0) * LOG2E
            b_since = tl.exp2(tl.cumsum(b_later, 0, reverse=True))
            b_decay = tl.exp2(tl.sum(b_g, 0))[None, :]
        else:
            b_g = tl.where(on, tl.load(p_g + o_row * H, mask=m_j, other=0.0), 0.0) * LOG2E
            b_later = tl.load(p_g + (o_row + 1) * H, mask=m_next, other=0.0)
            b_later = tl.where(on_next, b_later, 0.0) * LOG2E
            b_since = tl.exp2(tl.cumsum(b_later, 0, reverse=True))[:, None]
            b_decay = tl.exp2(tl.sum(b_g, 0))
        b_k = tl.where(on[:, None], b_k.to(tl.float32) * b_since, 0.0)
        b_u = tl.where(on[:, None], b_u, 0.0)
        b_s = tl.dot(tl.trans(b_u), b_k, acc=b_s * b_decay, input_precision="ieee" if EXACT else "tf32")
    return b_s


@triton.jit(do_not_specialize_on_alignment=TABLES)
def _replay(
    p_u, p_k, p_g, p_state, p_paths, p_accepted, p_cu_seqlens, p_read_slots, p_write_slots,
    p_has_initial_state,
    s_slot,
    words, H,
    GROUP: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    CHANNELS: tl.constexpr, EXACT: tl.constexpr, KV: tl.constexpr,
):  # fmt: skip
    """Commit the accepted rows of one sequence to a [BV, K] block of one head's state."""
    i_h = tl.program_id(1)
    i_n = tl.program_id(2).to(tl.int64)
    read, write, has = load_slots(p_read_slots, p_write_slots, p_has_initial_state, i_n)
    row = tl.load(p_cu_seqlens + i_n).to(tl.int64)
    length = (tl.load(p_cu_seqlens + i_n + 1) - row).to(tl.int32)
    last = tl.load(p_accepted + i_n)
    if (write < 0) | (length <= 0):
        return
    last = tl.minimum(last, length - 1).to(tl.int32)
    rows = tl.maximum(last, -1) + 1
    o_k = tl.arange(0, BK)
    o_v = tl.program_id(0) * BV + tl.arange(0, BV)
    m_k = o_k < K
    m_v = o_v < V
    o_state = within_slot(i_h, o_v, o_k, V, K, KV)
    m_read = (o_v < tl.where(has & (read >= 0), V, 0))[:, None] & m_k[None, :]
    b_s = tl.load(p_state + read * s_slot + o_state, mask=m_read, other=0.0).to(tl.float32)
    p_path = p_paths + (row + tl.maximum(last, 0)) * words
    p_u += (row * H + i_h) * V
    p_k += row * (H // GROUP * K) + i_h // GROUP * K
    p_g += (row * H + i_h) * K if CHANNELS else row * H + i_h
    b_s = apply_rows(
        b_s, p_u, p_k, p_g, p_path, o_k, m_k, o_v, m_v, rows, H, GROUP, K, V, CHANNELS, EXACT, True
    )  # fmt: skip
    m_state = m_v[:, None] & m_k[None, :]
    tl.store(p_state + write * s_slot + o_state, b_s.to(p_state.dtype.element_ty), mask=m_state)


_launch_replay = Launcher(_replay)


def replay(
    drafts: Drafts, record: Record, accepted: torch.Tensor, *, state: torch.Tensor, batch: VerifyBatch
) -> None:
    """Write the state after each sequence's last accepted row, in one launch.

    Args:
        drafts: The plan.
        record: The record of `verify`.
        accepted: [N] int64, the last accepted row, or -1 for none. A value beyond a sequence's end means
            the sequence's last row.
        state: The pool [slots, HV, V, K].
        batch: The batch.
    """
    if len(record.k) == 0:
        return
    heads, group, key_size, value_size, block_k, block_v = record.sizes
    _launch_replay(
        (-(-value_size // block_v), heads, len(batch.seqlens)),
        (
            *(record.u, record.k, record.g, state, drafts.paths, accepted),
            *(batch.cu_seqlens, batch.read_slots, batch.write_slots, batch.has_initial_state),
        ),
        (state.stride(0), drafts.paths.shape[1], heads),
        (
            *(group, key_size, value_size, block_k, block_v),
            *(record.g.ndim == 3, record.exact, is_transposed(state)),
        ),
        num_warps=4,
    )


@triton.jit(do_not_specialize_on_alignment=TABLES)
def _each(
    p_u, p_k, p_g, p_state, p_row_states, p_paths, p_cu_seqlens, p_read_slots, p_row_slots,
    p_has_initial_state,
    s_slot, s_row_slot,
    most, words, H,
    GROUP: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    CHANNELS: tl.constexpr, EXACT: tl.constexpr, KV: tl.constexpr, ROWS_KV: tl.constexpr,
):  # fmt: skip
    """After each drafted row that has a slot, write a [BV, K] block of one head's state, for one sequence.

    The initial state is read before the first result is written, since a result may go to the slot of that
    state.
    """
    i_h = tl.program_id(1)
    i_n = tl.program_id(2).to(tl.int64)
    read = tl.load(p_read_slots + i_n)
    has = tl.load(p_has_initial_state + i_n)
    row = tl.load(p_cu_seqlens + i_n).to(tl.int64)
    length = (tl.load(p_cu_seqlens + i_n + 1) - row).to(tl.int32)
    if read < 0:
        return
    o_k = tl.arange(0, BK)
    o_v = tl.program_id(0) * BV + tl.arange(0, BV)
    m_k = o_k < K
    m_v = o_v < V
    o_vk = (i_h * V + o_v)[:, None] * K + o_k[None, :]
    o_kv = (i_h * V * K + o_v)[:, None] + (o_k * V)[None, :]
    m_read = (o_v < tl.where(has, V, 0))[:, None] & m_k[None, :]
    b_old = tl.load(p_state + read * s_slot + (o_kv if KV else o_vk), mask=m_read, other=0.0).to(tl.float32)
    tl.debug_barrier()
    p_u += (row * H + i_h) * V
    p_k += row * (H // GROUP * K) + i_h // GROUP * K
    p_g += (row * H + i_h) * K if CHANNELS else row * H + i_h
    for i_row in range(length):
        slot = tl.load(p_row_slots + i_n * most + i_row)
        if slot >= 0:
            p_path = p_paths + (row + i_row) * words
            b_s = apply_rows(
                b_old, p_u, p_k, p_g, p_path, o_k, m_k, o_v, m_v, i_row + 1, H, GROUP, K, V, CHANNELS, EXACT,
                True,
            )  # fmt: skip
            p_to = p_row_states + slot * s_row_slot + (o_kv if ROWS_KV else o_vk)
            tl.store(p_to, b_s.to(p_row_states.dtype.element_ty), mask=m_v[:, None] & m_k[None, :])


_launch_each = Launcher(_each)


def store_rows(
    drafts: Drafts,
    record: Record,
    *,
    state: torch.Tensor,
    row_states: torch.Tensor | None,
    batch: RowStatesBatch,
) -> None:
    """Write the state after each row that has a slot, in one launch.

    Args:
        drafts: The plan.
        record: The record of `verify`.
        state: The pool [slots, HV, V, K].
        row_states: The pool for the states after rows; None means `state`.
        batch: The batch.
    """
    if len(record.k) == 0:
        return
    to = state if row_states is None else row_states
    heads, group, key_size, value_size, block_k, block_v = record.sizes
    _launch_each(
        (-(-value_size // block_v), heads, len(batch.seqlens)),
        (
            *(record.u, record.k, record.g, state, to, drafts.paths),
            *(batch.cu_seqlens, batch.read_slots, batch.row_slots, batch.has_initial_state),
        ),
        (state.stride(0), to.stride(0), batch.row_slots.shape[1], drafts.paths.shape[1], heads),
        (
            *(group, key_size, value_size, block_k, block_v),
            *(record.g.ndim == 3, record.exact, is_transposed(state), is_transposed(to)),
        ),
        num_warps=4,
    )
