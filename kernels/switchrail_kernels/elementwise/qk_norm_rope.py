"""The operation `qk_norm_rope` of `switchrail.platforms` in Triton."""

# Triton infers the types of kernel arguments at the call.
# ruff: noqa: ANN001, ANN202
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from switchrail_kernels.dependent import wait
from switchrail_kernels.elementwise.rows import block
from switchrail_kernels.launch import Launcher


@triton.jit
def _rounded(b_x, p_out):
    return b_x.to(p_out.dtype.element_ty).to(tl.float32)


@triton.jit
def _rotate_head(
    p_x, p_weight, p_cos, p_sin, p_out, p_rows, tokens, s_x, s_out, eps, offset,
    D: tl.constexpr, R: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr, CACHED: tl.constexpr,
):  # fmt: skip
    """Normalise and rotate one head of `BT` tokens, rounded as in the model definition."""
    o_t = tl.program_id(0) * BT + tl.arange(0, BT)
    o_d = tl.arange(0, BD)
    o_pair = tl.where(o_d < R // 2, o_d + R // 2, o_d - R // 2)
    m_t = (o_t < tokens)[:, None]
    mask = m_t & (o_d < D)[None, :]
    m_rotated = m_t & (o_d < R)[None, :]
    p_row = p_x + o_t.to(tl.int64)[:, None] * s_x
    b_x = tl.load(p_row + o_d[None, :], mask=mask, other=0.0).to(tl.float32)
    b_pair = tl.load(p_row + o_pair[None, :], mask=m_rotated, other=0.0).to(tl.float32)
    b_weight = tl.load(p_weight + o_d, mask=o_d < D, other=0.0).to(tl.float32) + offset
    b_pair_weight = tl.load(p_weight + o_pair, mask=o_d < R, other=0.0).to(tl.float32) + offset
    o_angle = o_t.to(tl.int64)[:, None] * R + o_d[None, :]
    b_cos = tl.load(p_cos + o_angle, mask=m_rotated, other=1.0).to(tl.float32)
    b_sin = tl.load(p_sin + o_angle, mask=m_rotated, other=0.0).to(tl.float32)
    b_factor = tl.rsqrt(tl.sum(b_x * b_x, 1) / D + eps)[:, None]
    b_x = _rounded(b_x * b_factor * b_weight[None, :], p_out)
    b_pair = _rounded(b_pair * b_factor * b_pair_weight[None, :], p_out)
    b_pair = tl.where((o_d < R // 2)[None, :], -b_pair, b_pair)
    b_out = _rounded(b_x * b_cos, p_out) + _rounded(b_pair * b_sin, p_out)
    o_row = tl.load(p_rows + o_t, mask=o_t < tokens, other=0) if CACHED else o_t.to(tl.int64)
    tl.store(p_out + o_row[:, None] * s_out + o_d[None, :], b_out.to(p_out.dtype.element_ty), mask=mask)


@triton.jit
def _copy_head(p_x, p_out, p_rows, tokens, s_x, s_out, D: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr):
    o_t = tl.program_id(0) * BT + tl.arange(0, BT)
    o_d = tl.arange(0, BD)
    mask = (o_t < tokens)[:, None] & (o_d < D)[None, :]
    b_x = tl.load(p_x + o_t.to(tl.int64)[:, None] * s_x + o_d[None, :], mask=mask, other=0.0)
    o_row = tl.load(p_rows + o_t, mask=o_t < tokens, other=0)
    tl.store(p_out + o_row[:, None] * s_out + o_d[None, :], b_x, mask=mask)


@triton.jit
def _rotate(
    p_q, p_k, p_v, p_q_weight, p_k_weight, p_cos, p_sin, p_q_out, p_k_out, p_v_out, p_rows,
    tokens, s_q_token, s_q_head, s_k_token, s_k_head, s_v_token, s_v_head, eps, offset,
    H: tl.constexpr, HKV: tl.constexpr, D: tl.constexpr, R: tl.constexpr,
    BT: tl.constexpr, BD: tl.constexpr, CACHED: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    i_h = tl.program_id(1)
    wait(EARLY)
    if i_h < H:
        _rotate_head(
            p_q + i_h.to(tl.int64) * s_q_head, p_q_weight, p_cos, p_sin, p_q_out + i_h * D, p_rows,
            tokens, s_q_token, H * D, eps, offset, D, R, BT, BD, False,
        )  # fmt: skip
    elif i_h < H + HKV:
        i_k = i_h - H
        _rotate_head(
            p_k + i_k.to(tl.int64) * s_k_head, p_k_weight, p_cos, p_sin, p_k_out + i_k * D, p_rows,
            tokens, s_k_token, HKV * D, eps, offset, D, R, BT, BD, CACHED,
        )  # fmt: skip
    elif CACHED:
        i_v = i_h - H - HKV
        _copy_head(
            p_v + i_v.to(tl.int64) * s_v_head, p_v_out + i_v * D, p_rows,
            tokens, s_v_token, HKV * D, D, BT, BD,
        )  # fmt: skip


_launch = Launcher(_rotate, early=True)


def qk_norm_rope(
    q: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *,
    eps: float,
    weight_offset: float,
    v: torch.Tensor | None = None,
    cache: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Normalise and rotate heads; see `switchrail.platforms.operations.QKNormRope`.

    Args:
        q: [1, T, H, D].
        k: [1, T, HKV, D].
        q_weight: [D].
        k_weight: [D].
        cos: [1, T, R].
        sin: [1, T, R].
        eps: Added to the means of squares.
        weight_offset: Added to the weights.
        v: [1, T, HKV, D]; required with a cache.
        cache: The caches of keys and of values, [pages, page, HKV, D] each, and the index of each token in
            these caches, [T], counted in tokens.

    Returns:
        Queries and keys, contiguous. With `cache`, the key cache is returned in place of the keys.
    """
    (tokens, heads, size), kv_heads = q.shape[1:], k.shape[2]
    q_out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if cache is None or v is None:
        k_out = torch.empty(k.shape, dtype=k.dtype, device=k.device)
        v, v_out, index, copied = k, k_out, q, 0  # placeholders that the kernel does not read
    else:
        (k_out, v_out, index), copied = cache, kv_heads
    if tokens:
        each, columns, warps = block(tokens, size)
        _launch(
            (triton.cdiv(tokens, each), heads + kv_heads + copied, 1),
            (q, k, v, q_weight, k_weight, cos.contiguous(), sin.contiguous(), q_out, k_out, v_out, index),
            (tokens, *q.stride()[1:3], *k.stride()[1:3], *v.stride()[1:3], float(eps), float(weight_offset)),
            (heads, kv_heads, size, cos.shape[-1], each, columns, copied > 0),
            num_warps=warps,
        )
    return q_out, k_out
