"""The contract of `mla`, causal multi-head latent attention over a paged cache (arXiv 2405.04434)."""

from __future__ import annotations

from switchrail.ops.batch import PagedBatch, PagedTreeBatch
from switchrail.ops.contract import COMPUTE, FLOATS, INPUT, PAGES, Contract, OptionSpec, TensorSpec
from switchrail.ops.mla.call import MlaCall, MlaLayer

_CACHE = ("pages", "page", "L")

CONTRACT = Contract(
    op="mla",
    call=MlaCall,
    layer=MlaLayer,
    tensors={
        "q_nope": TensorSpec(
            axes=("T", "H", "D"),
            dtypes=FLOATS,
            unit_stride=("D",),
            about="queries, the part without position",
        ),
        "q_rope": TensorSpec(
            axes=("T", "H", "E"), dtypes=(INPUT,), unit_stride=("E",), about="queries, the rotated part"
        ),
        "w_k": TensorSpec(
            axes=("H", "D", "R"),
            dtypes=(INPUT,),
            unit_stride=("R",),
            optional=True,
            same_if_none=("D", "R"),
            about="from a latent to a key; None: q_nope comes multiplied by it",
        ),
        "w_v": TensorSpec(
            axes=("H", "V", "R"),
            dtypes=(INPUT,),
            unit_stride=("R",),
            optional=True,
            same_if_none=("R", "V"),
            about="from a latent to a value; None: out stays a latent",
        ),
        "kv_cache": TensorSpec(
            axes=_CACHE,
            dtypes=(INPUT,),
            memory=_CACHE,
            about="pool of latents, each with a key's rotated part",
        ),
        "out": TensorSpec(
            axes=("T", "H", "V"), dtypes=(INPUT,), memory=("T", "H", "V"), mutated=True, about="the result"
        ),
        "lse": TensorSpec(
            axes=("T", "H"),
            dtypes=(COMPUTE,),
            memory=("T", "H"),
            mutated=True,
            feature="lse",
            about="natural log of each row's sum of exponentials",
        ),
    },
    options={"scale": OptionSpec(types=(float,), finite_nonzero=True, about="factor of the logits")},
    batch=PAGES,
    batch_type=PagedBatch,
    batch_features={"trees": PagedTreeBatch},
    sums=(("L", "R", "E"),),
    notes=(
        "row i of sequence n stands at position kv_lens[n] - seqlens[n] + i and sees every one up to its own",
        "a cache position past a sequence's end, and a page that no sequence uses, may hold anything",
        "kv_lens[n] is at least seqlens[n], or 0 for a sequence of padding, whose rows of out are zeros and "
        "whose log-sum-exps are -inf",
        "out may not overlap any other tensor",
    ),
)

__all__ = ["CONTRACT"]
