"""The contract of `mla`, causal multi-head latent attention over a paged cache (arXiv 2405.04434)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from switchrail.ops.backend import Backend
from switchrail.ops.batch import PagedBatch, PagedTreeBatch
from switchrail.ops.call import Layer
from switchrail.ops.contract import FLOATS, INPUT, PAGES, Contract, TensorSpec
from switchrail.ops.specs import NO_OVERLAP, PAGE_NOTES, log_sum_exp, result, rows, scale


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class MlaLayer(Layer):
    """A layer's half of a call; see `MlaBackend`."""

    kv_cache: torch.Tensor
    w_k: torch.Tensor | None
    w_v: torch.Tensor | None
    scale: float


class MlaCall(NamedTuple):
    """What a call of a layer brings; see `MlaBackend`."""

    layer: MlaLayer
    q_nope: torch.Tensor
    q_rope: torch.Tensor
    out: torch.Tensor
    lse: torch.Tensor | None = None


class MlaBackend(Backend[MlaCall, PagedBatch]):
    """Causal multi-head latent attention (DeepSeek-V2, arXiv 2405.04434) over a paged cache of latents.

    The cache holds for each token its latent c, [R], and the rotated part r of its key, [E]. With the key of
    head h being [W_k^h c, r] and its value W_v^h c, and the query [q_nope, q_rope], the rest is softmax
    attention. Absorbed, as decoding does it: q_nope . W_k c = (W_k^T q_nope) . c, and W_v leaves the sum.

    Shapes: q_nope [T, H, D]; q_rope [T, H, E]; kv_cache [pages, page, L], L = R + E, latent first; w_k
    [H, D, R] or None, where q_nope comes absorbed, so that D is R; w_v [H, V, R] or None, where out stays a
    latent, so that V is R; out [T, H, V]; all of one dtype. q_nope, q_rope, w_k and w_v may be strided views
    with their last axis contiguous; out is contiguous.

    Features: `lse`, [T, H] float32, to be filled with the natural log of each row's sum; `trees`, with which
    the batch of a verification is a `PagedTreeBatch`.
    """

    op = "mla"


_CACHE = ("pages", "page", "L")

CONTRACT = Contract(
    op="mla",
    call=MlaCall,
    layer=MlaLayer,
    tensors={
        "q_nope": rows("T", "H", "D", about="queries, the part without position", dtypes=FLOATS),
        "q_rope": rows("T", "H", "E", about="queries, the rotated part"),
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
        "out": result("T", "H", "V"),
        "lse": log_sum_exp("natural log of each row's sum of exponentials"),
    },
    options={"scale": scale("logits")},
    batch=PAGES,
    batch_type=PagedBatch,
    batch_features={"trees": PagedTreeBatch},
    sums=(("L", "R", "E"),),
    notes=(
        *PAGE_NOTES,
        "kv_lens[n] is at least seqlens[n], or 0 for a sequence of padding, whose rows of out are zeros and "
        "whose log-sum-exps are -inf",
        NO_OVERLAP,
    ),
)

__all__ = ["CONTRACT", "MlaBackend", "MlaCall", "MlaLayer"]
