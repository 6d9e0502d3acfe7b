"""Multi-head latent attention in Triton."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from switchrail.ops.backend import MlaBackend, foreign
from switchrail.ops.batch import PagedBatch, PagedTreeBatch, Phase
from switchrail.ops.mla.contract import CONTRACT
from switchrail.ops.pages import check_lengths

from switchrail_kernels.constants import LOG2E
from switchrail_kernels.device import compute_capability, has_large_shared_memory
from switchrail_kernels.launch import Launcher, launch_options, padded
from switchrail_kernels.mla import absorbed, hopper
from switchrail_kernels.mla.expansion import Expanded
from switchrail_kernels.mla.plan import SPLIT, Cut, Pieces, Rest, Tiles, Work
from switchrail_kernels.mla.project import project
from switchrail_kernels.replay import Calls, Options, Tensors, scratch

_calls = Calls()


@dataclass(frozen=True, slots=True)
class _Shape:
    """The sizes of a program that attends to latents.

    Attributes:
        launch: The kernel's launcher.
        tokens: Tokens of a tile, BT.
        latent: R.
        block_n: Keys of a block.
        head_blocks: Programs for all heads.
        value_blocks: Programs for all columns of the values.
        constants: From BG to PAGE, and PARTS where the kernel has it.
        parts: Numbers that one of a query is kept in which is multiplied on the way.
        warps: Warps of a program.
        stages: Stages of its loads.
    """

    launch: Launcher
    tokens: int
    latent: int
    block_n: int
    head_blocks: int
    value_blocks: int
    constants: tuple[int, ...]
    parts: int
    warps: int
    stages: int

    @property
    def programs(self) -> int:
        """Programs a tile and piece."""
        return self.head_blocks * self.value_blocks


@lru_cache(maxsize=1024)
def _shape(
    count: int,
    rotated: int,
    width: int,
    page: int,
    dtype: torch.dtype,
    device: torch.device,
    aligned: bool,
    decode: bool,
    trees: bool,
    absorbs: bool,
) -> _Shape:
    latent = width - rotated
    block_r = padded(latent, 16)
    block_k = block_v = block_r
    launch = absorbed.launch_attend
    rows, block_n, warps, stages = 64, 64, 8, 3
    capability = compute_capability(device)
    if dtype == torch.float32:
        rows, block_n, warps, stages = 16, 16, 4, 1
        block_k, block_v = min(block_r, 64), min(block_r, 128)
    elif not has_large_shared_memory(device):
        rows, block_n, warps, stages = 16, 32, 4, 2
    elif (latent, rotated, aligned, trees) == (512, 64, True, False) and capability == (9, 0):
        launch = hopper.launch_attend
    elif decode and count <= 16:
        rows, warps, stages = 16, 4, 2
    elif capability < (9, 0):
        rows, stages = 32, 2
    heads = min(padded(count), rows)
    tokens = 1 if decode else rows // heads
    heads = rows // tokens
    is_split = absorbs and not decode and dtype != torch.float32 and latent <= SPLIT
    parts = 2 if is_split else 1
    constants = (
        *(heads, tokens, latent, block_r, block_k, block_v),
        *(rotated, padded(rotated, 16), block_n, page),
        *(() if launch is hopper.launch_attend else (parts,)),
    )
    blocks = -(-count // heads), -(-latent // block_v)
    return _Shape(launch, tokens, latent, block_n, *blocks, constants, parts, warps, stages)


def _shape_of(
    q_rope: torch.Tensor, kv_cache: torch.Tensor, w_k: torch.Tensor | None, *, decode: bool, trees: bool
) -> _Shape:
    """The sizes that a call's tensors ask for; the kernel for Hopper copies 16 aligned bytes at a time."""
    _, heads, rotated = q_rope.shape
    _, page, width = kv_cache.shape
    aligned = kv_cache.data_ptr() % 16 == 0
    dtype, device = kv_cache.dtype, kv_cache.device
    return _shape(heads, rotated, width, page, dtype, device, aligned, decode, trees, w_k is not None)


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
        named = {"q_nope": q_nope, "q_rope": q_rope, "kv_cache": kv_cache, "w_k": w_k, "w_v": w_v}
        CONTRACT.check_arguments(batch, {**named, "out": out, "lse": lse, "scale": scale})
        if not isinstance(plan, Tiles):
            raise foreign("plan", plan)
        if out.numel() == 0:
            return
        parents = batch.parents if isinstance(batch, PagedTreeBatch) else None
        shape = _shape_of(q_rope, kv_cache, w_k, decode=False, trees=parents is not None)
        page = kv_cache.shape[1]
        expanded = rest = work = None
        if w_k is not None and w_v is not None and parents is None:
            expanded = Expanded.of(q_nope, q_rope, kv_cache, w_k, w_v, out, lse, batch, plan)
        if expanded is not None:
            rest = plan.rest(expanded.layer)
        if rest is None or rest.rows:
            layer = None if expanded is None else expanded.layer
            work = plan.work(shape.tokens, shape.programs, page, layer)
        tensors: Tensors = (
            *(q_nope, q_rope, kv_cache, w_k, w_v, out, lse, parents),
            *(batch.cu_seqlens, batch.page_table, batch.kv_lens),
            *(() if expanded is None else expanded.tables),
            *(() if rest is None else (rest.places,)),
            *(() if work is None else (work.items, work.rows)),
        )
        options: Options = (
            *(len(batch.seqlens), scale, len(tensors)),
            *(() if expanded is None else expanded.options),
            *(() if rest is None else (rest.rows,)),
            *(() if work is None else (work.slots, work.base)),
        )
        if _calls.again(tensors, options):
            return
        with _calls.record(tensors, options):
            if expanded is not None:
                expanded.attend(scale)
            if work is not None:
                rows = out.shape[0] if rest is None else rest.rows
                plain = _plain(q_nope, w_k, rows, shape.parts, rest)
                latents = _latents(out, w_v, rows)
                _attend(shape, plain, q_rope, kv_cache, latents, lse, parents, batch, work, scale)
                if w_v is not None:
                    project(latents, w_v, out, None if rest is None else rest.places, values=True)

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
        if not isinstance(plan, Pieces):
            raise foreign("plan", plan)
        lengths, table = batch.kv_lens, batch.page_table
        tensors: Tensors = (
            *(q_nope, q_rope, kv_cache, w_k, w_v, out, lse),
            *(batch.cu_seqlens, table, lengths),
        )
        known = plan.known(q_rope, kv_cache)
        options: Options = (len(batch.seqlens), scale)
        if known is not None and _calls.again(tensors, (*options, known.base, known.most)):
            return
        named = {"q_nope": q_nope, "q_rope": q_rope, "kv_cache": kv_cache, "w_k": w_k, "w_v": w_v}
        CONTRACT.check_arguments(batch, {**named, "out": out, "lse": lse, "scale": scale})
        if out.numel() == 0:
            return
        shape = _shape_of(q_rope, kv_cache, w_k, decode=True, trees=False)
        cut = plan.cut(q_rope, kv_cache, shape.programs)
        options = (*options, cut.base, cut.most)
        if known is None and _calls.again(tensors, options):  # a new step's first layer
            return
        with _calls.record(tensors, options):
            rows = out.shape[0]
            plain = _plain(q_nope, w_k, rows, shape.parts, None)
            latents = _latents(out, w_v, rows)
            _attend(shape, plain, q_rope, kv_cache, latents, lse, None, batch, cut, scale)
            if w_v is not None:
                project(latents, w_v, out, values=True)


def _attend(
    shape: _Shape,
    plain: torch.Tensor,
    q_rope: torch.Tensor,
    kv_cache: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor | None,
    parents: torch.Tensor | None,
    batch: PagedBatch,
    work: Work | Cut,
    scale: float,
) -> None:
    """Attends to latents, in one launch, or two where keys are cut.

    Args:
        shape: The program's.
        plain: [rows, H * parts, R], queries multiplied by what makes keys.
        q_rope: [T, H, E].
        kv_cache: [pages, page, R + E].
        out: [rows, H, R]; written to.
        lse: [T, H]; written to.
        parents: [T], of trees.
        batch: The batch.
        work: The programs, or how a decode's caches are cut.
        scale: Factor of the logits.
    """
    heads = out.shape[1]
    device = out.device
    decode = isinstance(work, Cut)
    if isinstance(work, Cut):
        items = rows = batch.kv_lens
        base, most = work.base, work.most
        tiles = len(batch.seqlens)
        slots = tiles * most if most > 1 else 0
        merged = tiles
    else:
        items, rows = work.items, work.rows
        base, most = work.base, 1
        tiles, merged, slots = items.shape[0], rows.shape[0], work.slots
    lse_or = out if lse is None else lse
    parts = weights = out
    if slots:
        parts = scratch((slots, heads, shape.latent), torch.float32, device)
        weights = scratch((slots, heads), torch.float32, device)
    shape.launch(
        (tiles * shape.head_blocks, most, shape.value_blocks),
        (
            *(plain, q_rope, kv_cache, out, lse_or, parts, weights, items),
            *(batch.cu_seqlens, items if parents is None else parents, batch.page_table, batch.kv_lens),
        ),
        (
            *(scale * LOG2E.value, *plain.stride()[:2], *q_rope.stride()[:2]),
            *(batch.page_table.stride(0), heads, base, most),
        ),
        (*shape.constants, decode, parents is not None, lse is not None, shape.stages),
        num_warps=shape.warps,
        num_stages=shape.stages,
        **launch_options(out.dtype),
    )
    if slots:
        block_p, block_c = (8, 512) if base <= 8 else (64, 128)
        block_c = min(padded(shape.latent), block_c)
        absorbed.launch_merge(
            (merged, heads, -(-shape.latent // block_c)),
            (parts, weights, out, lse_or, rows, batch.kv_lens),
            (heads, base, most),
            (shape.latent, block_c, shape.block_n, block_p, decode, lse is not None),
            num_warps=4,
        )


def _plain(
    q_nope: torch.Tensor, w_k: torch.Tensor | None, rows: int, parts: int, rest: Rest | None
) -> torch.Tensor:
    """The queries that latents are multiplied by, [rows, H * parts, R]."""
    if w_k is None:
        return q_nope
    plain = scratch((rows, w_k.shape[0] * parts, w_k.shape[2]), q_nope.dtype, q_nope.device)
    project(q_nope, w_k, plain, None if rest is None else rest.places)
    return plain


def _latents(out: torch.Tensor, w_v: torch.Tensor | None, rows: int) -> torch.Tensor:
    """Room for what is to be multiplied by what makes values, [rows, H, R]."""
    return out if w_v is None else scratch((rows, w_v.shape[0], w_v.shape[2]), out.dtype, out.device)


__all__ = ["TritonMla"]
