"""Tensor specifications and notes shared by several contracts."""

from __future__ import annotations

from collections.abc import Sequence

from switchrail.ops.contract import COMPUTE, INPUT, OptionSpec, TensorSpec


def rows(*axes: str, about: str, dtypes: Sequence[str] = (INPUT,)) -> TensorSpec:
    """A tensor, or a view of one, with one row per token and a contiguous last axis."""
    return TensorSpec(axes=axes, dtypes=tuple(dtypes), unit_stride=axes[-1:], about=about)


def result(*axes: str) -> TensorSpec:
    """`out`."""
    return TensorSpec(axes=axes, dtypes=(INPUT,), memory=axes, mutated=True, about="the result")


def states(*axes: str) -> TensorSpec:
    """`state`, a matrix per head."""
    return TensorSpec(
        axes=axes,
        dtypes=(COMPUTE, "bfloat16"),
        memory=axes,
        mutated=True,
        about="pool of recurrent states",
    )


def log_sum_exp(about: str) -> TensorSpec:
    """`lse`."""
    return TensorSpec(
        axes=("T", "H"), dtypes=(COMPUTE,), memory=("T", "H"), mutated=True, feature="lse", about=about
    )


def scale(of: str) -> OptionSpec:
    """`scale`, a factor of queries or logits."""
    return OptionSpec(types=(float,), finite_nonzero=True, about=f"factor of the {of}")


FINITE_SLOTS = "a slot that is read holds finite numbers; a slot that is not read may hold anything"

NO_OVERLAP = "out may not overlap any other tensor"

STATE_NOTES = (
    "a padding sequence gets zeros in its rows of out and writes no state",
    "a sequence of length zero keeps its state: no slot is read or written",
    NO_OVERLAP,
)

PAGE_NOTES = (
    "row i of sequence n has position kv_lens[n] - seqlens[n] + i and attends to all positions up to its own",
    "a cache position past a sequence's end, and a page that no sequence uses, may hold anything",
)

SMALL_DECAY = "g = -inf is a decay of exactly 0; a backend may treat any g below -80 as -inf"

__all__ = [
    "FINITE_SLOTS",
    "NO_OVERLAP",
    "PAGE_NOTES",
    "SMALL_DECAY",
    "STATE_NOTES",
    "log_sum_exp",
    "result",
    "rows",
    "scale",
    "states",
]
