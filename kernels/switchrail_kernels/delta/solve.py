"""The triangular solve within chunks of 32 tokens."""

# Triton infers the types of kernel arguments at the call.
# ruff: noqa: ANN001, ANN201
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

CHUNK = tl.constexpr(32)


@triton.jit
def halves(x):
    """Split x [tokens] into the first halves of the chunks and the second halves, [chunks, 16] each."""
    return tl.split(tl.permute(tl.reshape(x, (x.shape[0] // CHUNK, 2, 16)), (0, 2, 1)))


@triton.jit
def solve_dot(a, b, FULL: tl.constexpr):
    """A product for the solve: in float32 if FULL, else in float16, which has 11 significant bits."""
    if FULL:
        return tl.dot(a, b, input_precision="ieee")
    return tl.dot(a.to(tl.float16), b.to(tl.float16))


@triton.jit
def invert_16(b_d, FULL: tl.constexpr):
    """(I + D)^-1 for a batch of strictly lower triangular D [n, 16, 16].

    Inverts the diagonal blocks of 2 rows, then those of 4, 8 and 16 rows. The inverse of a block
    [[P, 0], [R, Q]] has -Q^-1 R P^-1 in the place of R.
    """
    o_i = tl.arange(0, 16)[:, None]
    o_j = tl.arange(0, 16)[None, :]
    b_x = tl.where((o_i == o_j)[None], 1.0, 0.0)
    b_x -= tl.where((o_i // 2 == o_j // 2)[None], b_d, 0.0)
    for i_level in tl.static_range(1, 4):
        m_level = (o_i // (2 << i_level) == o_j // (2 << i_level)) & (
            o_i // (1 << i_level) != o_j // (1 << i_level)
        )
        b_r = solve_dot(b_x, tl.where(m_level[None], b_d, 0.0), FULL)
        b_x -= solve_dot(b_r, b_x, FULL)
    return b_x


@triton.jit
def store_chunks(p, b_16, b_32, HV: tl.constexpr):
    """Store one head's lower triangular [32, 32] matrices of some chunks, one per chunk.

    In memory, each chunk has HV such matrices, one per value head.

    Args:
        p: The address of the first chunk's matrix.
        b_16: [2 * chunks, 16, 16], the two diagonal blocks of each matrix.
        b_32: [chunks, 16, 16], the block of each matrix below its diagonal blocks.
        HV: The number of value heads.
    """
    dtype = p.dtype.element_ty
    o_16 = tl.arange(0, 16)
    o_2 = tl.arange(0, b_32.shape[0])[:, None, None]
    o_4 = tl.arange(0, b_16.shape[0])[:, None, None]
    p_16 = p + (o_16[:, None] * CHUNK + o_16[None, :])[None]
    p_32 = p_16 + o_2 * (HV * CHUNK * CHUNK)
    tl.store(p_16 + (o_4 // 2 * (HV * CHUNK * CHUNK) + o_4 % 2 * (16 * CHUNK + 16)), b_16.to(dtype))
    tl.store(p_32 + 16 * CHUNK, b_32.to(dtype))
    tl.store(p_32 + 16, tl.zeros(b_32.shape, dtype))


@triton.jit
def store_inverses(p, b_d16, b_r32, b_beta, HV: tl.constexpr, FULL: tl.constexpr):
    """Store T = (I + A)^-1 diag(beta) for some chunks of one head.

    A is given in blocks, as the matrices of `store_chunks` are: the diagonal blocks in `b_d16`, the blocks
    below the diagonal blocks in `b_r32`. `b_beta` is [tokens].
    """
    b_x = invert_16(b_d16, FULL)
    b_p, b_q = tl.split(tl.permute(tl.reshape(b_x, (b_r32.shape[0], 2, 16, 16)), (0, 2, 3, 1)))
    b_y = -solve_dot(solve_dot(b_q, b_r32, FULL), b_p, FULL)
    b_beta0, _ = halves(b_beta)
    b_x *= tl.reshape(b_beta, (b_d16.shape[0], 16))[:, None, :]
    store_chunks(p, b_x, b_y * b_beta0[:, None, :], HV)
