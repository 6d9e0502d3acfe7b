"""Paged softmax attention in Triton: one kernel walks the pages for prefill and decode.

A program's rows are a few tokens times the query heads that share a key-value head, so that keys and values
are read once for all of them. The softmax is kept online (Milakov and Gimelshein, arXiv 1805.02867; Dao et
al., arXiv 2205.14135). In decode the cache of a sequence is cut into pieces, each attended by a program of
its own, and `_combine` weighs the parts by their log-sum-exp. How a sequence is cut depends on its own length
alone, so that its result does not depend on its neighbours.
"""

# Triton reads the types of a kernel's arguments at the call.
# ruff: noqa: ANN001, ANN202
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
import triton
import triton.language as tl
from switchrail.ops.attention.contract import CONTRACT
from switchrail.ops.backend import AttentionBackend
from switchrail.ops.batch import PagedBatch, Phase

from switchrail_kernels.device import has_large_shared_memory
from switchrail_kernels.launch import Launcher, launch_options, padded, signature
from switchrail_kernels.tables import split_rows, to_device

LOG2E = 1.4426950408889634
PIECE = tl.constexpr(256)
MAX_PIECES = tl.constexpr(64)


@triton.jit
def _piece_length(kv_len):
    """The length of a piece of a cache: a multiple of `PIECE` that makes at most `MAX_PIECES` pieces."""
    return tl.maximum(tl.cdiv(kv_len, PIECE * MAX_PIECES), 1) * PIECE


@triton.jit
def _walk(
    b_q,
    b_acc,
    b_max,
    b_sum,
    p_k,
    p_v,
    p_pages,
    o_position,
    start,
    stop,
    scale,
    s_token,
    D: tl.constexpr,
    BD: tl.constexpr,
    BN: tl.constexpr,
    PAGE: tl.constexpr,
    MASKED: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Attends keys `start` to `stop`; without MASKED all rows see all of them, and they fill blocks."""
    o_d = tl.arange(0, BD)
    for i_start in tl.range(start, stop, BN, num_stages=STAGES):
        o_n = i_start + tl.arange(0, BN)
        m_kv = o_n < stop
        if PAGE % BN == 0:
            page = tl.load(p_pages + i_start // PAGE).to(tl.int64)
            o_token = page * PAGE + (i_start % PAGE + tl.arange(0, BN))
        elif MASKED:
            o_token = tl.load(p_pages + o_n // PAGE, mask=m_kv, other=0).to(tl.int64) * PAGE + o_n % PAGE
        else:
            o_token = tl.load(p_pages + o_n // PAGE).to(tl.int64) * PAGE + o_n % PAGE
        o_kv = o_token[:, None] * s_token + o_d[None, :]
        if MASKED or D != BD:
            m_load = m_kv[:, None] & (o_d < D)[None, :]
            b_k = tl.load(p_k + o_kv, mask=m_load, other=0.0)
            b_v = tl.load(p_v + o_kv, mask=m_load, other=0.0)
        else:
            b_k = tl.load(p_k + o_kv)
            b_v = tl.load(p_v + o_kv)
        b_s = tl.dot(b_q, tl.trans(b_k), input_precision="ieee") * scale
        if MASKED:
            b_s = tl.where(o_position[:, None] >= o_n[None, :], b_s, float("-inf"))
            b_new = tl.maximum(b_max, tl.max(b_s, 1))
            b_ref = tl.where(b_new == float("-inf"), 0.0, b_new)  # a row that has seen no key yet
        else:
            b_new = tl.maximum(b_max, tl.max(b_s, 1))
            b_ref = b_new
        b_p = tl.exp2(b_s - b_ref[:, None])
        b_scale = tl.exp2(b_max - b_ref)
        b_sum = b_sum * b_scale + tl.sum(b_p, 1)
        b_acc = tl.dot(b_p.to(b_v.dtype), b_v, acc=b_acc * b_scale[:, None], input_precision="ieee")
        b_max = b_new
    return b_acc, b_max, b_sum


@triton.jit
def _attend(
    p_q,
    p_k,
    p_v,
    p_out,
    p_parts,
    p_lse,
    p_tiles,
    p_cu_seqlens,
    p_pages,
    p_kv_lens,
    scale,
    s_qt,
    s_qh,
    s_pages,
    HKV,
    GROUP: tl.constexpr,
    BG: tl.constexpr,
    BT: tl.constexpr,
    D: tl.constexpr,
    BD: tl.constexpr,
    BN: tl.constexpr,
    PAGE: tl.constexpr,
    DECODE: tl.constexpr,
    SPLIT: tl.constexpr,
    STAGES: tl.constexpr,
):
    i_h = tl.program_id(1)
    if DECODE:
        i_n = tl.program_id(0)
        row = i_n.to(tl.int64)
        rows = 1
        kv_len = tl.load(p_kv_lens + i_n)
        past = kv_len - 1
    else:
        i_n = tl.load(p_tiles + 4 * tl.program_id(0))
        within = tl.load(p_tiles + 4 * tl.program_id(0) + 1)
        row = tl.load(p_tiles + 4 * tl.program_id(0) + 2).to(tl.int64)
        rows = tl.load(p_tiles + 4 * tl.program_id(0) + 3)
        kv_len = tl.load(p_kv_lens + i_n)
        past = kv_len - (tl.load(p_cu_seqlens + i_n + 1) - tl.load(p_cu_seqlens + i_n)) + within

    start = 0
    stop = tl.maximum(past + rows, 0)
    if SPLIT:
        piece = _piece_length(kv_len)
        start = tl.program_id(2) * piece
        if start >= stop:
            return
        stop = tl.minimum(start + piece, stop)
    middle = tl.minimum(tl.maximum((past + 1) // BN * BN, start), stop // BN * BN)

    o_m = tl.arange(0, BT * BG)
    o_t = o_m // BG
    o_g = o_m % BG
    o_d = tl.arange(0, BD)
    o_position = past + tl.minimum(o_t, rows - 1)
    m_q = ((o_t < rows) & (o_g < GROUP))[:, None] & (o_d < D)[None, :]
    o_q = (row + o_t) * s_qt + (i_h * GROUP + o_g) * s_qh
    b_q = tl.load(p_q + o_q[:, None] + o_d[None, :], mask=m_q, other=0.0)

    b_acc = tl.zeros((BT * BG, BD), tl.float32)
    b_max = tl.full((BT * BG,), float("-inf"), tl.float32)
    b_sum = tl.zeros((BT * BG,), tl.float32)
    p_k += i_h * D
    p_v += i_h * D
    p_pages += i_n.to(tl.int64) * s_pages
    s_token = HKV * D
    b_acc, b_max, b_sum = _walk(
        b_q, b_acc, b_max, b_sum, p_k, p_v, p_pages, o_position, start, middle, scale, s_token,
        D, BD, BN, PAGE, False, STAGES,
    )  # fmt: skip
    b_acc, b_max, b_sum = _walk(
        b_q, b_acc, b_max, b_sum, p_k, p_v, p_pages, o_position, middle, stop, scale, s_token,
        D, BD, BN, PAGE, True, STAGES,
    )  # fmt: skip

    b_acc = b_acc / tl.where(b_sum > 0, b_sum, 1.0)[:, None]  # padding sees no key: zeros
    o_out = (row + o_t) * (HKV * GROUP) + i_h * GROUP + o_g
    if SPLIT:
        o_part = o_out * tl.num_programs(2) + tl.program_id(2)
        tl.store(p_parts + o_part[:, None] * D + o_d[None, :], b_acc, mask=m_q)
        tl.store(p_lse + o_part, b_max + tl.log2(b_sum), mask=(o_t < rows) & (o_g < GROUP))
    else:
        tl.store(p_out + o_out[:, None] * D + o_d[None, :], b_acc.to(p_out.dtype.element_ty), mask=m_q)


@triton.jit
def _combine(p_parts, p_lse, p_out, p_kv_lens, PIECES, D: tl.constexpr, BD: tl.constexpr, BP: tl.constexpr):
    i_n = tl.program_id(0)
    o_out = i_n.to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
    kv_len = tl.load(p_kv_lens + i_n)
    pieces = tl.cdiv(kv_len, _piece_length(kv_len))
    o_d = tl.arange(0, BD)
    b_acc = tl.zeros((BD,), tl.float32)
    b_max = float("-inf")
    b_sum = 0.0
    for i_start in range(0, pieces, BP):
        o_p = i_start + tl.arange(0, BP)
        b_lse = tl.load(p_lse + o_out * PIECES + o_p, mask=o_p < pieces, other=float("-inf"))
        b_part = tl.load(
            p_parts + (o_out * PIECES + o_p)[:, None] * D + o_d[None, :],
            mask=(o_p < pieces)[:, None] & (o_d < D)[None, :],
            other=0.0,
        )
        b_new = tl.maximum(b_max, tl.max(b_lse, 0))
        b_w = tl.exp2(b_lse - b_new)
        b_scale = tl.exp2(b_max - b_new)
        b_acc = b_acc * b_scale + tl.sum(b_part * b_w[:, None], 0)
        b_sum = b_sum * b_scale + tl.sum(b_w, 0)
        b_max = b_new
    b_acc = b_acc / tl.where(b_sum > 0, b_sum, 1.0)
    tl.store(p_out + o_out * D + o_d, b_acc.to(p_out.dtype.element_ty), mask=o_d < D)


@dataclass(frozen=True, slots=True)
class _Tiles:
    """The tiles of a prefill, for each number of tokens in a tile that a layer asks for.

    Attributes:
        batch: The step's batch.
        tables: [tiles, 4] int32 by tokens in a tile, as `split_rows` gives it, those with the most keys
            first.
    """

    batch: PagedBatch
    tables: dict[int, torch.Tensor] = field(default_factory=dict)

    def table(self, tokens: int) -> torch.Tensor:
        """The table for tiles of `tokens` tokens, made at the first call."""
        if tokens not in self.tables:
            tiles = split_rows(self.batch.seqlens, tokens)
            past = np.asarray(self.batch.kv_seqlens) - np.asarray(self.batch.seqlens)
            keys = past[tiles[:, 0]] + tiles[:, 1] + tiles[:, 3]
            tiles = tiles[np.argsort(-keys, kind="stable")]
            self.tables[tokens] = to_device(tiles, self.batch.cu_seqlens.device)
        return self.tables[tokens]


@dataclass(frozen=True, slots=True)
class _Pieces:
    """The pieces that the caches of a decode are cut into.

    Attributes:
        count: Their number, that of the longest cache.
        parts: For what comes of each piece and its log-sum-exp, by size and device: one for all layers, which
            run one after another.
    """

    count: int
    parts: dict[tuple[int, int, int, int], tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)

    def scratch(self, q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Room for a layer with queries `q`, made at the first call."""
        sequences, heads, head_size = q.shape
        key = (sequences, heads, head_size, q.get_device())
        known = self.parts.get(key)
        if known is None:
            parts = torch.empty(
                (sequences, heads, self.count, head_size), dtype=torch.float32, device=q.device
            )
            known = self.parts[key] = parts, parts.new_empty((sequences, heads, self.count))
        return known


@dataclass(frozen=True, slots=True)
class _Shape:
    """What a call's tensors say about the kernel's shape."""

    group: int
    block_group: int
    block_d: int

    @classmethod
    def of(cls, q: torch.Tensor, k_cache: torch.Tensor) -> _Shape:
        group = q.shape[1] // k_cache.shape[2]
        return cls(group, padded(group), padded(q.shape[2], 16))

    def constants(self, tokens: int, block_n: int, k_cache: torch.Tensor) -> tuple[int, ...]:
        """Those from GROUP to PAGE, with rows for at least the 16 that a product of matrices needs."""
        block_group = max(self.block_group, 16 // tokens)
        _, page, _, head_size = k_cache.shape
        return self.group, block_group, tokens, head_size, self.block_d, block_n, page


_launch_attend = Launcher(_attend)
_launch_combine = Launcher(_combine)


class TritonAttention(AttentionBackend):
    """Paged attention for compute capability 8.0 and later; any head size, group and page size."""

    def plan(self, phase: Phase, batch: PagedBatch) -> object:
        """Prepares a prefill's tiles, or the number of pieces that a decode's caches are cut into."""
        CONTRACT.check_batch(phase, batch)
        if phase == "prefill":
            return _Tiles(batch)
        device = batch.cu_seqlens.device
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return _Pieces(MAX_PIECES.value)  # a replay may find any length
        longest = max(batch.kv_seqlens, default=0)
        return _Pieces(max(1, min(-(-longest // PIECE.value), MAX_PIECES.value)))

    def prefill(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        *,
        out: torch.Tensor,
        batch: PagedBatch,
        plan: object,
        scale: float,
    ) -> None:
        """Attends T packed query rows of N sequences of any length."""
        CONTRACT.check_arguments(
            batch, {"q": q, "k_cache": k_cache, "v_cache": v_cache, "out": out, "scale": scale}
        )
        assert isinstance(plan, _Tiles)
        if q.shape[0] == 0:
            return
        shape = _Shape.of(q, k_cache)
        full = q.dtype == torch.float32
        if full:
            rows, block_n, warps, stages = 32, 32, 4, 1
        elif shape.block_d <= 128 or has_large_shared_memory(q.device):
            rows, block_n, warps, stages = 128, 64, 8, 2
        else:
            rows, block_n, warps, stages = 64, 32, 4, 2
        tokens = max(1, rows // shape.block_group)
        tiles = plan.table(tokens)
        kv_heads = k_cache.shape[2]
        _launch_attend(
            (tiles.shape[0], kv_heads, 1),
            (q, k_cache, v_cache, out, out, out, tiles, batch.cu_seqlens, batch.page_table, batch.kv_lens),
            (scale * LOG2E, *q.stride()[:2], batch.page_table.stride(0), kv_heads),
            (*shape.constants(tokens, block_n, k_cache), False, False, stages),
            num_warps=warps,
            num_stages=stages,
            **launch_options(q.dtype),
        )

    def decode(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        *,
        out: torch.Tensor,
        batch: PagedBatch,
        plan: object,
        scale: float,
    ) -> None:
        """Attends one query row a sequence."""
        assert isinstance(plan, _Pieces)
        pieces = plan.count
        key = signature(batch, (q, k_cache, v_cache, out, batch.page_table), (scale, pieces))
        if not _launch_attend.knows(key):
            CONTRACT.check_arguments(
                batch, {"q": q, "k_cache": k_cache, "v_cache": v_cache, "out": out, "scale": scale}
            )
            if q.shape[0] == 0:
                return
        parts, lse = plan.scratch(q) if pieces > 1 else (out, out)
        lengths = batch.kv_lens
        table = batch.page_table
        tensors = (q, k_cache, v_cache, out, parts, lse, lengths, batch.cu_seqlens, table, lengths)
        if not _launch_attend.again(key, tensors):
            stages = 1 if q.dtype == torch.float32 else 5
            kv_heads = k_cache.shape[2]
            _launch_attend(
                (q.shape[0], kv_heads, pieces),
                tensors,
                (scale * LOG2E, *q.stride()[:2], table.stride(0), kv_heads),
                (*_Shape.of(q, k_cache).constants(1, 32, k_cache), True, pieces > 1, stages),
                num_warps=4,
                num_stages=stages,
                remember=key,
                **launch_options(q.dtype),
            )
        if pieces > 1 and not _launch_combine.again(key, (parts, lse, out, lengths)):
            sequences, heads, head_size = q.shape
            _launch_combine(
                (sequences, heads, 1),
                (parts, lse, out, lengths),
                (pieces,),
                (head_size, _Shape.of(q, k_cache).block_d, 16),
                num_warps=4,
                remember=key,
            )


__all__ = ["TritonAttention"]
