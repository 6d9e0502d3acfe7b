"""Parts that several contracts share: specifications of tensors and options, batch classes, and notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from switchrail.ops.batch import CheckpointBatch, DeferredBatch, RowStatesBatch, StateBatch
from switchrail.ops.contract import COMPUTE, FLOATS, INPUT, Allowance, OptionSpec, TensorSpec

RECURRENT_BATCHES: Mapping[str, type[StateBatch]] = {
    "checkpoints": CheckpointBatch,
    "deferred_commit": DeferredBatch,
    "row_states": RowStatesBatch,
}
"""The `batch_features` of ops with a recurrent state per head."""


def rows(
    *axes: str, about: str, dtypes: Sequence[str] = (INPUT,), time_innermost: bool = False
) -> TensorSpec:
    """The specification of a tensor with one row per token and a contiguous last axis; views are valid.

    With `time_innermost=True`, a backend with the feature `time_innermost` also accepts a tensor whose first
    axis is contiguous instead of its last axis.
    """
    also = (Allowance(feature="time_innermost", unit_stride=axes[:1]),) if time_innermost else ()
    return TensorSpec(axes=axes, dtypes=tuple(dtypes), unit_stride=axes[-1:], also=also, about=about)


def qkv_rows(value_heads: str) -> Mapping[str, TensorSpec]:
    """The specifications of `q`, `k` and `v` of an op with a [V, K] state per value head."""
    return {
        "q": rows("T", "H", "K", about="queries", dtypes=FLOATS, time_innermost=True),
        "k": rows("T", "H", "K", about="keys", time_innermost=True),
        "v": rows("T", value_heads, "V", about="values", time_innermost=True),
    }


def result(*axes: str) -> TensorSpec:
    """The specification of `out`."""
    return TensorSpec(
        axes=axes,
        dtypes=(INPUT,),
        memory=axes,
        mutated=True,
        also=(Allowance(feature="strided_out", free=len(axes) - 1),),
        about="the result",
    )


def states(
    *axes: str,
    memory: tuple[str, ...] | None = None,
    dtypes: tuple[str, ...] = (COMPUTE, "bfloat16", "float16"),
    free: int = 1,
    about: str = "pool of recurrent states",
) -> Mapping[str, TensorSpec]:
    """The specifications of `state` and `row_states`.

    Args:
        axes: The axes of `state`.
        memory: The order of these axes in memory; None for the order of `axes`.
        dtypes: The valid dtypes.
        free: The number of outermost axes in memory whose strides are free in a strided pool.
        about: The meaning of `state`.
    """
    order = memory or axes
    transposed = (*order[:-2], order[-1], order[-2])

    def pool(slots: str, about: str, feature: str | None) -> TensorSpec:
        return TensorSpec(
            axes=(slots, *axes[1:]),
            dtypes=dtypes,
            memory=(slots, *order[1:]),
            mutated=True,
            feature=feature,
            also=(
                Allowance(feature="strided_pool", free=free),
                Allowance(feature="transposed_state", memory=(slots, *transposed[1:])),
            ),
            about=about,
        )

    rows = "pool of the states after each row of a `RowStatesBatch`; None: they are in `state`"
    return {"state": pool("slots", about, None), "row_states": pool("row_slots", rows, "row_states")}


def cache(*axes: str, about: str) -> TensorSpec:
    """The specification of a paged cache."""
    strided = Allowance(feature="strided_pool", free=len(axes) - 1)
    return TensorSpec(axes=axes, dtypes=(INPUT,), memory=axes, also=(strided,), about=about)


def log_sum_exp(about: str) -> TensorSpec:
    """The specification of `lse`."""
    return TensorSpec(
        axes=("T", "H"), dtypes=(COMPUTE,), memory=("T", "H"), mutated=True, feature="lse", about=about
    )


def scale(of: str) -> OptionSpec:
    """The specification of `scale`, a factor of queries or logits."""
    return OptionSpec(types=(float,), finite_nonzero=True, about=f"factor of the {of}")


FINITE_SLOTS = "a slot that is read holds finite numbers; a slot that is not read may hold anything"

NO_OVERLAP = "out may not overlap any other tensor"

STATE_NOTES = (
    "a padding sequence gets zeros in its rows of out and writes no state",
    "the slots of a sequence without rows are neither read nor written, except in a `DeferredBatch`",
    NO_OVERLAP,
)

PAGE_NOTES = (
    "row i of sequence n has position kv_lens[n] - seqlens[n] + i and attends to all positions up to its own",
    "a cache position past a sequence's end, and a page that no sequence uses, may hold anything",
)

SMALL_DECAY = "g = -inf is a decay of exactly 0; a backend may treat any g below -80 as -inf"
