"""Device function for the offsets of a state's elements within its slot."""

# Triton infers the types of kernel arguments at the call.
# ruff: noqa: ANN001, ANN201
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def within_slot(i_h, o_v, o_k, V: tl.constexpr, K: tl.constexpr, KV: tl.constexpr):
    """The offsets [BV, BK] of a head's rows `o_v` and columns `o_k`. If KV, columns are outer in memory."""
    o_state = (i_h * V + o_v)[:, None] * K + o_k[None, :]
    if KV:
        o_state = (i_h * V * K + o_v)[:, None] + (o_k * V)[None, :]
    return o_state
