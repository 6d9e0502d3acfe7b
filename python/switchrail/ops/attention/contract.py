"""The contract of `attention`, causal softmax attention over a paged cache."""

from __future__ import annotations

from switchrail.ops.attention.call import AttentionCall, AttentionLayer
from switchrail.ops.batch import PagedBatch, PagedTreeBatch
from switchrail.ops.contract import COMPUTE, FLOATS, INPUT, PAGES, Contract, OptionSpec, TensorSpec

_CACHE = ("pages", "page", "HKV", "D")

CONTRACT = Contract(
    op="attention",
    call=AttentionCall,
    layer=AttentionLayer,
    tensors={
        "q": TensorSpec(axes=("T", "H", "D"), dtypes=FLOATS, unit_stride=("D",), about="queries"),
        "k_cache": TensorSpec(axes=_CACHE, dtypes=(INPUT,), memory=_CACHE, about="pool of keys"),
        "v_cache": TensorSpec(axes=_CACHE, dtypes=(INPUT,), memory=_CACHE, about="pool of values"),
        "sinks": TensorSpec(
            axes=("H",),
            dtypes=(INPUT, COMPUTE),
            memory=("H",),
            feature="sinks",
            about="a logit that takes part in each row's sum and has no value",
        ),
        "out": TensorSpec(
            axes=("T", "H", "D"), dtypes=(INPUT,), memory=("T", "H", "D"), mutated=True, about="the result"
        ),
        "lse": TensorSpec(
            axes=("T", "H"),
            dtypes=(COMPUTE,),
            memory=("T", "H"),
            mutated=True,
            feature="lse",
            about="natural log of each row's sum of exponentials, a sink included",
        ),
    },
    options={
        "scale": OptionSpec(types=(float,), finite_nonzero=True, about="factor of the logits"),
        "window": OptionSpec(
            types=(int, type(None)),
            sign=1,
            feature="window",
            about="how many positions a row sees at most, its own included",
        ),
        "soft_cap": OptionSpec(
            types=(float, type(None)),
            finite_nonzero=True,
            sign=1,
            feature="soft_cap",
            about="c, where each scaled logit x becomes c tanh(x / c), before sinks and masks",
        ),
    },
    batch=PAGES,
    batch_type=PagedBatch,
    batch_features={"trees": PagedTreeBatch},
    multiples=(("H", "HKV"),),
    notes=(
        "row i of sequence n stands at position kv_lens[n] - seqlens[n] + i and sees every one up to its own",
        "a cache position past a sequence's end, and a page that no sequence uses, may hold anything",
        "kv_lens[n] is at least seqlens[n], or 0 for a sequence of padding, whose rows of out are zeros",
        "with a window w, position i sees j only where i - j < w",
        "a row of padding has a log-sum-exp of -inf",
        "query head i uses key-value head i // (H / HKV)",
        "out may not overlap any other tensor",
    ),
)

__all__ = ["CONTRACT"]
