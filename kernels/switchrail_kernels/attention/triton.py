"""Paged softmax attention in Triton."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from switchrail.ops.attention.contract import CONTRACT, AttentionBackend, AttentionCall
from switchrail.ops.batch import PagedBatch, PagedTreeBatch

from switchrail_kernels.alignment import nonzero
from switchrail_kernels.attention.attend import launch_attend
from switchrail_kernels.attention.merge import launch_merge_pieces, launch_merge_rows
from switchrail_kernels.attention.plan import WIDEST, CacheSplit, Pieces, Tiles
from switchrail_kernels.claims import PAGE_FEATURES
from switchrail_kernels.constants import LOG2E
from switchrail_kernels.device import has_large_shared_memory
from switchrail_kernels.launch import launch_options, padded
from switchrail_kernels.paged import TritonPaged
from switchrail_kernels.replay import Options, Tensors, scratch
from switchrail_kernels.tiles import Work


@dataclass(frozen=True, slots=True)
class _Shape:
    """The kernel's arguments that follow from the layer, the call's shapes and strides, and the page table.

    Attributes:
        group: Query heads per key-value head.
        block_group: `group`, rounded up to a power of 2.
        block_d: The head size, rounded up to a power of 2 from 16 on.
        window: The layer's window, at most `WIDEST`; None for no window.
        numbers: The kernel's arguments from `scale` to HKV.
        features: The kernel's constants from NEGATED to LSE.
        strides: The strides of keys and of values along pages, tokens and heads; zeros if both caches are
            dense.
    """

    group: int
    block_group: int
    block_d: int
    window: int | None
    numbers: tuple[int | float, ...]
    features: tuple[bool, ...]
    strides: tuple[int, ...]

    @classmethod
    def of(cls, call: AttentionCall, batch: PagedBatch) -> _Shape:
        layer, q, _, lse = call
        scale, soft_cap = layer.scale, layer.soft_cap
        window = None if layer.window is None else min(layer.window, WIDEST)
        _, heads, head_size = q.shape
        kv_heads = layer.k_cache.shape[2]
        group = heads // kv_heads
        factor = abs(scale) * (LOG2E.value if soft_cap is None else 1 / soft_cap)
        cap = 0.0 if soft_cap is None else soft_cap * LOG2E.value
        numbers = (factor, cap, window or 0, *q.stride()[:2], batch.page_table.stride(0), kv_heads)
        given = (window, soft_cap, layer.sinks, lse)
        features = (scale < 0, *[feature is not None for feature in given])
        caches = (layer.k_cache, layer.v_cache)
        strides = nonzero(stride for cache in caches for stride in cache.stride()[:3])
        if all(cache.is_contiguous() for cache in caches):
            strides = (0,) * 6
        return cls(group, padded(group), padded(head_size, 16), window, numbers, features, strides)


class _Program(NamedTuple):
    """Tile sizes and compiler options of a prefill or a verification.

    Attributes:
        tokens: Tokens per tile.
        block_n: Keys per block.
        warps: Warps per program.
        stages: Pipeline stages of the program's loads.
        options: Further compiler options.
    """

    tokens: int
    block_n: int
    warps: int
    stages: int
    options: dict[str, Any]

    @classmethod
    def of(cls, shape: _Shape, q: torch.Tensor) -> _Program:
        compiler = launch_options(q.dtype)
        if q.dtype == torch.float32:
            rows, block_n, warps, stages = 32, 32, 4, 1
        elif shape.block_d <= 128:
            rows, block_n, warps, stages = 128, 64, 8, 2
            # two programs per multiprocessor, so that one runs while the other waits
            compiler = {"maxnreg": 128}
        elif has_large_shared_memory(q.device):
            rows, block_n, warps, stages = 128, 64, 8, 2
        else:
            rows, block_n, warps, stages = 64, 32, 4, 2
        return cls(max(1, rows // shape.block_group), block_n, warps, stages, compiler)


class TritonAttention(TritonPaged[AttentionCall], AttentionBackend):
    """Paged attention for compute capability 8.0 and later, for any head size, group and page size."""

    contract = CONTRACT
    features = (*PAGE_FEATURES, "sinks", "soft_cap", "window")
    decode_plan = Pieces
    rows_plan = Tiles

    def prepare(
        self, call: AttentionCall, batch: PagedBatch, plan: Pieces | Tiles
    ) -> tuple[Tensors, Options, Callable[[], None]]:
        """Choose how a decode's caches are split, or the tiles of a prefill or verification."""
        layer, q, _, _ = call
        kv_heads = layer.k_cache.shape[2]
        if isinstance(plan, Pieces):
            split = plan.split(call, kv_heads)
            return split.tensors, (split.pieces, split.least), partial(_attend_pieces, call, batch, split)
        parents = batch.parents if isinstance(batch, PagedTreeBatch) else None
        if parents is not None and layer.window is not None:
            raise CONTRACT.error("window", f"{layer.window} with trees", "None with trees")
        shape = _Shape.of(call, batch)
        program = _Program.of(shape, q)
        work = plan.work(program.tokens, shape.group, kv_heads, layer.k_cache.shape[1], shape.window)
        launch = partial(_attend_tiles, shape, program, call, batch, work, parents)
        return (work.items, work.rows, parents), (work.slots,), launch


def _attend_pieces(call: AttentionCall, batch: PagedBatch, split: CacheSplit) -> None:
    """Launch a decode: one kernel, and another if caches are split."""
    layer, q, out, lse = call
    shape = _Shape.of(call, batch)
    lse_or, sinks_or = out if lse is None else lse, out if layer.sinks is None else layer.sinks
    block_n, stages = 32, 1 if q.dtype == torch.float32 else 5
    sequences, heads, head_size = q.shape
    _, page, kv_heads, _ = layer.k_cache.shape
    lengths = batch.kv_lens
    parts, weights = split.tensors or (out, out)
    launch_attend(
        (sequences, kv_heads, split.pieces),
        (
            *(q, layer.k_cache, layer.v_cache, out, lse_or, sinks_or, parts, weights),
            *(lengths, batch.cu_seqlens, lengths, batch.page_table, lengths),
        ),
        (*shape.numbers, split.least),
        (
            *(shape.group, max(shape.block_group, 16), 1),
            *(head_size, shape.block_d, block_n, page),
            *(True, split.pieces > 1, *shape.features, False, stages, *shape.strides),
        ),
        num_warps=4,
        num_stages=stages,
        **launch_options(q.dtype),
    )
    if split.pieces > 1:
        launch_merge_pieces(
            (sequences, heads, 1),
            (parts, weights, out, lse_or, sinks_or, lengths),
            (shape.window or 0, split.pieces, split.least),
            (
                *(head_size, shape.block_d, block_n),
                *(shape.window is not None, layer.sinks is not None, lse is not None),
            ),
            num_warps=4,
        )


def _attend_tiles(
    shape: _Shape,
    program: _Program,
    call: AttentionCall,
    batch: PagedBatch,
    work: Work,
    parents: torch.Tensor | None,
) -> None:
    """Launch a prefill or a verification: one kernel, and another if keys are split."""
    layer, q, out, lse = call
    lse_or, sinks_or = out if lse is None else lse, out if layer.sinks is None else layer.sinks
    _, heads, head_size = q.shape
    _, page, kv_heads, _ = layer.k_cache.shape
    parts = weights = out
    if work.slots:
        parts = scratch((work.slots, heads, head_size), torch.float32, q.device)
        weights = scratch((work.slots, heads), torch.float32, q.device)
    launch_attend(
        (work.items.shape[0], kv_heads, 1),
        (
            *(q, layer.k_cache, layer.v_cache, out, lse_or, sinks_or, parts, weights),
            *(work.items, batch.cu_seqlens, out if parents is None else parents),
            *(batch.page_table, batch.kv_lens),
        ),
        (*shape.numbers, 0),
        (
            *(shape.group, max(shape.block_group, 16 // program.tokens), program.tokens),
            *(head_size, shape.block_d, program.block_n, page),
            *(False, work.slots > 0, *shape.features, parents is not None, program.stages, *shape.strides),
        ),
        num_warps=program.warps,
        num_stages=program.stages,
        **program.options,
    )
    if work.slots:
        launch_merge_rows(
            (work.rows.shape[0], heads, 1),
            (parts, weights, out, lse_or, sinks_or, work.rows),
            (),
            (head_size, shape.block_d, layer.sinks is not None, lse is not None),
            num_warps=4,
        )
