"""Device functions of attention: a program's rows over a paged cache, the visible keys, and the softmax.

The softmax is computed online (Milakov and Gimelshein, arXiv 1805.02867; Dao et al., arXiv 2205.14135), with
exponentials to base 2.
"""

# Triton infers the types of kernel arguments at the call.
# ruff: noqa: ANN001, ANN201
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def find_rows(p_items, i_tile, p_cu_seqlens, p_kv_lens, DECODE: tl.constexpr):
    """Finds the rows of a tile, which is a sequence in decode, and otherwise an item of `Work.items`.

    Returns:
        The pointer to the item (`p_items` in decode), the sequence, the first row within the sequence, the
        first packed row, the number of rows, the first row in the tensors of queries and results, the
        sequence's number of keys, and the number of keys before the sequence's rows.
    """
    if DECODE:
        i_n = i_tile
        row = i_n.to(tl.int64)
        at = row
        within = 0
        rows = 1
        kv_len = tl.load(p_kv_lens + i_n)
        past = kv_len - 1
    else:
        p_items += 8 * i_tile
        i_n = tl.load(p_items)
        within = tl.load(p_items + 1)
        row = tl.load(p_items + 2).to(tl.int64)
        rows = tl.load(p_items + 3)
        at = tl.load(p_items + 7).to(tl.int64)
        kv_len = tl.load(p_kv_lens + i_n)
        past = kv_len - (tl.load(p_cu_seqlens + i_n + 1) - tl.load(p_cu_seqlens + i_n))
    return p_items, i_n, within, row, rows, at, kv_len, past


@triton.jit
def seen_by(o_row, o_key, first, p_parents, TREES: tl.constexpr):
    """[BM, BN]: whether each row sees each key. Indices are relative to the sequence's first row.

    Args:
        o_row: [BM], the rows.
        o_key: [BN], the keys.
        first: The index of the first key.
        p_parents: The parent of each row, if TREES.
        TREES: Whether a row attends, among the sequence's rows, only to itself and its ancestors, instead of
            itself and all rows before it.
    """
    if TREES:
        m_seen = (o_key < 0)[None, :] & (o_row >= 0)[:, None]
        b_row = o_row
        while tl.max(b_row) >= tl.maximum(first, 0):
            m_seen |= b_row[:, None] == o_key[None, :]
            b_parent = tl.load(p_parents + b_row, mask=b_row >= 0, other=-1)
            b_row = tl.minimum(b_parent, b_row - 1)  # the loop ends even if parents are invalid
    else:
        m_seen = o_row[:, None] >= o_key[None, :]
    return m_seen


@triton.jit
def add_keys(b_acc, b_max, b_sum, b_s, b_v, unit, MASKED: tl.constexpr):
    """Add a block of keys to the sums. Its values are `b_v`; its logits, to base 2, are `unit * b_s`."""
    b_new = tl.maximum(b_max, tl.max(b_s, 1) * unit)
    b_ref = b_new
    if MASKED:
        b_ref = tl.where(b_new == float("-inf"), 0.0, b_new)  # for rows without a visible key so far
    b_p = tl.exp2(b_s * unit - b_ref[:, None])
    b_scale = tl.exp2(b_max - b_ref)
    b_sum = b_sum * b_scale + tl.sum(b_p, 1)
    b_acc = tl.dot(b_p.to(b_v.dtype), b_v, acc=b_acc * b_scale[:, None], input_precision="ieee")
    return b_acc, b_new, b_sum


@triton.jit
def add_parts(b_acc, b_max, b_sum, b_part, b_weight):
    """Add partial results of one row to the row's sums. Their log-sum-exps, to base 2, are `b_weight`."""
    b_new = tl.maximum(b_max, tl.max(b_weight, 0))
    b_ref = tl.where(b_new == float("-inf"), 0.0, b_new)
    b_weight = tl.exp2(b_weight - b_ref)
    b_scale = tl.exp2(b_max - b_ref)
    b_acc = b_acc * b_scale + tl.sum(b_part * b_weight[:, None], 0)
    return b_acc, b_new, b_sum * b_scale + tl.sum(b_weight, 0)
