"""The operations `experts` and `routed_experts` of `switchrail.platforms` in Triton.

Calls can be captured: nothing waits for the device, and all sizes follow from shapes.
"""

from __future__ import annotations

import torch
import triton
from switchrail.errors import ArgumentError

from switchrail_kernels.experts.products import down_pairs, down_tiles, gate_up_pairs, gate_up_tiles, weigh
from switchrail_kernels.experts.route import add_up, choose, order
from switchrail_kernels.experts.tiles import AHEAD, ALONE, MOST_PAIRS, Tiles, tiles
from switchrail_kernels.launch import Launcher, launch_options, padded

_choose, _add_up, _order, _gate_up_tiles, _down_tiles, _weigh, _gate_up_pairs, _down_pairs = (
    Launcher(kernel, early=True)
    for kernel in (choose, add_up, order, gate_up_tiles, down_tiles, weigh, gate_up_pairs, down_pairs)
)

_LOGITS = 8192
"""Maximum logits that one program chooses from."""

_ADDED = 32
"""Maximum number of chunks for which each program of `order` adds up the counts of all chunks itself."""

_CHUNK, _LONG = 8, 32
"""Maximum rows per chunk: `_CHUNK`, or `_LONG` if there would be more than `_ADDED` chunks.

Chunks with fewer rows take less time.
"""


def experts(
    x: torch.Tensor,
    logits: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    *,
    top_k: int,
    normalize: bool,
    shared: int = 0,
    rows: torch.Tensor | None = None,
    sizes: Tiles | None = None,
) -> torch.Tensor:
    """Run the experts; see `switchrail.platforms.operations.Experts`.

    Args:
        x: [T, H].
        logits: [T, E].
        gate_up: [E, 2 I, H].
        down: [E, H, I].
        top_k: Experts per row, without the shared ones.
        normalize: Whether the weights of a row's experts are divided by their sum.
        shared: The number of shared experts: the last of the E experts, which every row uses.
        rows: [1] int32, on the device: rows from this index on are padding.
        sizes: Tiles for all products; None chooses by the number of rows, their dtype and the device.

    Raises:
        ArgumentError: Shapes or dtypes don't fit together.
    """
    _check(x, logits, gate_up, down, top_k, shared)
    return _run(x, logits, None, gate_up, down, top_k, shared, normalize, rows, sizes)


def routed_experts(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    *,
    rows: torch.Tensor | None = None,
) -> torch.Tensor:
    """Run the experts that were chosen; see `switchrail.platforms.operations.RoutedExperts`.

    Args:
        x: [T, H].
        ids: [T, K] integers, the experts of each row.
        weights: [T, K], their weights.
        gate_up: [E, 2 I, H].
        down: [E, H, I].
        rows: See `experts`.

    Raises:
        ArgumentError: Shapes or dtypes don't fit together.
    """
    _check_routed(x, ids, weights, gate_up, down)
    return _run(x, weights, ids, gate_up, down, ids.shape[1], 0, False, rows, None)


def _run(
    x: torch.Tensor,
    scores: torch.Tensor,
    ids: torch.Tensor | None,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    top_k: int,
    shared: int,
    normalize: bool,
    rows: torch.Tensor | None,
    sizes: Tiles | None,
) -> torch.Tensor:
    """Run the experts. `scores` are the logits or, if `ids` are given, the weights of these experts."""
    t, h = x.shape
    count, _, inner = down.shape
    out = torch.empty((t, h), dtype=x.dtype, device=x.device)
    if t == 0:
        return out
    own, each = count - shared, top_k + shared
    pairs = t * each
    limit = x if rows is None else rows
    alone = pairs <= MOST_PAIRS and sizes is None
    ep, kp = padded(own), padded(top_k)
    if alone:
        bm, bt, chunks, blocks = 1, 1, t, 0
        lengths = [pairs, 0, 0, 0, 0, 0, 0]
    else:
        sizes = sizes or tiles(t * top_k / own, x.dtype, x.device)
        chunk = _CHUNK if t <= _CHUNK else padded(triton.cdiv(t, _ADDED))
        chunk = _LONG if chunk > _CHUNK else chunk
        bm, bt = sizes.rows, min(chunk, max(_LOGITS // ep, 1))
        chunks = triton.cdiv(t, bt)
        blocks = min(t * top_k, t * top_k // bm + own) + shared * triton.cdiv(t, bm)
        lengths = [pairs, pairs, (chunks + 1) * own, chunks * 4 * own, pairs, 3 * blocks, 1]
        lengths = [-(-length // 4) * 4 for length in lengths]  # lets Triton compile for aligned addresses
    weights = torch.empty(pairs, dtype=torch.float32, device=x.device)
    work = torch.empty(sum(lengths), dtype=torch.int32, device=x.device)
    chosen, ranks, counts, places, order_of, table, used = torch.split(work, lengths)
    padding, single = rows is not None, chunks == 1 and not alone
    taken = scores if ids is None else ids
    _choose(
        (chunks, 1, 1),
        (scores, taken, limit, chosen, weights, ranks, counts, places, order_of, table, used),
        (scores.stride(0), taken.stride(0), t),
        (own, shared, top_k, ep, kp, bt, bm * single, ids is not None, normalize, padding, not alone, single),
        num_warps=min(max(bt * ep // 128, 1), 8 if bt <= _CHUNK else 16),
    )
    options = launch_options(x.dtype)
    values = torch.empty((pairs, inner), dtype=x.dtype, device=x.device)
    if alone:
        first, second = ALONE.gate_up, ALONE.down
        depth = min(padded(inner), second.depth)
        read = each * second.columns * depth // (32 * second.warps)
        ahead = depth >= inner and read <= AHEAD and x.dtype != torch.float32
        _gate_up_pairs(
            (pairs * triton.cdiv(inner, first.columns), 1, 1),
            (x, gate_up, chosen, limit, values),
            (x.stride(0),),
            (h, inner, each, first.columns, min(padded(h), first.depth), padding),
            num_warps=first.warps,
        )
        _down_pairs(
            (t * triton.cdiv(h, second.columns), 1, 1),
            (values, down, chosen, weights, limit, out),
            (),
            (h, inner, each, second.columns, depth, padding, ahead),
            num_warps=second.warps,
        )
        return out
    assert sizes is not None
    if not single:
        few = chunks <= _ADDED
        if not few:
            _add_up((triton.cdiv(own, 16), 1, 1), (counts,), (chunks,), (own, 64, 16), num_warps=4)
        _order(
            (chunks, 1, 1),
            (limit, chosen, ranks, counts, places, order_of, table, used),
            (t, chunks),
            (own, shared, top_k, ep, kp, bt, _ADDED if few else 0, bm, padding),
            num_warps=8,
        )
    first, second = sizes.gate_up, sizes.down
    _gate_up_tiles(
        (blocks * triton.cdiv(inner, first.columns), 1, 1),
        (x, gate_up, order_of, table, used, values),
        (x.stride(0),),
        (h, inner, each, bm, first.columns, first.depth),
        num_warps=first.warps,
        num_stages=first.stages,
        **options,
    )
    y = torch.empty((pairs, h), dtype=x.dtype, device=x.device)
    _down_tiles(
        (blocks * triton.cdiv(h, second.columns), 1, 1),
        (values, down, order_of, table, used, y),
        (),
        (h, inner, bm, second.columns, second.depth),
        num_warps=second.warps,
        num_stages=second.stages,
        **options,
    )
    bn = min(padded(h), 1024)
    _weigh((t, triton.cdiv(h, bn), 1), (y, weights, limit, out), (t,), (h, each, bn, padding), num_warps=4)
    return out


def _fit(x: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor) -> bool:
    """Whether activations and weights fit together."""
    count, _, inner = down.shape
    h = x.shape[1]
    return (
        gate_up.shape == (count, 2 * inner, h)
        and down.shape == (count, h, inner)
        and x.stride(1) == 1
        and gate_up.is_contiguous()
        and down.is_contiguous()
        and x.dtype == gate_up.dtype == down.dtype
    )


def _check_routed(
    x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor
) -> None:
    chosen = ids.shape[1]
    if not (
        _fit(x, gate_up, down)
        and ids.shape == weights.shape == (len(x), chosen)
        and 0 < chosen <= len(down)
        and ids.dtype in (torch.int32, torch.int64)
        and weights.is_floating_point()
        and ids.stride(1) == weights.stride(1) == 1
    ):
        raise ArgumentError(
            f"routed_experts can't run x {tuple(x.shape)} {x.dtype} with ids {tuple(ids.shape)} {ids.dtype}, "
            f"weights {tuple(weights.shape)} {weights.dtype}, gate_up {tuple(gate_up.shape)} {gate_up.dtype} "
            f"and down {tuple(down.shape)} {down.dtype}; expected x [T, H], ids [T, K] int32 or int64, "
            "weights [T, K], gate_up [E, 2 I, H] and down [E, H, I]; x, gate_up and down of one dtype; "
            "floating-point weights; K from 1 to E; gate_up, down and the last axes of the others contiguous",
            argument="x",
            found=tuple(x.shape),
        )


def _check(
    x: torch.Tensor, logits: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor, top_k: int, shared: int
) -> None:
    count = len(down)
    if not (
        _fit(x, gate_up, down)
        and logits.shape == (len(x), count)
        and 0 < top_k <= count - shared
        and logits.stride(1) == 1
    ):
        raise ArgumentError(
            f"experts can't run x {tuple(x.shape)} {x.dtype} with logits {tuple(logits.shape)}, gate_up "
            f"{tuple(gate_up.shape)} {gate_up.dtype}, down {tuple(down.shape)} {down.dtype}, top_k {top_k} "
            f"and {shared} shared experts; expected x [T, H], logits [T, E], gate_up [E, 2 I, H] and down "
            "[E, H, I]; x, gate_up and down of one dtype; gate_up and down contiguous, and the last axes of "
            "the others; top_k from 1 to E less the shared experts",
            argument="x",
            found=tuple(x.shape),
        )
