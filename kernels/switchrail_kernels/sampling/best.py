"""The likeliest token of each row of logits, in one pass over the row."""

# Triton infers the types of kernel arguments at the call.
# ruff: noqa: ANN001, ANN201
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

_MINUS_INFINITY = tl.constexpr(float("-inf"))


@triton.jit(do_not_specialize=["V"])
def best(p_logits, p_tokens, s_row, V, BV: tl.constexpr):
    """Write the first index of a row's largest logit; -1 if that logit is not finite or any logit is NaN."""
    i_r = tl.program_id(0)
    p_row = p_logits + i_r.to(tl.int64) * s_row
    b_top = tl.full((BV,), _MINUS_INFINITY, tl.float32)
    b_at = tl.full((BV,), 0, tl.int32)
    b_wrong = tl.zeros((BV,), tl.int32)
    for i_v in range(0, V, BV):
        o_v = i_v + tl.arange(0, BV)
        b_x = tl.load(p_row + o_v, mask=o_v < V, other=_MINUS_INFINITY).to(tl.float32)
        b_wrong |= b_x != b_x
        m_better = b_x > b_top
        b_at = tl.where(m_better, o_v, b_at)
        b_top = tl.where(m_better, b_x, b_top)
    top = tl.max(b_top, 0)
    token = tl.min(tl.where(b_top == top, b_at, V), 0)
    finite = (tl.sum(b_wrong, 0) == 0) & (top > _MINUS_INFINITY) & (top < float("inf"))
    tl.store(p_tokens + i_r, tl.where(finite, token, -1).to(tl.int64))
