"""The contract of `mla`, causal multi-head latent attention over a paged cache (arXiv 2405.04434)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from switchrail.ops.backend import Backend
from switchrail.ops.batch import PagedBatch, PagedTreeBatch
from switchrail.ops.call import Layer
from switchrail.ops.contract import FLOATS, INPUT, Contract, TensorSpec
from switchrail.ops.specs import NO_OVERLAP, PAGE_NOTES, cache, log_sum_exp, result, rows, scale


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class MlaLayer(Layer):
    """The constant arguments of a layer; see `MlaBackend`."""

    kv_cache: torch.Tensor
    w_k: torch.Tensor | None
    w_v: torch.Tensor | None
    scale: float


class MlaCall(NamedTuple):
    """The arguments of one call; see `MlaBackend`."""

    layer: MlaLayer
    q_nope: torch.Tensor
    q_rope: torch.Tensor
    out: torch.Tensor
    lse: torch.Tensor | None = None


class MlaBackend(Backend[MlaCall, PagedBatch]):
    """Causal multi-head latent attention (DeepSeek-V2, arXiv 2405.04434) over a paged cache of latents.

    For each token the cache holds its latent c, [R], and the rotated part r of its key, [E]. Head h has the
    key [W_k^h c, r], the value W_v^h c and the query [q_nope, q_rope]; the rest is softmax attention. In
    absorbed form, as used in decode, q_nope . W_k c = (W_k^T q_nope) . c, and W_v is applied after the sum.

    Shapes: q_nope [T, H, D]; q_rope [T, H, E]; kv_cache [pages, page, L], L = R + E, latent first; w_k [H, D,
    R], or None if q_nope is already absorbed, and then D is R; w_v [H, V, R], or None if out stays a latent,
    and then V is R; out [T, H, V]. All have one dtype. q_nope, q_rope, w_k and w_v may be strided views if
    their last axis is contiguous; out is contiguous.

    Some optional features (a call that uses one reaches only backends that declare it):

    - `lse`: [T, H] float32, an output: the natural log of each row's sum of exponentials.
    - `trees`: in verify, the batch is a `PagedTreeBatch`.
    """

    op = "mla"


def _weight(size: str, same_if_none: tuple[str, str], about: str) -> TensorSpec:
    """The specification of an optional map from latents to vectors of some size, for each head."""
    return TensorSpec(
        axes=("H", size, "R"),
        dtypes=(INPUT,),
        unit_stride=("R",),
        optional=True,
        same_if_none=same_if_none,
        about=about,
    )


_CACHE = ("pages", "page", "L")

CONTRACT = Contract(
    op="mla",
    call=MlaCall,
    layer=MlaLayer,
    tensors={
        "q_nope": rows("T", "H", "D", about="queries, the part without rotary position", dtypes=FLOATS),
        "q_rope": rows("T", "H", "E", about="queries, the rotated part"),
        "w_k": _weight("D", ("D", "R"), "maps a latent to a key; None: q_nope is already multiplied by w_k"),
        "w_v": _weight("V", ("R", "V"), "maps a latent to a value; None: out stays a latent"),
        "kv_cache": cache(*_CACHE, about="pool of latents, each followed by the rotated part of the key"),
        "out": result("T", "H", "V"),
        "lse": log_sum_exp("natural log of each row's sum of exponentials"),
    },
    options={"scale": scale("logits")},
    batch_features={"trees": PagedTreeBatch},
    sums=(("L", "R", "E"),),
    notes=(
        *PAGE_NOTES,
        "kv_lens[n] is at least seqlens[n], or 0 for a padding sequence, whose rows of out are zeros with "
        "log-sum-exps of -inf",
        NO_OVERLAP,
    ),
)
