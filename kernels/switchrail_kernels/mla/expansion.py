"""Attention for sequences whose keys and values are expanded from the latents."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from switchrail.ops.batch import PagedBatch
from switchrail.ops.mla.contract import MlaCall

from switchrail_kernels.alignment import gaps
from switchrail_kernels.constants import LOG2E
from switchrail_kernels.device import has_large_shared_memory
from switchrail_kernels.launch import launch_options, padded
from switchrail_kernels.mla.expanded import launch_attend, launch_expand
from switchrail_kernels.mla.plan import SPAN, Expansion, Layer, Tiles
from switchrail_kernels.replay import Options, Tensors, scratch

MOST_BYTES = 2**30
"""Maximum bytes of the keys and values of a round, unless a single span (`SPAN` keys) is larger."""

_SPANS = 2**15
"""Maximum capacity of a round, in full spans. With shorter spans there may be more; a grid allows 65,535."""


@dataclass(frozen=True, slots=True)
class Expanded:
    """The sequences of a call that are faster with expansion.

    Attributes:
        call: The call.
        batch: The call's batch.
        layer: The sizes that determine which sequences are expanded.
        expansion: The rounds of expansion.
    """

    call: MlaCall
    batch: PagedBatch
    layer: Layer
    expansion: Expansion

    @classmethod
    def of(cls, call: MlaCall, batch: PagedBatch, plan: Tiles) -> Expanded | None:
        """Plan the expansion for a call; None if no sequence gains from it or the layer lacks a weight."""
        w_k, w_v = call.layer.w_k, call.layer.w_v
        if w_k is None or w_v is None:
            return None
        heads, key_size, latent = w_k.shape
        value_size = w_v.shape[1]
        span = SPAN * heads * (key_size + value_size) * w_k.element_size()
        tile = _TILE if w_k.dtype != torch.float32 else _TILE_FLOAT32
        spans = min(max(MOST_BYTES // span, 1), _SPANS)
        layer = Layer(heads, key_size, call.q_rope.shape[2], latent, value_size, tile)
        expansion = plan.expansion(layer, spans * SPAN, call.layer.kv_cache.shape[1])
        return None if expansion is None else cls(call, batch, layer, expansion)

    @property
    def tables(self) -> Tensors:
        """The tables of all rounds, which are arguments of the launches."""
        return tuple(table for step in self.expansion.rounds for table in (step.spans, step.items))

    @property
    def options(self) -> Options:
        """The numbers that the launches take from the plan."""
        return self.expansion.keys, int(self.expansion.carried)

    def attend(self) -> None:
        """Run the attention. Each round has two launches: the expansion, and the attention to its keys."""
        kept, q_nope, q_rope, out, lse = self.call
        w_k, w_v = kept.w_k, kept.w_v
        assert w_k is not None
        assert w_v is not None
        rows, heads, key_size = q_nope.shape
        rotated, value_size = q_rope.shape[2], out.shape[2]
        page, latent = kept.kv_cache.shape[1], w_k.shape[2]
        dtype, device = out.dtype, out.device
        if dtype == torch.float32:
            tokens, block_n, warps, stages = _TILE_FLOAT32, 16, 8, 1
            block_w, block_k, expand_warps, expand_stages = 32, 16, 8, 1
        else:
            tokens, block_n, warps, stages = _TILE, 64, 8, 3 if has_large_shared_memory(device) else 2
            block_w, block_k, expand_warps, expand_stages = 128, 64, 8, 3
        block_e = padded(rotated, 16)
        capacity = self.expansion.keys
        keys = scratch((heads, capacity, key_size), dtype, device)
        values = scratch((heads, capacity, value_size), dtype, device)
        keys_rotated = scratch((capacity, rotated), dtype, device)
        carried = weights = out
        if self.expansion.carried:
            carried = scratch((rows, heads, value_size), torch.float32, device)
            weights = scratch((rows, heads), torch.float32, device)
        blocks = -(-key_size // block_w) + -(-value_size // block_w)
        table = self.batch.page_table
        for step in self.expansion.rounds:
            if step.spans.shape[0]:
                launch_expand(
                    (heads * blocks, step.spans.shape[0], 1),
                    (kept.kv_cache, w_k, w_v, keys, keys_rotated, values, step.spans, table),
                    (*w_k.stride()[:2], *w_v.stride()[:2], table.stride(0), capacity),
                    (
                        *(latent, rotated, block_e, key_size, value_size),
                        *(SPAN, block_w, min(block_k, padded(latent, 16)), page, expand_stages),
                        *gaps(kept.kv_cache),
                    ),
                    num_warps=expand_warps,
                    num_stages=expand_stages,
                    **launch_options(dtype),
                )
            launch_attend(
                (step.items.shape[0], heads, 1),
                (
                    *(q_nope, q_rope, keys, keys_rotated, values, out),
                    *(out if lse is None else lse, carried, weights, step.items),
                ),
                (abs(kept.scale) * LOG2E.value, *q_nope.stride()[:2], *q_rope.stride()[:2], capacity),
                (
                    *(key_size, padded(key_size, 16), rotated, block_e, value_size, padded(value_size, 16)),
                    *(tokens, block_n, kept.scale < 0, self.expansion.carried, lse is not None, stages),
                ),
                num_warps=warps,
                num_stages=stages,
                **launch_options(dtype),
            )


_TILE, _TILE_FLOAT32 = 128, 32
