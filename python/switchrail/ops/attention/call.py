"""A call of `attention`, causal softmax attention over a paged cache, and what backends do with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from switchrail.ops.backend import Backend
from switchrail.ops.batch import PagedBatch
from switchrail.ops.call import Layer


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class AttentionLayer(Layer):
    """A layer's half of a call; see `AttentionBackend`."""

    k_cache: torch.Tensor
    v_cache: torch.Tensor
    scale: float
    window: int | None = None
    soft_cap: float | None = None
    sinks: torch.Tensor | None = None


class AttentionCall(NamedTuple):
    """What a call of a layer brings; see `AttentionBackend`."""

    layer: AttentionLayer
    q: torch.Tensor
    out: torch.Tensor
    lse: torch.Tensor | None = None


class AttentionBackend(Backend[AttentionCall, PagedBatch]):
    """Causal softmax attention (Vaswani et al., arXiv 1706.03762), multi-head or grouped-query, paged.

    With x_ij = scale q_i . k_j, for each row i: out = sum over j of exp(x_ij) v_j / sum over j of exp(x_ij).

    Shapes: q and out [T, H, D]; k_cache and v_cache [pages, page, HKV, D], H a multiple of HKV; all of one
    dtype (float32, float16 or bfloat16). q may be a strided view with its last axis contiguous; out is
    contiguous.

    Features, each of which only a backend that declares it is ever given, and only where it is used:

    - `window`: position i sees j only where i - j < window (Beltagy et al., arXiv 2004.05150).
    - `soft_cap`: each x becomes soft_cap tanh(x / soft_cap) (Gemma 2, arXiv 2408.00118).
    - `sinks`: [H], float32 or q's dtype; exp of it is added to each row's sum (gpt-oss, arXiv 2508.10925).
    - `lse`: [T, H] float32, to be filled with the natural log of each row's sum.
    - `trees`: the batch of a verification is a `PagedTreeBatch`.
    """

    op = "attention"


__all__ = ["AttentionBackend", "AttentionCall", "AttentionLayer"]
