"""Products with one matrix per head: from queries to latents, or from latents to values."""

# Triton infers the types of kernel arguments at the call.
# ruff: noqa: ANN001, ANN202
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from switchrail_kernels.launch import Launcher, launch_options, padded

SELECTED_ROWS = 32
"""Maximum rows per tile if only some rows are selected."""


@triton.jit(do_not_specialize=["T", "H"])
def _project(
    p_x, p_w, p_out, p_places,
    T, H,
    s_xt, s_xh, s_wh, s_wk, s_wn,
    K: tl.constexpr, N: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, BN: tl.constexpr,
    MOVES: tl.constexpr, PARTS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    i_h = tl.program_id(1)
    o_t = tl.arange(0, BT).to(tl.int64)
    if MOVES == 0:
        source = tl.program_id(2).to(tl.int64) * BT
        target = source
        rows = T - source
    else:
        p_places += 4 * tl.program_id(2)
        source = tl.load(p_places + (MOVES == 2)).to(tl.int64)
        target = tl.load(p_places + (MOVES == 1)).to(tl.int64)
        rows = tl.load(p_places + 2).to(tl.int64)
    o_n = tl.program_id(0) * BN + tl.arange(0, BN)
    o_k = tl.arange(0, BK)
    m_t = (o_t < rows)[:, None]
    m_n = (o_n < N)[None, :]
    p_x += ((source + o_t) * s_xt)[:, None] + (i_h.to(tl.int64) * s_xh + o_k)[None, :]
    p_w += i_h.to(tl.int64) * s_wh + o_k[:, None] * s_wk + o_n[None, :] * s_wn
    b_acc = tl.zeros((BT, BN), tl.float32)
    for i_k in tl.range(0, K, BK, num_stages=STAGES):
        m_k = o_k < K - i_k
        b_x = tl.load(p_x + i_k, mask=m_t & m_k[None, :], other=0.0)
        b_w = tl.load(p_w + i_k * s_wk, mask=m_k[:, None] & m_n, other=0.0)
        b_acc = tl.dot(b_x, b_w, acc=b_acc, input_precision="ieee")
    o_out = (((target + o_t) * H * PARTS + i_h) * N)[:, None] + o_n[None, :]
    b_out = b_acc.to(p_out.dtype.element_ty)
    tl.store(p_out + o_out, b_out, mask=m_t & m_n)
    if PARTS == 2:
        b_low = b_acc - b_out.to(tl.float32)
        tl.store(p_out + o_out + H * N, b_low.to(p_out.dtype.element_ty), mask=m_t & m_n)


_launch_project = Launcher(_project)


def project(
    x: torch.Tensor,
    w: torch.Tensor,
    out: torch.Tensor,
    selection: torch.Tensor | None = None,
    *,
    values: bool = False,
) -> None:
    """Multiply x by w, in one launch.

    Args:
        x: [rows, H, K], its last axis contiguous.
        w: [H, K, N]; for `values` [H, N, K].
        out: [rows, H, N], contiguous, the output. If it has 2 H heads, the second half receives the rounding
            errors of the products, which are rounded too.
        selection: [tiles, 4] int32, to select some rows, at most `SELECTED_ROWS` per tile. Columns: the
            tile's first row among all rows, its first row among the selected rows, its number of rows,
            unused. The selected rows are packed in `out` (with `values` in x). None means that x and `out`
            have the same rows.
        values: Whether to map latents to values instead of queries to latents.
    """
    rows, heads, inner = x.shape
    width = out.shape[2]
    moves, tiles = 0, 0
    if selection is not None:
        moves, tiles = 2 if values else 1, selection.shape[0]
        block_t, block_k, block_n, warps, stages = SELECTED_ROWS, 64, 128, 4, 3
    elif rows <= 64:
        block_t, block_k, block_n, warps, stages = 16 if rows <= 16 else 64, 64, 128, 4, 3
    else:
        block_t, block_k, block_n, warps, stages = 128, 64, 128, 8, 3
    if x.dtype == torch.float32:
        block_t, block_k, block_n, warps, stages = SELECTED_ROWS, 32, 32, 4, 1
    head, first, second = w.stride()
    _launch_project(
        (-(-width // block_n), heads, tiles or -(-rows // block_t)),
        (x, w, out, out if selection is None else selection),
        (rows, heads, *x.stride()[:2], head, *((second, first) if values else (first, second))),
        (
            *(inner, width, block_t, min(block_k, padded(inner, 16)), min(block_n, padded(width, 16))),
            *(moves, out.shape[1] // heads, stages),
        ),
        num_warps=warps,
        num_stages=stages,
        **launch_options(x.dtype),
    )
