"""Paged softmax attention in Triton."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from switchrail.ops.attention.contract import CONTRACT
from switchrail.ops.backend import AttentionBackend, foreign
from switchrail.ops.batch import PagedBatch, PagedTreeBatch, Phase
from switchrail.ops.pages import check_lengths

from switchrail_kernels.attention.attend import launch_attend
from switchrail_kernels.attention.merge import launch_merge_pieces, launch_merge_rows
from switchrail_kernels.attention.plan import WIDEST, Pieces, Tiles
from switchrail_kernels.constants import LOG2E
from switchrail_kernels.device import has_large_shared_memory
from switchrail_kernels.launch import launch_options, padded
from switchrail_kernels.replay import Calls, Options, Tensors, scratch

_calls = Calls()


@dataclass(frozen=True, slots=True)
class _Layer:
    """What a call's tensors and options say about the kernel.

    Attributes:
        group: Query heads that share a key-value head.
        block_group: The same, as a block.
        block_d: The head size, as a block.
        numbers: From `scale` to HKV.
        features: The constants from NEGATED to LSE.
    """

    group: int
    block_group: int
    block_d: int
    numbers: tuple[int | float, ...]
    features: tuple[bool, ...]

    @classmethod
    def of(
        cls,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        batch: PagedBatch,
        scale: float,
        window: int | None,
        soft_cap: float | None,
        sinks: torch.Tensor | None,
        lse: torch.Tensor | None,
    ) -> _Layer:
        _, heads, head_size = q.shape
        kv_heads = k_cache.shape[2]
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
        features = (scale < 0, window is not None, soft_cap is not None, sinks is not None, lse is not None)
        return cls(group, padded(group), padded(head_size, 16), numbers, features)


class TritonAttention(AttentionBackend):
    """Paged attention for compute capability 8.0 and later; any head size, group and page size."""

    def plan(self, phase: Phase, batch: PagedBatch) -> object:
        """Decides how the caches of a decode are cut, and those of other phases when the first layer asks."""
        CONTRACT.check_batch(phase, batch, ("trees",))
        check_lengths(CONTRACT, batch)
        return Pieces.of(batch) if phase == "decode" else Tiles(batch)

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
        window: int | None = None,
        soft_cap: float | None = None,
        sinks: torch.Tensor | None = None,
        lse: torch.Tensor | None = None,
    ) -> None:
        """Attends T packed query rows of N sequences of any length."""
        tensors = {"q": q, "k_cache": k_cache, "v_cache": v_cache, "sinks": sinks, "out": out, "lse": lse}
        options = {"scale": scale, "window": window, "soft_cap": soft_cap}
        CONTRACT.check_arguments(batch, {**tensors, **options})
        if not isinstance(plan, Tiles):
            raise foreign("plan", plan)
        trees = isinstance(batch, PagedTreeBatch)
        if trees and window is not None:
            raise CONTRACT.error("window", f"{window} with trees", "None with trees")
        if q.shape[0] == 0:
            return
        if window is not None:
            window = min(window, WIDEST)
        layer = _Layer.of(q, k_cache, batch, scale, window, soft_cap, sinks, lse)
        compiler = launch_options(q.dtype)
        if q.dtype == torch.float32:
            rows, block_n, warps, stages = 32, 32, 4, 1
        elif layer.block_d <= 128:
            rows, block_n, warps, stages = 128, 64, 8, 2
            # so that a multiprocessor has two programs, one while the other waits
            compiler = {"maxnreg": 128}
        elif has_large_shared_memory(q.device):
            rows, block_n, warps, stages = 128, 64, 8, 2
        else:
            rows, block_n, warps, stages = 64, 32, 4, 2
        tokens = max(1, rows // layer.block_group)
        _, heads, head_size = q.shape
        _, page, kv_heads, _ = k_cache.shape
        work = plan.work(tokens, layer.group, kv_heads, page, window)
        parents = batch.parents if isinstance(batch, PagedTreeBatch) else None
        planned = (work.items, work.rows, batch.cu_seqlens, parents, batch.page_table, batch.kv_lens)
        given = (q, k_cache, v_cache, out, sinks, lse, *planned)
        cut = (len(batch.seqlens), scale, window, soft_cap, work.slots)
        if _calls.again(given, cut):
            return
        with _calls.record(given, cut):
            sinks_or, lse_or = out if sinks is None else sinks, out if lse is None else lse
            parts = weights = out
            if work.slots:
                parts = scratch((work.slots, heads, head_size), torch.float32, q.device)
                weights = scratch((work.slots, heads), torch.float32, q.device)
            parents_or = out if parents is None else parents
            launch_attend(
                (work.items.shape[0], kv_heads, 1),
                (
                    *(q, k_cache, v_cache, out, lse_or, sinks_or, parts, weights),
                    *(work.items, batch.cu_seqlens, parents_or, batch.page_table, batch.kv_lens),
                ),
                (*layer.numbers, 0),
                (
                    *(layer.group, max(layer.block_group, 16 // tokens), tokens),
                    *(head_size, layer.block_d, block_n, page),
                    *(False, work.slots > 0, *layer.features, trees, stages),
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
                    (head_size, layer.block_d, sinks is not None, lse is not None),
                    num_warps=4,
                )

    verify = prefill

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
        window: int | None = None,
        soft_cap: float | None = None,
        sinks: torch.Tensor | None = None,
        lse: torch.Tensor | None = None,
    ) -> None:
        """Attends one query row a sequence."""
        if not isinstance(plan, Pieces):
            raise foreign("plan", plan)
        table, lengths = batch.page_table, batch.kv_lens
        given: Tensors = (q, k_cache, v_cache, out, sinks, lse, table, lengths, batch.cu_seqlens)
        options: Options = (len(batch.seqlens), scale, window, soft_cap)
        known = plan.known_room(q, k_cache, window)
        if known is not None and _calls.again(
            (*given, *known.tensors), (*options, known.pieces, known.least)
        ):
            return
        tensors = {"q": q, "k_cache": k_cache, "v_cache": v_cache, "sinks": sinks, "out": out, "lse": lse}
        CONTRACT.check_arguments(batch, {**tensors, "scale": scale, "window": window, "soft_cap": soft_cap})
        if q.shape[0] == 0:
            return
        if window is not None:
            window = min(window, WIDEST)
        room = plan.room(q, k_cache, window)
        given, cut = (*given, *room.tensors), (*options, room.pieces, room.least)
        if known is None and _calls.again(given, cut):  # a new step's first layer
            return
        sinks_or, lse_or = out if sinks is None else sinks, out if lse is None else lse
        block_n, stages = 32, 1 if q.dtype == torch.float32 else 5
        sequences, heads, head_size = q.shape
        _, page, kv_heads, _ = k_cache.shape
        parts, weights = room.tensors or (out, out)
        layer = _Layer.of(q, k_cache, batch, scale, window, soft_cap, sinks, lse)
        with _calls.record(given, cut):
            launch_attend(
                (sequences, kv_heads, room.pieces),
                (
                    *(q, k_cache, v_cache, out, lse_or, sinks_or, parts, weights),
                    *(lengths, batch.cu_seqlens, lengths, table, lengths),
                ),
                (*layer.numbers, room.least),
                (
                    *(layer.group, max(layer.block_group, 16), 1),
                    *(head_size, layer.block_d, block_n, page),
                    *(True, room.pieces > 1, *layer.features, False, stages),
                ),
                num_warps=4,
                num_stages=stages,
                **launch_options(q.dtype),
            )
            if room.pieces > 1:
                launch_merge_pieces(
                    (sequences, heads, 1),
                    (parts, weights, out, lse_or, sinks_or, lengths),
                    (window or 0, room.pieces, room.least),
                    (
                        *(head_size, layer.block_d, block_n),
                        *(window is not None, sinks is not None, lse is not None),
                    ),
                    num_warps=4,
                )


__all__ = ["TritonAttention"]
