"""The contract of `attention`, causal softmax attention over a paged cache."""

from __future__ import annotations

from switchrail.ops.batch import PagedBatch
from switchrail.ops.contract import FLOATS, INPUT, PAGES, Contract, OptionSpec, TensorSpec

_CACHE = ("pages", "page", "HKV", "D")

CONTRACT = Contract(
    op="attention",
    positional=("q", "k_cache", "v_cache"),
    tensors={
        "q": TensorSpec(axes=("T", "H", "D"), dtypes=FLOATS, unit_stride=("D",), about="queries"),
        "k_cache": TensorSpec(axes=_CACHE, dtypes=(INPUT,), memory=_CACHE, about="pool of keys"),
        "v_cache": TensorSpec(axes=_CACHE, dtypes=(INPUT,), memory=_CACHE, about="pool of values"),
        "out": TensorSpec(
            axes=("T", "H", "D"), dtypes=(INPUT,), memory=("T", "H", "D"), mutated=True, about="the result"
        ),
    },
    options={"scale": OptionSpec(types=(float,), finite_nonzero=True, about="factor of the logits")},
    batch=PAGES,
    batch_type=PagedBatch,
    multiples=(("H", "HKV"),),
    notes=(
        "row i of sequence n stands at position kv_lens[n] - seqlens[n] + i and sees every one up to its own",
        "a cache position past a sequence's end, and a page that no sequence uses, may hold anything",
        "kv_lens[n] is at least seqlens[n], or 0 for a sequence of padding, whose rows of out are zeros",
        "query head i uses key-value head i // (H / HKV)",
        "out may not overlap any other tensor",
    ),
)

__all__ = ["CONTRACT"]
