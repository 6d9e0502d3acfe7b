"""A token from each row of logits, drawn among those that the filters keep, in two passes over the row.

Each filter keeps a beginning of the same order: likeliest tokens first, of equal ones the first. So whether a
token is kept follows from how many tokens are before it, from their mass, and from its own. A token is drawn
among all; where a filter drops it, so does it those behind, and another one is drawn among those before it,
until one is kept. Each time a random part of the mass goes, so few rounds are needed, 1.1 for a top_p of 0.9.
What is drawn so has the probabilities of the filtered distribution, and depends on nothing but the row.
"""

# Triton reads the types of a kernel's arguments at the call.
# ruff: noqa: ANN001, ANN201, ANN202
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

_LOG2E = tl.constexpr(1.4426950408889634)
_COLDEST = tl.constexpr(1e-30)  # a subnormal temperature would divide 0 by 0
_MINUS_INFINITY = tl.constexpr(float("-inf"))


@triton.jit
def _load(p_row, i_b, V, BV: tl.constexpr):
    """The columns of a block, and their logits; -inf behind the last."""
    o_v = i_b * BV + tl.arange(0, BV)
    return o_v, tl.load(p_row + o_v, mask=o_v < V, other=_MINUS_INFINITY).to(tl.float32)


@triton.jit
def _key(b_x, UNUSED: tl.constexpr):
    """Integers in the order of the logits, without the bits that their dtype leaves unused in float32."""
    b_key = tl.where(b_x == 0.0, 0.0, b_x).to(tl.int32, bitcast=True)  # of either sign
    return (b_key ^ ((b_key >> 31) & 0x7FFFFFFF)) >> UNUSED


@triton.jit
def _weight(b_x, top, scale, min_p):
    """Probabilities relative to the greatest; 0 where they are less than min_p."""
    b_w = tl.exp2((b_x - top) * scale)
    return tl.where(b_w >= min_p, b_w, 0.0)


@triton.jit
def _uniform(seed, i_round):
    """A number in [0, 1) with 53 bits, as SplitMix64 makes it (Steele et al., 2014)."""
    z = seed + (i_round + 1).to(tl.uint64) * 0x9E3779B97F4A7C15
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return ((z ^ (z >> 31)) >> 11).to(tl.float64) * (1.0 / (1 << 53))


@triton.jit
def _kth_key(p_row, V, blocks, top_key, k, BV: tl.constexpr, UNUSED: tl.constexpr):
    """A key that k tokens reach; where more do, that of the k-th token.

    Each pass tells which fourth of a range of keys it is in.
    """
    low = tl.full((), -(1 << 31) >> UNUSED, tl.int64)
    high = top_key.to(tl.int64) + 1
    reached = tl.full((), 1 << 31, tl.int64)
    while (high - low > 1) & (reached != k):
        step = tl.maximum((high - low) // 4, 1)
        first, second = (low + step).to(tl.int32), (low + 2 * step).to(tl.int32)
        third = (low + 3 * step).to(tl.int32)
        b_first = tl.zeros((BV,), tl.int32)
        b_second = tl.zeros((BV,), tl.int32)
        b_third = tl.zeros((BV,), tl.int32)
        for i_b in range(0, blocks):
            o_v, b_x = _load(p_row, i_b, V, BV)
            b_key = tl.where(o_v < V, _key(b_x, UNUSED), -(1 << 31))
            b_first += b_key >= first
            b_second += b_key >= second
            b_third += b_key >= third
        n_first, n_second, n_third = tl.sum(b_first, 0), tl.sum(b_second, 0), tl.sum(b_third, 0)
        if n_third >= k:
            low = third.to(tl.int64)
            reached = n_third.to(tl.int64)
        elif n_second >= k:
            low = second.to(tl.int64)
            high = tl.minimum(high, third.to(tl.int64))
            reached = n_second.to(tl.int64)
        elif n_first >= k:
            low = first.to(tl.int64)
            high = tl.minimum(high, second.to(tl.int64))
            reached = n_first.to(tl.int64)
        else:
            high = tl.minimum(high, first.to(tl.int64))
    return low.to(tl.int32)


@triton.jit(do_not_specialize=["V"])
def draw(p_logits, p_numbers, p_tokens, s_row, V, NB: tl.constexpr, BV: tl.constexpr, UNUSED: tl.constexpr):
    """A row: its temperature, top_k, top_p, min_p and seed are its numbers; -1 where it isn't finite."""
    i_r = tl.program_id(0)
    p_row = p_logits + i_r.to(tl.int64) * s_row
    p_number = p_numbers + i_r * 5
    temperature = tl.load(p_number).to(tl.float32)
    k = tl.load(p_number + 1).to(tl.int64)
    top_p = tl.load(p_number + 2)
    min_p = tl.load(p_number + 3).to(tl.float32)
    seed = tl.load(p_number + 4).to(tl.int64).to(tl.uint64, bitcast=True)
    scale = _LOG2E / tl.maximum(temperature, _COLDEST)
    o_b = tl.arange(0, NB)
    blocks = tl.cdiv(V, BV)

    b_top = tl.full((NB,), _MINUS_INFINITY, tl.float32)
    b_mass = tl.zeros((NB,), tl.float32)
    for i_b in range(0, blocks):
        o_v, b_x = _load(p_row, i_b, V, BV)
        top = tl.max(b_x, 0)
        base = tl.where(top == _MINUS_INFINITY, 0.0, top)
        b_top = tl.where(o_b == i_b, top, b_top)
        b_mass = tl.where(o_b == i_b, tl.sum(tl.exp2((b_x - base) * scale), 0), b_mass)
    top = tl.max(b_top, 0)
    token = tl.full((), -1, tl.int32)
    wrong = tl.sum((b_mass != b_mass).to(tl.int32), 0)  # NaN makes NaN
    if (wrong == 0) & (top > _MINUS_INFINITY) & (top < float("inf")):
        if temperature == 0.0:
            o_v, b_x = _load(p_row, tl.min(tl.where(b_top == top, o_b, NB), 0), V, BV)
            token = tl.min(tl.where(b_x == top, o_v, V), 0)
        else:
            b_mass = tl.where(b_top == _MINUS_INFINITY, 0.0, b_mass * tl.exp2((b_top - top) * scale))
            whole = tl.sum(b_mass.to(tl.float64), 0)  # of the k likeliest
            last_key = tl.full((), -(1 << 31), tl.int32)  # tokens before it can be drawn
            last = tl.full((), 0, tl.int32)
            few = (k < V) & (top_p < 1.0)
            if few:
                last_key = _kth_key(p_row, V, blocks, tl.max(_key(b_top, UNUSED), 0), k, BV, UNUSED)
                last = tl.full((), 0x7FFFFFFF, tl.int32)
            if few | (min_p > 0.0):
                above = tl.full((), 0, tl.int64)
                equal = tl.full((), 0, tl.int64)
                mass = tl.full((), 0.0, tl.float64)
                each = tl.full((), 0.0, tl.float64)
                for i_b in range(0, blocks):
                    o_v, b_x = _load(p_row, i_b, V, BV)
                    b_key = _key(b_x, UNUSED)
                    m_above = (b_key > last_key) & (o_v < V)
                    m_equal = (b_key == last_key) & (o_v < V)
                    b_w = _weight(b_x, top, scale, 0.0)
                    above += tl.sum(m_above.to(tl.int32), 0)
                    equal += tl.sum(m_equal.to(tl.int32), 0)
                    mass += tl.sum(tl.where(m_above, b_w, 0.0), 0).to(tl.float64)
                    each = tl.maximum(each, tl.max(tl.where(m_equal, b_w, 0.0), 0).to(tl.float64))
                    m_in = (m_above | (m_equal & few)) & (b_w >= min_p)
                    b_mass = tl.where(o_b == i_b, tl.sum(tl.where(m_in, b_w, 0.0), 0), b_mass)
                if few:
                    whole = mass + each * tl.minimum(k - above, equal).to(tl.float64)
            i_round = tl.full((), 0, tl.int64)
            while token < 0:
                b_each = tl.where(b_mass > 0.0, b_mass, 0.0).to(tl.float64)
                b_begin = tl.cumsum(b_each, 0) - b_each
                target = _uniform(seed, i_round) * tl.sum(b_each, 0)
                i_b = tl.max(tl.where((b_begin <= target) & (b_mass > 0.0), o_b, 0), 0)
                rest = target - tl.sum(tl.where(o_b == i_b, b_begin, 0.0), 0)
                o_v, b_x = _load(p_row, i_b, V, BV)
                b_key = _key(b_x, UNUSED)
                m_in = (b_key > last_key) | ((b_key == last_key) & (o_v < last))
                b_w = tl.where(m_in & (o_v < V), _weight(b_x, top, scale, min_p), 0.0)
                b_each = b_w.to(tl.float64)
                m_in = (b_w > 0.0) & (tl.cumsum(b_each, 0) - b_each <= rest)
                drawn = tl.max(tl.where(m_in, o_v, 0), 0)
                if (k >= V) & (top_p >= 1.0):
                    token = drawn
                else:
                    drawn_key = tl.sum(tl.where(o_v == drawn, b_key, 0), 0)
                    before = tl.full((), 0, tl.int64)
                    for i_b in range(0, blocks):
                        o_v, b_x = _load(p_row, i_b, V, BV)
                        b_key = _key(b_x, UNUSED)
                        m_in = ((b_key > drawn_key) | ((b_key == drawn_key) & (o_v < drawn))) & (o_v < V)
                        b_w = tl.where(m_in, _weight(b_x, top, scale, min_p), 0.0)
                        before += tl.sum(m_in.to(tl.int32), 0)
                        b_mass = tl.where(o_b == i_b, tl.sum(b_w, 0), b_mass)
                    mass = tl.sum(b_mass.to(tl.float64), 0)
                    if (before < k) & ((top_p >= 1.0) | (mass < top_p * whole)):
                        token = drawn
                    else:
                        last_key = drawn_key
                        last = drawn
                        i_round += 1
    tl.store(p_tokens + i_r, token.to(tl.int64))


__all__ = ["draw"]
