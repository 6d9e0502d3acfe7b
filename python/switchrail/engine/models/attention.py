"""Gated softmax layers, in which one operation normalises and rotates q and k and writes the KV cache."""

from __future__ import annotations

from typing import Any, Final

import torch

from switchrail.engine.memory import KINDS
from switchrail.engine.models.contract import KEYWORD, Connected
from switchrail.engine.models.operations import Binding
from switchrail.engine.models.products import qkv
from switchrail.engine.models.softmax import attention
from switchrail.platforms.operations import Products, QKNormRope, SigmoidGate
from switchrail.platforms.serving import Forward
from switchrail.pools import MultiHeadPool


def _call(
    function: Forward,
    module: Any,
    hidden_states: torch.Tensor,
    position_embeddings: tuple[torch.Tensor, torch.Tensor],
    attention_mask: torch.Tensor | None,
    past_key_values: None = None,
    *,
    multiply: Forward,
    apply_gate: Forward,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    q, k, v = (torch.unflatten(part, -1, (-1, module.head_dim)) for part in qkv(module, hidden_states))
    q, gate = q[:, :, ::2], q[:, :, 1::2]  # each head's query is followed by its gate
    cache = _cache(kwargs[KEYWORD])
    q, rotated = function(
        q, k, module.q_norm.weight, module.k_norm.weight, *position_embeddings,
        eps=module.q_norm.eps, weight_offset=1.0, v=v, cache=cache,
    )  # fmt: skip
    q, k, v = (x.transpose(1, 2) for x in (q, k if cache else rotated, v))
    out, _ = attention(module, q, k, v, attention_mask, module.scaling, written=cache is not None, **kwargs)
    return multiply(apply_gate(out, gate).flatten(2), module.o_proj.weight), None


def _cache(connected: Connected) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:
    """The caches, and the rows to write; None if the operation can't write the caches.

    The operation can't write them if the pool's class overrides `write` or a cache is not contiguous. It
    can't while torch.compile traces either, because compiled code accesses pools only through operators.
    """
    if torch.compiler.is_compiling():
        return None
    connection, layer = connected.connection, connected.layers["attention"]
    caches = layer.k_cache, layer.v_cache
    own = type(connection.pools.kv[KINDS["attention"]]).write is not MultiHeadPool.write
    if own or not all(cache.is_contiguous() for cache in caches):
        return None
    return (*caches, connection.running.step.kv_rows)


def _suits(module: Any) -> bool:
    return bool(module.q_norm.eps == module.k_norm.eps) and module.o_proj.bias is None


GATED_ATTENTION: Final = Binding(
    QKNormRope,
    _call,
    _suits,
    passes=("q_proj", "k_proj", "v_proj", "q_norm", "k_norm", "o_proj"),
    also={"multiply": Products, "apply_gate": SigmoidGate},
)
"""Attention with a gate for its output, and norms that add 1 to their weights."""
