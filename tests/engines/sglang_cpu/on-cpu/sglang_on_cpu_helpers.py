"""Jitted functions in place of SGLang's aliases of Triton's, since the interpreter adapts `tl` only."""

import sglang.kernels.ops.attention.fla.op as op
import triton
import triton.language as tl


@triton.jit
def _exp(x):
    return tl.exp(x)


@triton.jit
def _exp2(x):
    return tl.math.exp2(x)


@triton.jit
def _log(x):
    return tl.log(x)


@triton.jit
def _log2(x):
    return tl.log2(x)


def adapt():
    """Replace the aliases before the modules that import them are imported."""
    op.exp, op.exp2, op.log, op.log2 = _exp, _exp2, _log, _log2
