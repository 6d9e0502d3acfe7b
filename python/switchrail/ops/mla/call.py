"""A call of `mla`, multi-head latent attention over a paged cache, and what backends do with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from switchrail.ops.backend import Backend
from switchrail.ops.batch import PagedBatch
from switchrail.ops.call import Layer


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


__all__ = ["MlaBackend", "MlaCall", "MlaLayer"]
