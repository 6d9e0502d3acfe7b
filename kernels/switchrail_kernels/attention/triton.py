"""Paged softmax attention in Triton."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from switchrail.ops.attention.contract import CONTRACT, AttentionBackend, AttentionCall
from switchrail.ops.backend import foreign
from switchrail.ops.batch import Bounds, PagedBatch, PagedTreeBatch, Phase
from switchrail.ops.pages import check_lengths

from switchrail_kernels.attention.attend import launch_attend
from switchrail_kernels.attention.merge import launch_merge_pieces, launch_merge_rows
from switchrail_kernels.attention.plan import WIDEST, Pieces, Tiles
from switchrail_kernels.constants import LOG2E
from switchrail_kernels.device import has_large_shared_memory
from switchrail_kernels.launch import launch_options, padded
from switchrail_kernels.replay import calls_of, scratch

FEATURES = ("lse", "sinks", "soft_cap", "trees", "window")


@dataclass(frozen=True, slots=True)
class _Shape:
    """What a call says about the kernel.

    Attributes:
        group: Query heads that share a key-value head.
        block_group: The same, as a block.
        block_d: The head size, as a block.
        window: The layer's, such as 32 bits hold.
        numbers: From `scale` to HKV.
        features: The constants from NEGATED to LSE.
    """

    group: int
    block_group: int
    block_d: int
    window: int | None
    numbers: tuple[int | float, ...]
    features: tuple[bool, ...]

    @classmethod
    def of(cls, call: AttentionCall, batch: PagedBatch) -> _Shape:
        layer, q, _, lse = call
        scale, soft_cap = layer.scale, layer.soft_cap
        window = None if layer.window is None else min(layer.window, WIDEST)
        _, heads, head_size = q.shape
        kv_heads = layer.k_cache.shape[2]
        group = heads // kv_heads
        factor = abs(scale) * (LOG2E.value if soft_cap is None else 1 / soft_cap)
        numbers = (
            factor,
            0.0 if soft_cap is None else soft_cap * LOG2E.value,
            window or 0,
            *q.stride()[:2],
            batch.page_table.stride(0),
            kv_heads,
        )
        given = (window, soft_cap, layer.sinks, lse)
        features = (scale < 0, *[feature is not None for feature in given])
        return cls(group, padded(group), padded(head_size, 16), window, numbers, features)


class TritonAttention(AttentionBackend):
    """Paged attention for compute capability 8.0 and later; any head size, group and page size."""

    def plan(self, phase: Phase, batch: PagedBatch, bounds: Bounds | None = None) -> Pieces | Tiles:
        """Decides how the caches of a decode are cut, and those of other phases when the first layer asks."""
        CONTRACT.check_batch(phase, batch, FEATURES)
        check_lengths(CONTRACT, batch)
        return Pieces(batch, bounds) if phase == "decode" else Tiles(batch)

    def refresh(self, plan: object, batch: PagedBatch) -> None:
        """Of decode: another batch within the bounds is cut by its own lengths, on the device.

        Raises:
            ArgumentError: The plan is another phase's, or has no bounds.
        """
        if not isinstance(plan, Pieces):
            raise foreign("plan", plan)
        plan.refresh(batch)

    def run(self, call: AttentionCall, batch: PagedBatch, plan: object) -> None:
        """Attends T packed query rows of N sequences of any length; in decode one a sequence."""
        if not isinstance(plan, Pieces):
            self._run_tiles(call, batch, plan)
            return
        layer, q, out, lse = call
        brought = (q, out, lse, batch.page_table, batch.kv_lens, batch.cu_seqlens)
        known = plan.known_room(layer, q, batch)
        if known is not None and calls_of(layer, type(self)).again(
            (*brought, *known.tensors), (len(batch.seqlens), known.pieces, known.least)
        ):
            return
        CONTRACT.check_call(call, batch, FEATURES)
        if plan.seqlens != batch.seqlens:
            raise foreign("plan", plan)
        if q.shape[0] == 0:
            return
        room = plan.room(layer, q)
        tensors, options = (*brought, *room.tensors), (len(batch.seqlens), room.pieces, room.least)
        calls = calls_of(layer, type(self))
        if known is None and calls.again(tensors, options):  # a new step's first layer
            return
        shape = _Shape.of(call, batch)
        lse_or, sinks_or = out if lse is None else lse, out if layer.sinks is None else layer.sinks
        block_n, stages = 32, 1 if q.dtype == torch.float32 else 5
        sequences, heads, head_size = q.shape
        _, page, kv_heads, _ = layer.k_cache.shape
        lengths = batch.kv_lens
        parts, weights = room.tensors or (out, out)
        with calls.record(layer, tensors, options):
            launch_attend(
                (sequences, kv_heads, room.pieces),
                (
                    *(q, layer.k_cache, layer.v_cache, out, lse_or, sinks_or, parts, weights),
                    *(lengths, batch.cu_seqlens, lengths, batch.page_table, lengths),
                ),
                (*shape.numbers, room.least),
                (
                    *(shape.group, max(shape.block_group, 16), 1),
                    *(head_size, shape.block_d, block_n, page),
                    *(True, room.pieces > 1, *shape.features, False, stages),
                ),
                num_warps=4,
                num_stages=stages,
                **launch_options(q.dtype),
            )
            if room.pieces > 1:
                launch_merge_pieces(
                    (sequences, heads, 1),
                    (parts, weights, out, lse_or, sinks_or, lengths),
                    (shape.window or 0, room.pieces, room.least),
                    (
                        *(head_size, shape.block_d, block_n),
                        *(shape.window is not None, layer.sinks is not None, lse is not None),
                    ),
                    num_warps=4,
                )

    def _run_tiles(self, call: AttentionCall, batch: PagedBatch, plan: object) -> None:
        """Of a prefill, or a verification."""
        CONTRACT.check_call(call, batch, FEATURES)
        if not isinstance(plan, Tiles) or plan.batch.seqlens != batch.seqlens:
            raise foreign("plan", plan)
        layer, q, out, lse = call
        parents = batch.parents if isinstance(batch, PagedTreeBatch) else None
        if parents is not None and layer.window is not None:
            raise CONTRACT.error("window", f"{layer.window} with trees", "None with trees")
        if q.shape[0] == 0:
            return
        shape = _Shape.of(call, batch)
        compiler = launch_options(q.dtype)
        if q.dtype == torch.float32:
            rows, block_n, warps, stages = 32, 32, 4, 1
        elif shape.block_d <= 128:
            rows, block_n, warps, stages = 128, 64, 8, 2
            # so that a multiprocessor has two programs, one while the other waits
            compiler = {"maxnreg": 128}
        elif has_large_shared_memory(q.device):
            rows, block_n, warps, stages = 128, 64, 8, 2
        else:
            rows, block_n, warps, stages = 64, 32, 4, 2
        tokens = max(1, rows // shape.block_group)
        _, heads, head_size = q.shape
        _, page, kv_heads, _ = layer.k_cache.shape
        work = plan.work(tokens, shape.group, kv_heads, page, shape.window)
        table, lengths = batch.page_table, batch.kv_lens
        tensors = (q, out, lse, work.items, work.rows, batch.cu_seqlens, parents, table, lengths)
        options = (len(batch.seqlens), work.slots)
        calls = calls_of(layer, type(self))
        if calls.again(tensors, options):
            return
        with calls.record(layer, tensors, options):
            lse_or, sinks_or = out if lse is None else lse, out if layer.sinks is None else layer.sinks
            parts = weights = out
            if work.slots:
                parts = scratch((work.slots, heads, head_size), torch.float32, q.device)
                weights = scratch((work.slots, heads), torch.float32, q.device)
            parents_or = out if parents is None else parents
            launch_attend(
                (work.items.shape[0], kv_heads, 1),
                (
                    *(q, layer.k_cache, layer.v_cache, out, lse_or, sinks_or, parts, weights),
                    *(work.items, batch.cu_seqlens, parents_or, table, lengths),
                ),
                (*shape.numbers, 0),
                (
                    *(shape.group, max(shape.block_group, 16 // tokens), tokens),
                    *(head_size, shape.block_d, block_n, page),
                    *(False, work.slots > 0, *shape.features, parents is not None, stages),
                ),
                num_warps=warps,
                num_stages=stages,
                **compiler,
            )
            if work.slots:
                launch_merge_rows(
                    (work.rows.shape[0], heads, 1),
                    (parts, weights, out, lse_or, sinks_or, work.rows),
                    (),
                    (head_size, shape.block_d, layer.sinks is not None, lse is not None),
                    num_warps=4,
                )


__all__ = ["FEATURES", "TritonAttention"]
