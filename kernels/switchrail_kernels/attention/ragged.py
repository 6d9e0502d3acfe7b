"""Softmax attention to packed keys and values. Their lengths may differ from those of the queries."""

# Triton infers the types of kernel arguments at the call.
# ruff: noqa: ANN001, ANN202
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from switchrail.ops.ragged import RaggedBatch, check_ragged

from switchrail_kernels.constants import LN2, LOG2E
from switchrail_kernels.device import has_large_shared_memory
from switchrail_kernels.launch import TABLES, Launcher, launch_options, padded
from switchrail_kernels.softmax import add_keys
from switchrail_kernels.tables import load_piece, split_rows, to_device


@triton.jit(do_not_specialize_on_alignment=TABLES)
def _attend(
    p_q, p_k, p_v, p_out, p_lse, p_tiles, p_cu_seqlens, p_cu_seqlens_k,
    scale,
    s_qt, s_qh, s_kt, s_kh, s_vt, s_vh,
    H,
    GROUP: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, V: tl.constexpr, BV: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, CAUSAL: tl.constexpr, NEGATED: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Compute the attention of one tile of at most `BM` rows, for one head."""
    i_n, within, row, rows = load_piece(p_tiles, tl.program_id(0))
    i_h = tl.program_id(1).to(tl.int64)
    length = tl.load(p_cu_seqlens + i_n + 1) - tl.load(p_cu_seqlens + i_n)
    first = tl.load(p_cu_seqlens_k + i_n).to(tl.int64)
    keys = (tl.load(p_cu_seqlens_k + i_n + 1) - first).to(tl.int32)
    o_m = tl.arange(0, BM)
    o_d = tl.arange(0, BD)
    o_v = tl.arange(0, BV)
    m_q = (o_m < rows)[:, None] & (o_d < D)[None, :]
    b_q = tl.load(p_q + (row + o_m)[:, None] * s_qt + i_h * s_qh + o_d[None, :], mask=m_q, other=0.0)
    if NEGATED:
        b_q = -b_q
    p_k += first * s_kt + i_h // GROUP * s_kh
    p_v += first * s_vt + i_h // GROUP * s_vh
    b_acc = tl.zeros((BM, BV), tl.float32)
    b_max = tl.full((BM,), float("-inf"), tl.float32)
    b_sum = tl.zeros((BM,), tl.float32)
    o_last = keys - length + within + o_m
    stop = keys
    if CAUSAL:
        stop = tl.minimum(keys, keys - length + within + rows)
    for i_start in tl.range(0, stop, BN, num_stages=STAGES):
        o_n = i_start + tl.arange(0, BN)
        m_n = (o_n < stop)[:, None]
        o_key = o_n.to(tl.int64)[:, None]
        b_k = tl.load(p_k + o_key * s_kt + o_d[None, :], mask=m_n & (o_d < D)[None, :], other=0.0)
        b_v = tl.load(p_v + o_key * s_vt + o_v[None, :], mask=m_n & (o_v < V)[None, :], other=0.0)
        b_s = tl.dot(b_q, tl.trans(b_k), input_precision="ieee")
        m_seen = (o_n < stop)[None, :]
        if CAUSAL:
            m_seen = m_seen & (o_n[None, :] <= o_last[:, None])
        b_s = tl.where(m_seen, b_s, float("-inf"))
        b_acc, b_max, b_sum = add_keys(b_acc, b_max, b_sum, b_s, b_v, scale, True)
    b_acc = b_acc * (1.0 / tl.where(b_sum > 0, b_sum, 1.0))[:, None]
    o_out = (row + o_m) * H + i_h
    m_out = (o_m < rows)[:, None] & (o_v < V)[None, :]
    tl.store(p_out + o_out[:, None] * V + o_v[None, :], b_acc.to(p_out.dtype.element_ty), mask=m_out)
    tl.store(p_lse + o_out, (b_max + tl.log2(b_sum)) * LN2, mask=o_m < rows)


_launch_attend = Launcher(_attend)


def ragged_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, batch: RaggedBatch, *, scale: float, causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute attention in one launch; see `switchrail.platforms.operations.RaggedAttention`."""
    check_ragged(q, k, v, batch)
    _, heads, size = q.shape
    value_size = v.shape[2]
    out = torch.empty((len(q), heads, value_size), dtype=q.dtype, device=q.device)
    lse = torch.empty((len(q), heads), dtype=torch.float32, device=q.device)
    if len(q) == 0:
        return out, lse
    block_d, block_v = padded(size, 16), padded(value_size, 16)
    rows, keys, warps, stages = 128, 64, 8, 2
    if q.dtype == torch.float32:
        rows, keys, warps, stages = 32, 32, 4, 1
    elif block_d > 128 or not has_large_shared_memory(q.device):
        rows, keys, warps, stages = 64, 64 if has_large_shared_memory(q.device) else 32, 4, 2
    tiles = to_device(split_rows(batch.seqlens, rows), q.device)
    _launch_attend(
        (len(tiles), heads, 1),
        (q, k, v, out, lse, tiles, batch.cu_seqlens, batch.cu_seqlens_k),
        (abs(scale) * LOG2E.value, *q.stride()[:2], *k.stride()[:2], *v.stride()[:2], heads),
        (
            *(heads // k.shape[1], size, block_d, value_size, block_v),
            *(rows, keys, causal, scale < 0, stages),
        ),
        num_warps=warps,
        num_stages=stages,
        **launch_options(q.dtype),
    )
    return out, lse
