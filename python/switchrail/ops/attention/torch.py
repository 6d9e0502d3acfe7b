"""Causal softmax attention over a paged cache in plain torch."""

from __future__ import annotations

import torch
from torch.backends.cuda import SDPAParams, can_use_flash_attention
from torch.nn.functional import scaled_dot_product_attention

from switchrail.ops.attention.contract import CONTRACT, AttentionBackend, AttentionCall
from switchrail.ops.batch import Bounds, PagedBatch, Phase
from switchrail.ops.pages import PagedPlan, check_paged_plan, take
from switchrail.ops.softmax import attend


class TorchAttention(AttentionBackend):
    """torch's attention over keys and values gathered from their pages.

    Single-row sequences of similar length are batched, with the query heads of one key-value head as the rows
    of one matrix. Each sequence with several rows has its own calls. torch's attention supports neither a
    soft cap nor sinks nor the log-sum-exp. If a call has one of these, products and softmax are computed
    separately in float32 (float64 for float64 inputs). On CUDA, torch's settings determine the precision of
    float32 products; the default is IEEE.
    """

    def plan(self, phase: Phase, batch: PagedBatch, bounds: Bounds | None = None) -> PagedPlan:
        """Checks the batch. The first `run` splits it into calls of torch's attention."""
        return PagedPlan(CONTRACT, phase, batch)

    def run(self, call: AttentionCall, batch: PagedBatch, plan: PagedPlan) -> None:
        """Compute attention for T packed query rows of N sequences of any length."""
        CONTRACT.check_call(call, batch, CONTRACT.feature_names)
        layer = call.layer
        check_paged_plan(plan, batch)
        if layer.soft_cap is None and layer.sinks is None and call.lse is None:
            _attend_fused(plan, call)
        else:
            _attend_plainly(plan, call)
        plan.clear_padding(call.out, call.lse)


def _attend_fused(plan: PagedPlan, call: AttentionCall) -> None:
    layer, q, out, _ = call
    k_cache, v_cache, scale, window = layer.k_cache, layer.v_cache, layer.scale, layer.window
    page, kv_heads, head_size = k_cache.shape[1:]
    if q.device.type == "cuda" and any(
        number % 16 for number in (q.data_ptr(), q.stride(0) * q.itemsize, q.stride(1) * q.itemsize)
    ):
        # torch 2.11 passes an unaligned view to a fused kernel that loads 16 bytes at a time and returns NaN
        q = q.contiguous()
    parts = plan.parts(page, window=window, longer=_has_flash(q, k_cache[0], v_cache[0]))
    for single in parts.single:
        count = len(single.rows)
        shape = (count, -1, kv_heads, head_size)
        attended = scaled_dot_product_attention(
            q.index_select(0, single.rows).view(count, kv_heads, -1, head_size),
            take(k_cache, single.tokens).view(shape).transpose(1, 2),
            take(v_cache, single.tokens).view(shape).transpose(1, 2),
            attn_mask=single.mask,
            scale=scale,
        )
        out.index_copy_(0, single.rows, attended.reshape(count, -1, head_size))
    for many in parts.many:
        k = take(k_cache, many.tokens).transpose(0, 1)[None]
        v = take(v_cache, many.tokens).transpose(0, 1)[None]
        for block in many.blocks:
            rows, seen, mask = block.stop - block.start, block.seen - block.first, block.mask
            if mask is None and rows < seen:
                # torch.nn.attention.bias imports torch._dynamo, which takes seconds
                from torch.nn.attention.bias import causal_lower_right

                mask = causal_lower_right(rows, seen)
            attended = scaled_dot_product_attention(
                q[block.start : block.stop].transpose(0, 1)[None],
                k[:, :, block.first : block.seen],
                v[:, :, block.first : block.seen],
                attn_mask=mask,
                is_causal=mask is None,
                scale=scale,
                enable_gqa=True,
            )
            out[block.start : block.stop] = attended[0].transpose(0, 1)


def _has_flash(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> bool:
    """Whether torch's flash attention, which needs no mask for more keys than rows, supports these tensors.

    With a mask, torch has no fast kernel for grouped-query heads: on an H200 it takes 4 times as long.
    """
    if q.device.type != "cuda":
        return False
    query, key, value = (tensor.transpose(0, 1)[None] for tensor in (q, keys, values))
    return can_use_flash_attention(SDPAParams(query, key, value, None, 0.0, False, True))


def _attend_plainly(plan: PagedPlan, call: AttentionCall) -> None:
    layer, q, out, lse = call
    k_cache, v_cache, scale, window = layer.k_cache, layer.v_cache, layer.scale, layer.window
    soft_cap, sinks = layer.soft_cap, layer.sinks
    page, kv_heads, head_size = k_cache.shape[1:]
    parts = plan.parts(page, window=window, causal=False)
    compute = torch.promote_types(q.dtype, torch.float32)
    queries = q.to(compute)
    by_group = None if sinks is None else sinks.to(compute).view(kv_heads, -1)
    for single in parts.single:
        count = len(single.rows)
        shape = (count, -1, kv_heads, head_size)
        result, total = attend(
            queries.index_select(0, single.rows).view(count, kv_heads, -1, head_size),
            take(k_cache, single.tokens).view(shape).transpose(1, 2).to(compute),
            take(v_cache, single.tokens).view(shape).transpose(1, 2).to(compute),
            scale=scale,
            mask=single.mask,
            soft_cap=soft_cap,
            sinks=by_group,
        )
        out.index_copy_(0, single.rows, result.view(count, -1, head_size).to(out.dtype))
        if lse is not None:
            lse.index_copy_(0, single.rows, total.view(count, -1))
    for many in parts.many:
        k = take(k_cache, many.tokens).transpose(0, 1)[:, None].to(compute)
        v = take(v_cache, many.tokens).transpose(0, 1)[:, None].to(compute)
        for block in many.blocks:
            rows = queries[block.start : block.stop].view(block.stop - block.start, kv_heads, -1, head_size)
            result, total = attend(
                rows.permute(1, 2, 0, 3),
                k[:, :, block.first : block.seen],
                v[:, :, block.first : block.seen],
                scale=scale,
                mask=block.mask,
                soft_cap=soft_cap,
                sinks=None if by_group is None else by_group[:, :, None],
            )
            out[block.start : block.stop] = result.permute(2, 0, 1, 3).flatten(1, 2)
            if lse is not None:
                lse[block.start : block.stop] = total.permute(2, 0, 1).flatten(1, 2)
