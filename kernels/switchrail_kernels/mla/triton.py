"""Multi-head latent attention in Triton."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from switchrail.ops.backend import MlaBackend
from switchrail.ops.batch import PagedBatch, PagedTreeBatch, Phase
from switchrail.ops.mla.contract import CONTRACT
from switchrail.ops.pages import check_lengths

from switchrail_kernels.device import compute_capability, has_large_shared_memory
from switchrail_kernels.launch import Launcher, launch_options, padded
from switchrail_kernels.mla import absorbed, hopper
from switchrail_kernels.mla.expansion import attend_expanded
from switchrail_kernels.mla.plan import Pieces, Tiles
from switchrail_kernels.mla.project import project

LOG2E = 1.4426950408889634


@dataclass(frozen=True, slots=True)
class _Shape:
    """The sizes of a program, as a call's tensors ask for them.

    Attributes:
        launch: The kernel's launcher.
        tokens: Tokens of a tile, BT.
        latent: R.
        block_n: Keys of a block.
        page: Tokens a page.
        head_blocks: Programs for all heads.
        value_blocks: Programs for all columns of the values.
        constants: From BG to PAGE.
        warps: Warps of a program.
        stages: Stages of its loads.
    """

    launch: Launcher
    tokens: int
    latent: int
    block_n: int
    page: int
    head_blocks: int
    value_blocks: int
    constants: tuple[int, ...]
    warps: int
    stages: int

    @classmethod
    def of(cls, q_rope: torch.Tensor, kv_cache: torch.Tensor, *, decode: bool, trees: bool) -> _Shape:
        _, count, rotated = q_rope.shape
        _, page, width = kv_cache.shape
        latent = width - rotated
        block_r = padded(latent, 16)
        block_k = block_v = block_r
        launch = absorbed.launch_attend
        rows, block_n, warps, stages = 64, 64, 8, 3
        if q_rope.dtype == torch.float32:
            rows, block_n, warps, stages = 16, 16, 4, 1
            block_k, block_v = min(block_r, 64), min(block_r, 128)
        elif (latent, rotated, trees) == (512, 64, False) and _is_for_hopper(kv_cache):
            launch = hopper.launch_attend
        elif not has_large_shared_memory(kv_cache.device):
            rows, block_n, warps, stages = 16, 32, 4, 2
        elif decode and count <= 16:
            rows, warps = 16, 4
        heads = min(padded(count), rows)
        tokens = 1 if decode else rows // heads
        heads = rows // tokens
        constants = (heads, tokens, latent, block_r, block_k, block_v, rotated, padded(rotated, 16), block_n)
        return cls(
            launch,
            tokens,
            latent,
            block_n,
            page,
            -(-count // heads),
            -(-latent // block_v),
            (*constants, page),
            warps,
            stages,
        )


def _is_for_hopper(kv_cache: torch.Tensor) -> bool:
    """Whether the kernel for Hopper can be run: its copies are of 16 aligned bytes."""
    return compute_capability(kv_cache.device) == (9, 0) and kv_cache.data_ptr() % 16 == 0


class TritonMla(MlaBackend):
    """Multi-head latent attention for compute capability 8.0 and later; any sizes, latents up to 512."""

    def plan(self, phase: Phase, batch: PagedBatch) -> Pieces | Tiles:
        """Decides how rows and caches are cut when the first layer asks."""
        CONTRACT.check_batch(phase, batch, ("trees",))
        check_lengths(CONTRACT, batch)
        return Pieces(batch) if phase == "decode" else Tiles(batch)

    def prefill(
        self,
        q_nope: torch.Tensor,
        q_rope: torch.Tensor,
        kv_cache: torch.Tensor,
        *,
        w_k: torch.Tensor | None,
        w_v: torch.Tensor | None,
        out: torch.Tensor,
        batch: PagedBatch,
        plan: object,
        scale: float,
        lse: torch.Tensor | None = None,
    ) -> None:
        """Attends T packed query rows of N sequences of any length."""
        tensors = {"q_nope": q_nope, "q_rope": q_rope, "kv_cache": kv_cache, "w_k": w_k, "w_v": w_v}
        CONTRACT.check_arguments(batch, {**tensors, "out": out, "lse": lse, "scale": scale})
        assert isinstance(plan, Tiles)
        if out.numel() == 0:
            return
        if (
            w_k is not None
            and w_v is not None
            and not isinstance(batch, PagedTreeBatch)
            and attend_expanded(q_nope, q_rope, kv_cache, w_k, w_v, out, lse, batch, plan, scale)
        ):
            rows, places = plan.rest()
            if rows:
                plain, latents = _latents(rows, w_k), _latents(rows, w_v)
                project(q_nope, w_k, plain, places)
                _attend(plain, q_rope, kv_cache, latents, lse, batch, plan, scale, some=True)
                project(latents, w_v.mT, out, places, back=True)
            return
        plain = _absorbed(q_nope, w_k)
        latents = out if w_v is None else _latents(out.shape[0], w_v)
        _attend(plain, q_rope, kv_cache, latents, lse, batch, plan, scale, some=False)
        if w_v is not None:
            project(latents, w_v.mT, out)

    verify = prefill

    def decode(
        self,
        q_nope: torch.Tensor,
        q_rope: torch.Tensor,
        kv_cache: torch.Tensor,
        *,
        w_k: torch.Tensor | None,
        w_v: torch.Tensor | None,
        out: torch.Tensor,
        batch: PagedBatch,
        plan: object,
        scale: float,
        lse: torch.Tensor | None = None,
    ) -> None:
        """Attends one query row a sequence."""
        assert isinstance(plan, Pieces)
        tensors = {"q_nope": q_nope, "q_rope": q_rope, "kv_cache": kv_cache, "w_k": w_k, "w_v": w_v}
        CONTRACT.check_arguments(batch, {**tensors, "out": out, "lse": lse, "scale": scale})
        if out.numel() == 0:
            return
        shape = _Shape.of(q_rope, kv_cache, decode=True, trees=False)
        sequences, heads, _ = out.shape
        cut = plan.cut(shape.page, shape.head_blocks * shape.value_blocks)
        plain = _absorbed(q_nope, w_k)
        latents = out if w_v is None else _latents(sequences, w_v)
        lse_or = out if lse is None else lse
        lengths, table = batch.kv_lens, batch.page_table
        parts = weights = latents
        if cut.most > 1:
            room = plan.room(sequences * cut.most, heads, shape.latent)
            parts, weights = room.parts, room.weights
        shape.launch(
            (sequences * shape.head_blocks, cut.most, shape.value_blocks),
            (
                *(plain, q_rope, kv_cache, latents, lse_or, parts, weights),
                *(lengths, batch.cu_seqlens, lengths, table, lengths),
            ),
            (
                *(scale * LOG2E, *plain.stride()[:2], *q_rope.stride()[:2]),
                *(table.stride(0), heads, cut.least, cut.most),
            ),
            (*shape.constants, True, cut.most > 1, False, lse is not None, shape.stages),
            num_warps=shape.warps,
            num_stages=shape.stages,
            **launch_options(out.dtype),
        )
        if cut.most > 1:
            absorbed.launch_merge(
                (sequences, heads, 1),
                (parts, weights, latents, lse_or, lengths, lengths),
                (heads, cut.least, cut.most),
                (shape.latent, padded(shape.latent), shape.block_n, 8, True, lse is not None),
                num_warps=4,
            )
        if w_v is not None:
            project(latents, w_v.mT, out)


def _attend(
    plain: torch.Tensor,
    q_rope: torch.Tensor,
    kv_cache: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor | None,
    batch: PagedBatch,
    plan: Tiles,
    scale: float,
    *,
    some: bool,
) -> None:
    """Attends to latents, in one launch or two.

    Args:
        plain: [rows, H, R], queries multiplied by what makes keys.
        q_rope: [T, H, E].
        kv_cache: [pages, page, R + E].
        out: [rows, H, R]; written to.
        lse: [T, H]; written to.
        batch: The batch.
        plan: Its plan.
        scale: Factor of the logits.
        some: Whether rows are only those of sequences that are not expanded; else all T.
    """
    trees = isinstance(batch, PagedTreeBatch)
    shape = _Shape.of(q_rope, kv_cache, decode=False, trees=trees)
    work = plan.work(shape.tokens, shape.head_blocks * shape.value_blocks, shape.page, some=some)
    lse_or = out if lse is None else lse
    parts = weights = out
    heads = out.shape[1]
    if work.slots:
        room = work.room(heads, shape.latent)
        parts, weights = room.parts, room.weights
    parents = batch.parents if isinstance(batch, PagedTreeBatch) else work.items
    shape.launch(
        (work.items.shape[0] * shape.head_blocks, 1, shape.value_blocks),
        (
            *(plain, q_rope, kv_cache, out, lse_or, parts, weights),
            *(work.items, batch.cu_seqlens, parents, batch.page_table, batch.kv_lens),
        ),
        (
            *(scale * LOG2E, *plain.stride()[:2], *q_rope.stride()[:2]),
            *(batch.page_table.stride(0), heads, 0, 0),
        ),
        (*shape.constants, False, work.slots > 0, trees, lse is not None, shape.stages),
        num_warps=shape.warps,
        num_stages=shape.stages,
        **launch_options(out.dtype),
    )
    if work.slots:
        absorbed.launch_merge(
            (work.rows.shape[0], heads, 1),
            (parts, weights, out, lse_or, work.rows, batch.kv_lens),
            (heads, 0, 0),
            (shape.latent, padded(shape.latent), shape.block_n, 8, False, lse is not None),
            num_warps=4,
        )


def _absorbed(q_nope: torch.Tensor, w_k: torch.Tensor | None) -> torch.Tensor:
    """The queries that latents are multiplied by, [T, H, R]."""
    if w_k is None:
        return q_nope
    plain = _latents(q_nope.shape[0], w_k)
    project(q_nope, w_k, plain)
    return plain


def _latents(rows: int, weights: torch.Tensor) -> torch.Tensor:
    """Scratch of a latent a row and head, for weights [H, ..., R]."""
    heads, _, latent_size = weights.shape
    return torch.empty((rows, heads, latent_size), dtype=weights.dtype, device=weights.device)


__all__ = ["TritonMla"]
