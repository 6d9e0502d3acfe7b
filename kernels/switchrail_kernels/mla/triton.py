"""Multi-head latent attention in Triton."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

import torch
from switchrail.ops.adapter import Adapted
from switchrail.ops.backend import check_plan
from switchrail.ops.batch import PagedBatch, PagedTreeBatch
from switchrail.ops.mla.contract import CONTRACT, MlaBackend, MlaCall

from switchrail_kernels.alignment import gaps
from switchrail_kernels.claims import PAGE_FEATURES
from switchrail_kernels.constants import LOG2E
from switchrail_kernels.device import compute_capability, has_large_shared_memory
from switchrail_kernels.launch import Launcher, launch_options, padded
from switchrail_kernels.mla import absorbed, hopper
from switchrail_kernels.mla.expansion import Expanded
from switchrail_kernels.mla.plan import TWO_PARTS, CacheSplit, Pieces, Rest, Tiles
from switchrail_kernels.mla.project import project
from switchrail_kernels.paged import TritonPaged
from switchrail_kernels.replay import Options, Tensors, scratch
from switchrail_kernels.tiles import Work


@dataclass(frozen=True, slots=True)
class _Shape:
    """The kernel that attends to latents, and the sizes of its programs.

    Attributes:
        launch: The kernel's launcher.
        tokens: Tokens per tile, BT.
        latent: R, the size of a latent.
        block_n: Keys per block.
        head_blocks: The number of blocks of heads. Each block has its own program.
        value_blocks: The number of blocks of the values' columns. Each block has its own program.
        constants: The kernel's constants from BG to PAGE, and PARTS if the kernel has it.
        parts: The number of parts of an absorbed query.
        warps: Warps per program.
        stages: Pipeline stages of the programs' loads.
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
        """Programs for each piece of a tile's keys."""
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
    has_two = absorbs and not decode and dtype != torch.float32 and latent <= TWO_PARTS
    parts = 2 if has_two else 1
    constants = (
        *(heads, tokens, latent, block_r, block_k, block_v),
        *(rotated, padded(rotated, 16), block_n, page),
        *(() if launch is hopper.launch_attend else (parts,)),
    )
    blocks = -(-count // heads), -(-latent // block_v)
    return _Shape(launch, tokens, latent, block_n, *blocks, constants, parts, warps, stages)


def _shape_of(call: MlaCall, *, decode: bool, trees: bool) -> _Shape:
    """The kernel for a call's tensors. The Hopper kernel needs an aligned cache without gaps."""
    cache = call.layer.kv_cache
    _, heads, rotated = call.q_rope.shape
    _, page, width = cache.shape
    aligned = cache.data_ptr() % 16 == 0 and cache.is_contiguous()
    absorbs = call.layer.w_k is not None
    return _shape(heads, rotated, width, page, cache.dtype, cache.device, aligned, decode, trees, absorbs)


class TritonMla(TritonPaged[MlaCall], MlaBackend):
    """Multi-head latent attention for compute capability 8.0 and later, for latents of size up to 512."""

    contract = CONTRACT
    features = PAGE_FEATURES
    decode_plan = Pieces
    rows_plan = Tiles

    def plan_chunked_prefix(
        self, plan: Tiles | Adapted, batch: PagedBatch, ragged: bool, chunked: bool
    ) -> None:
        """Set which sequences may be expanded. Must be called before the first `run` with the plan.

        A sequence that may be expanded is expanded if that is estimated to be faster. A sequence's new tokens
        and its cached prefix are expanded together.
        """
        own = plan.plan if isinstance(plan, Adapted) else plan
        check_plan(own, batch, (Tiles,))
        own.ragged, own.chunked = ragged, chunked

    def prepare(
        self, call: MlaCall, batch: PagedBatch, plan: Pieces | Tiles
    ) -> tuple[Tensors, Options, Callable[[], None]]:
        """Determine which rows attend to latents and which to expanded keys, and how caches are split."""
        if isinstance(plan, Pieces):
            shape = _shape_of(call, decode=True, trees=False)
            split = plan.split(call, shape.programs)
            return (), (split.base, split.most), partial(_attend, shape, call, batch, split)
        parents = batch.parents if isinstance(batch, PagedTreeBatch) else None
        shape = _shape_of(call, decode=False, trees=parents is not None)
        expanded = None
        if parents is None and not plan.batch.kv_bounds:  # expansion needs exact lengths
            expanded = Expanded.of(call, batch, plan)
        rest = work = None
        if expanded is not None:
            rest = plan.rest(expanded.layer)
        if rest is None or rest.rows:
            of = None if expanded is None else expanded.layer
            work = plan.work(shape.tokens, shape.programs, call.layer.kv_cache.shape[1], of)
        tensors: Tensors = (
            parents,
            *(() if expanded is None else expanded.tables),
            *(() if rest is None else (rest.selection,)),
            *(() if work is None else (work.items, work.rows)),
        )
        options: Options = (
            len(tensors),
            *(() if expanded is None else expanded.options),
            *(() if rest is None else (rest.rows,)),
            *(() if work is None else (work.slots, work.base)),
        )

        def launch() -> None:
            if expanded is not None:
                expanded.attend()
            if work is not None:
                _attend(shape, call, batch, work, rest)

        return tensors, options, launch


def _attend(
    shape: _Shape, call: MlaCall, batch: PagedBatch, work: Work | CacheSplit, rest: Rest | None = None
) -> None:
    """Attend to latents.

    There are up to four launches: the product with w_k, the attention, the merge of its partial results, and
    the product with w_v.

    Args:
        shape: The kernel and its sizes.
        call: The call.
        batch: The call's batch.
        work: The programs, or how a decode's caches are split.
        rest: The rows of the sequences that are not expanded; None computes all rows.
    """
    layer, q_nope, q_rope, out, lse = call
    dtype, device = out.dtype, out.device
    count, heads = out.shape[:2]
    selection = None
    if rest is not None:
        count, selection = rest.rows, rest.selection
    plain, latents = q_nope, out
    if layer.w_k is not None:
        plain = scratch((count, heads * shape.parts, shape.latent), dtype, device)
        project(q_nope, layer.w_k, plain, selection)
    if layer.w_v is not None:
        latents = scratch((count, heads, shape.latent), dtype, device)
    decode = isinstance(work, CacheSplit)
    if isinstance(work, CacheSplit):
        items = rows = batch.kv_lens
        base, most = work.base, work.most
        tiles = len(batch.seqlens)
        slots = tiles * most if most > 1 else 0
        merged = tiles
    else:
        items, rows = work.items, work.rows
        base, most = work.base, 1
        tiles, merged, slots = items.shape[0], rows.shape[0], work.slots
    parents = batch.parents if isinstance(batch, PagedTreeBatch) else None
    lse_or = latents if lse is None else lse
    parts = weights = latents
    if slots:
        parts = scratch((slots, heads, shape.latent), torch.float32, device)
        weights = scratch((slots, heads), torch.float32, device)
    shape.launch(
        (tiles * shape.head_blocks, most, shape.value_blocks),
        (
            *(plain, q_rope, layer.kv_cache, latents, lse_or, parts, weights, items),
            *(batch.cu_seqlens, items if parents is None else parents, batch.page_table, batch.kv_lens),
        ),
        (
            *(layer.scale * LOG2E.value, *plain.stride()[:2], *q_rope.stride()[:2]),
            *(batch.page_table.stride(0), heads, base, most),
        ),
        (
            *(*shape.constants, decode, parents is not None, lse is not None, shape.stages),
            *(() if shape.launch is hopper.launch_attend else gaps(layer.kv_cache)),
        ),
        num_warps=shape.warps,
        num_stages=shape.stages,
        **launch_options(dtype),
    )
    if slots:
        block_p, block_c = (8, 512) if base <= 8 else (64, 128)
        block_c = min(padded(shape.latent), block_c)
        absorbed.launch_merge(
            (merged, heads, -(-shape.latent // block_c)),
            (parts, weights, latents, lse_or, rows, batch.kv_lens),
            (heads, base, most),
            (shape.latent, block_c, shape.block_n, block_p, decode, lse is not None),
            num_warps=4,
        )
    if layer.w_v is not None:
        project(latents, layer.w_v, out, selection, values=True)
