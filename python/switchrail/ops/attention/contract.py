"""The contract of `attention`, causal softmax attention over a paged cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from switchrail.ops.backend import Backend
from switchrail.ops.batch import PagedBatch, PagedTreeBatch
from switchrail.ops.call import Layer
from switchrail.ops.contract import COMPUTE, FLOATS, INPUT, Contract, OptionSpec, TensorSpec
from switchrail.ops.specs import NO_OVERLAP, PAGE_NOTES, cache, log_sum_exp, result, rows, scale


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class AttentionLayer(Layer):
    """The constant arguments of a layer; see `AttentionBackend`."""

    k_cache: torch.Tensor
    v_cache: torch.Tensor
    scale: float
    window: int | None = None
    soft_cap: float | None = None
    sinks: torch.Tensor | None = None


class AttentionCall(NamedTuple):
    """The arguments of one call; see `AttentionBackend`."""

    layer: AttentionLayer
    q: torch.Tensor
    out: torch.Tensor
    lse: torch.Tensor | None = None


class AttentionBackend(Backend[AttentionCall, PagedBatch]):
    """Causal softmax attention (Vaswani et al., arXiv 1706.03762), multi-head or grouped-query, paged.

    With x_ij = scale q_i . k_j, row i of the output is sum_j exp(x_ij) v_j / sum_j exp(x_ij).

    Shapes: q and out [T, H, D]; k_cache and v_cache [pages, page, HKV, D], H a multiple of HKV. All have one
    dtype. q may be a strided view if its last axis is contiguous; out is contiguous.

    Some optional features (a call that uses one reaches only backends that declare it):

    - `window`: position i attends to j only if i - j < window (Beltagy et al., arXiv 2004.05150).
    - `soft_cap`: x is replaced by soft_cap tanh(x / soft_cap) (Gemma 2, arXiv 2408.00118).
    - `sinks`: [H], float32 or q's dtype; the exponential of a head's sink is added to the denominator of each
      of the head's rows (gpt-oss, arXiv 2508.10925).
    - `lse`: [T, H] float32, an output: the natural log of each row's denominator.
    - `trees`: in verify, the batch is a `PagedTreeBatch`.
    """

    op = "attention"


_CACHE = ("pages", "page", "HKV", "D")

CONTRACT = Contract(
    op="attention",
    call=AttentionCall,
    layer=AttentionLayer,
    tensors={
        "q": rows("T", "H", "D", about="queries", dtypes=FLOATS),
        "k_cache": cache(*_CACHE, about="pool of keys"),
        "v_cache": cache(*_CACHE, about="pool of values"),
        "sinks": TensorSpec(
            axes=("H",),
            dtypes=(INPUT, COMPUTE),
            memory=("H",),
            feature="sinks",
            about="one more logit for each row of the head, without a value",
        ),
        "out": result("T", "H", "D"),
        "lse": log_sum_exp("natural log of each row's sum of exponentials, a sink included"),
    },
    options={
        "scale": scale("logits"),
        "window": OptionSpec(
            types=(int, type(None)),
            sign=1,
            feature="window",
            about="maximum number of positions a row attends to, its own included",
        ),
        "soft_cap": OptionSpec(
            types=(float, type(None)),
            finite_nonzero=True,
            sign=1,
            feature="soft_cap",
            about="c; each scaled logit x becomes c tanh(x / c), before sinks and masks",
        ),
    },
    batch_features={"trees": PagedTreeBatch},
    multiples=(("H", "HKV"),),
    notes=(
        *PAGE_NOTES,
        "kv_lens[n] is at least seqlens[n], or 0 for a padding sequence, whose rows of out are zeros",
        "with a window w, position i attends to j only if i - j < w",
        "a row of padding has a log-sum-exp of -inf",
        "query head i uses key-value head i // (H / HKV)",
        NO_OVERLAP,
    ),
)
