"""Specs and notes that the contracts of several ops have."""

from __future__ import annotations

from collections.abc import Sequence

from switchrail.ops.contract import COMPUTE, INPUT, OptionSpec, TensorSpec


def rows(*axes: str, about: str, dtypes: Sequence[str] = (INPUT,)) -> TensorSpec:
    """A tensor with a row a token, or a view of one, whose last axis is contiguous."""
    return TensorSpec(axes=axes, dtypes=tuple(dtypes), unit_stride=axes[-1:], about=about)


def result(*axes: str) -> TensorSpec:
    """`out`."""
    return TensorSpec(axes=axes, dtypes=(INPUT,), memory=axes, mutated=True, about="the result")


def states(*axes: str) -> TensorSpec:
    """`state`, a matrix a head."""
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
    "a sequence of padding writes zeros into its rows of out and no state",
    "a sequence of length zero keeps its state: no slot is read or written",
    NO_OVERLAP,
)

PAGE_NOTES = (
    "row i of sequence n stands at position kv_lens[n] - seqlens[n] + i and sees every one up to its own",
    "a cache position past a sequence's end, and a page that no sequence uses, may hold anything",
)

SMALL_DECAY = "g = -inf is a decay of exactly 0; a backend may take any g below -80 as -inf"

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
