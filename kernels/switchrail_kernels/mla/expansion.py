"""Rows of sequences whose keys and values are made from the latents."""

from __future__ import annotations

import torch
from switchrail.ops.batch import PagedBatch

from switchrail_kernels.launch import launch_options, padded
from switchrail_kernels.mla.expanded import launch_attend, launch_expand
from switchrail_kernels.mla.plan import SPAN, Tiles

LOG2E = 1.4426950408889634

ROOM = 2**30
"""Bytes of keys and values that are made at once at most, but for one span of them."""


def attend_expanded(
    q_nope: torch.Tensor,
    q_rope: torch.Tensor,
    kv_cache: torch.Tensor,
    w_k: torch.Tensor,
    w_v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor | None,
    batch: PagedBatch,
    plan: Tiles,
    scale: float,
) -> bool:
    """Attends the rows of all sequences that have many, in two launches for each round.

    Args:
        q_nope: [T, H, D].
        q_rope: [T, H, E].
        kv_cache: [pages, page, R + E].
        w_k: [H, D, R].
        w_v: [H, V, R].
        out: [T, H, V]; written to.
        lse: [T, H]; written to.
        batch: The batch.
        plan: Its plan.
        scale: Factor of the logits.

    Returns:
        Whether there is such a sequence.
    """
    rows, heads, key_size = q_nope.shape
    rotated = q_rope.shape[2]
    value_size = out.shape[2]
    page, latent = kv_cache.shape[1], kv_cache.shape[2] - rotated
    if q_nope.dtype == torch.float32:
        tokens, block_n, warps, stages = 32, 32, 4, 1
        block_w, block_k, expand_warps, expand_stages = 32, 16, 8, 1
    else:
        tokens, block_n, warps, stages = 128, 64, 8, 3
        block_w, block_k, expand_warps, expand_stages = 128, 64, 8, 3
    span_bytes = SPAN * heads * (key_size + value_size) * q_nope.element_size()
    expansion = plan.expansion(tokens, max(ROOM // span_bytes, 1) * SPAN, page)
    if expansion is None:
        return False
    block_e = padded(rotated, 16)
    places = expansion.keys
    keys = q_nope.new_empty((heads, places, key_size))
    values = q_nope.new_empty((heads, places, value_size))
    keys_rotated = q_nope.new_empty((places, rotated))
    carried = weights = out
    if expansion.carried:
        carried = torch.empty(out.shape, dtype=torch.float32, device=out.device)
        weights = carried.new_empty((rows, heads))
    blocks = -(-key_size // block_w) + -(-value_size // block_w)
    for step in expansion.rounds:
        if step.spans.shape[0]:
            launch_expand(
                (heads * blocks, step.spans.shape[0], 1),
                (kv_cache, w_k, w_v, keys, keys_rotated, values, step.spans, batch.page_table),
                (*w_k.stride()[:2], *w_v.stride()[:2], batch.page_table.stride(0), places),
                (
                    *(latent, rotated, block_e, key_size, value_size),
                    *(SPAN, block_w, min(block_k, padded(latent, 16)), page, expand_stages),
                ),
                num_warps=expand_warps,
                num_stages=expand_stages,
                **launch_options(out.dtype),
            )
        launch_attend(
            (step.items.shape[0], heads, 1),
            (
                *(q_nope, q_rope, keys, keys_rotated, values, out, out if lse is None else lse),
                *(carried, weights, step.items),
            ),
            (abs(scale) * LOG2E, *q_nope.stride()[:2], *q_rope.stride()[:2], places),
            (
                *(key_size, padded(key_size, 16), rotated, block_e, value_size, padded(value_size, 16)),
                *(tokens, block_n, scale < 0, expansion.carried, lse is not None, stages),
            ),
            num_warps=warps,
            num_stages=stages,
            **launch_options(out.dtype),
        )
    return True


__all__ = ["ROOM", "attend_expanded"]
