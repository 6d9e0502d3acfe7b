"""The operations `verify_rows` and `accept_rows` of `switchrail.platforms` in Triton."""

# Triton infers the types of kernel arguments at the call.
# ruff: noqa: ANN001, ANN202
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from switchrail_kernels.launch import Launcher, padded


@triton.jit
def _derive(
    p_tasks, p_drafts, p_tokens, p_table, p_slot_records, p_slot_rows,
    p_ids, p_positions, p_pages, p_kv_rows, p_kv_lens, p_sequences, p_real,
    p_pending_records, p_pending_rows, p_records,
    N, s_tasks, s_drafts, s_table, P,
    X: tl.constexpr, PAGE: tl.constexpr, BN: tl.constexpr, BX: tl.constexpr, BP: tl.constexpr,
    PENDING: tl.constexpr,
):  # fmt: skip
    """Derive the inputs of one sequence."""
    i_n = tl.program_id(0)
    length = tl.load(p_tasks + i_n)
    slot = tl.load(p_tasks + s_tasks + i_n)
    owned = tl.load(p_tasks + 2 * s_tasks + i_n)
    is_real = slot >= 0
    owner = tl.maximum(slot, 0)
    o_x = tl.arange(0, BX)
    m_x = o_x < X
    o_row = i_n * X + o_x
    newest = tl.load(p_tokens + owner)
    b_ids = tl.load(p_drafts + o_row, mask=m_x, other=0)
    tl.store(p_ids + o_row, tl.where(o_x == 0, newest, b_ids), mask=m_x)
    b_depths = tl.load(p_drafts + s_drafts + o_row, mask=m_x, other=0)
    tl.store(p_positions + o_row, length + b_depths, mask=m_x)
    p_table += owner * s_table
    b_place = length + o_x
    b_number = b_place // PAGE
    m_place = (o_x < tl.where(is_real, X, 0)) & (b_number < owned)
    b_page = tl.load(p_table + tl.minimum(b_number, P - 1), mask=m_place, other=0).to(tl.int64)
    tl.store(p_kv_rows + o_row, tl.where(m_place, b_page * PAGE + b_place % PAGE, 0), mask=m_x)
    tl.store(p_kv_lens + i_n, tl.where(is_real, length + X, 0).to(tl.int32))
    tl.store(p_sequences + o_row, tl.zeros((BX,), tl.int32) + slot.to(tl.int32), mask=m_x)
    first = tl.load(p_table)
    for i_p in range(0, P, BP):
        o_p = i_p + tl.arange(0, BP)
        b_pages = tl.load(p_table + o_p, mask=o_p < tl.minimum(owned, P), other=0)
        tl.store(p_pages + i_n * P + o_p, tl.where(o_p < owned, b_pages, first), mask=o_p < P)
    if PENDING:
        record = tl.where(is_real, tl.load(p_slot_records + owner), -1)
        b_rows = tl.load(p_slot_rows + owner * X + o_x, mask=m_x, other=0)
        tl.store(p_pending_records + i_n, record)
        tl.store(p_pending_rows + o_row, b_rows, mask=m_x)
        own = 2 * owner + tl.where(record == 2 * owner, 1, 0)
        tl.store(p_records + i_n, tl.where(is_real, own, -1))
        tl.store(p_slot_records + owner, tl.zeros_like(record) - 1)
    if i_n == 0:
        o_n = tl.arange(0, BN)
        b_slot = tl.load(p_tasks + s_tasks + o_n, mask=o_n < N, other=-1)
        tl.store(p_real, tl.sum((b_slot >= 0).to(tl.int32), 0) * X)


_launch_derive = Launcher(_derive)


def verify_rows(
    tasks: torch.Tensor,
    drafts: torch.Tensor,
    last_tokens: torch.Tensor,
    page_table: torch.Tensor,
    *,
    page_size: int,
    pending: Sequence[torch.Tensor] | None,
    out: Sequence[torch.Tensor],
) -> None:
    """Compute the inputs of a captured verification; see `switchrail.engine.verify_inputs.verify_rows`.

    Args:
        tasks: [3, N] int64.
        drafts: [2, N, X] int64.
        last_tokens: [slots] int64.
        page_table: [slots, pages] int32.
        page_size: Page size in tokens.
        pending: Five tables of records, or None.
        out: The seven results.
    """
    count, width = drafts.shape[1:]
    most = out[2].shape[1]
    records, rows, *taken = (tasks,) * 5 if pending is None else _as_bytes(pending)
    _launch_derive(
        (count, 1, 1),
        (tasks, drafts, last_tokens, page_table, records, rows, *out, *taken),
        (count, tasks.stride(0), drafts.stride(0), page_table.stride(0), most),
        (*(width, page_size, padded(count), padded(width), min(padded(most), 1024)), pending is not None),
        num_warps=4,
    )


@triton.jit
def _accept(
    p_chosen, p_ids, p_rows, p_parents, p_slots, p_tokens, p_slot_records, p_slot_rows, p_records,
    p_last, p_path, p_news,
    X: tl.constexpr, BX: tl.constexpr, PENDING: tl.constexpr,
):  # fmt: skip
    """Follow the chosen tokens of one sequence through its tree of drafts."""
    i_n = tl.program_id(0).to(tl.int64)
    slot = tl.load(p_slots + i_n)
    o_x = tl.arange(0, BX).to(tl.int64)
    m_x = o_x < X
    o_row = i_n * X + o_x
    b_rows = tl.load(p_rows + o_row, mask=m_x, other=0)
    b_parents = tl.load(p_parents + o_row, mask=m_x, other=-1)
    b_chosen = tl.load(p_chosen + b_rows, mask=m_x, other=-1)
    b_ids = tl.load(p_ids + b_rows, mask=m_x, other=0)
    last = i_n * 0
    count = i_n * 0
    b_path = o_x
    b_accepted = tl.where(o_x == 0, 1, 0)
    for row in range(1, X):
        m_row = o_x == row
        parent = tl.sum(tl.where(m_row, b_parents, 0), 0)
        token = tl.sum(tl.where(m_row, b_ids, 0), 0)
        is_next = (parent == last) & (token == tl.sum(tl.where(o_x == last, b_chosen, 0), 0))
        last = tl.where(is_next, row, last)
        count += is_next.to(tl.int64)
        b_path = tl.where(is_next & (o_x == count), row, b_path)
        b_accepted = tl.where(is_next & m_row, 1, b_accepted)
    tl.store(p_last + i_n, last)
    tl.store(p_path + o_row, b_path, mask=m_x)
    p_news += i_n * (1 + X)
    tl.store(p_news, count)
    b_from = tl.load(p_rows + i_n * X + b_path, mask=m_x, other=0)
    tl.store(p_news + 1 + o_x, tl.load(p_chosen + b_from, mask=m_x, other=0), mask=m_x)
    if slot >= 0:
        newest = tl.sum(tl.where(o_x == last, b_chosen, 0), 0)
        tl.store(p_tokens + slot, tl.maximum(newest, 0))
        if PENDING:
            tl.store(p_slot_records + slot, tl.load(p_records + i_n))
            p_to = p_slot_rows + slot * X + o_x
            tl.store(p_to, b_accepted.to(p_slot_rows.dtype.element_ty), mask=m_x)


_launch_accept = Launcher(_accept)


def accept_rows(
    chosen: torch.Tensor,
    ids: torch.Tensor,
    rows: torch.Tensor,
    parents: torch.Tensor,
    slots: torch.Tensor,
    last_tokens: torch.Tensor,
    *,
    are_trees: bool,
    pending: Sequence[torch.Tensor] | None,
    out: Sequence[torch.Tensor],
) -> None:
    """Follow the chosen tokens through the trees of drafts; see `switchrail.engine.accept.accept_rows`.

    Args:
        chosen: [R] int64.
        ids: [R or more] int64.
        rows: [N, X] int64.
        parents: [N, X] int64.
        slots: [N] int64.
        last_tokens: [slots] int64.
        are_trees: Ignored: the kernel treats chains as trees.
        pending: Three tables of records, or None.
        out: The three results.
    """
    count, width = rows.shape
    tables = (slots,) * 3 if pending is None else _as_bytes(pending)
    _launch_accept(
        (count, 1, 1),
        (chosen, ids, rows, parents, slots, last_tokens, *tables, *out),
        (),
        (width, padded(width), pending is not None),
        num_warps=1,
    )


def _as_bytes(tables: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The tables, with bytes in place of bools."""
    return [one.view(torch.uint8) if one.dtype == torch.bool else one for one in tables]
