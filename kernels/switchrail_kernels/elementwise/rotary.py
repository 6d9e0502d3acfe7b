"""The operation `rotary` of `switchrail.platforms` in Triton."""

# Triton infers the types of kernel arguments at the call.
# ruff: noqa: ANN001, ANN202
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from switchrail_kernels.dependent import wait
from switchrail_kernels.launch import Launcher, padded


@triton.jit
def _angles(
    p_position, p_frequency, p_cos, p_sin, tokens, s_position, scaling,
    F: tl.constexpr, BT: tl.constexpr, BF: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    o_t = tl.program_id(0) * BT + tl.arange(0, BT)
    o_f = tl.arange(0, BF)
    mask = (o_t < tokens)[:, None] & (o_f < F)[None, :]
    wait(EARLY)
    b_position = tl.load(p_position + o_t.to(tl.int64) * s_position, mask=o_t < tokens, other=0)
    b_frequency = tl.load(p_frequency + o_f, mask=o_f < F, other=0.0).to(tl.float32)
    b_angle = b_position.to(tl.float32)[:, None] * b_frequency[None, :]
    b_cos = (tl.cos(b_angle) * scaling).to(p_cos.dtype.element_ty)
    b_sin = (tl.sin(b_angle) * scaling).to(p_sin.dtype.element_ty)
    o_out = o_t.to(tl.int64)[:, None] * (2 * F) + o_f[None, :]
    tl.store(p_cos + o_out, b_cos, mask=mask)
    tl.store(p_cos + o_out + F, b_cos, mask=mask)
    tl.store(p_sin + o_out, b_sin, mask=mask)
    tl.store(p_sin + o_out + F, b_sin, mask=mask)


_launch = Launcher(_angles, early=True)


def rotary(
    position_ids: torch.Tensor, inv_freq: torch.Tensor, *, scaling: float, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines of each position; see `switchrail.platforms.operations.Rotary`.

    Args:
        position_ids: [1, T].
        inv_freq: [D / 2].
        scaling: A factor on the results.
        dtype: The dtype of the results.

    Returns:
        [1, T, D] each.
    """
    tokens, frequencies = position_ids.shape[-1], inv_freq.shape[0]
    shape = (1, tokens, 2 * frequencies)
    cos = torch.empty(shape, dtype=dtype, device=position_ids.device)
    sin = torch.empty(shape, dtype=dtype, device=position_ids.device)
    if tokens:
        columns = padded(frequencies)
        each = max(256 // columns, 1)
        _launch(
            (triton.cdiv(tokens, each), 1, 1),
            (position_ids, inv_freq, cos, sin),
            (tokens, position_ids.stride(-1), float(scaling)),
            (frequencies, each, columns),
            num_warps=4,
        )
    return cos, sin
