"""Decodes in pure torch operations, without host values, which `RecordedGraph` can capture."""

from __future__ import annotations

from typing import Any

import torch
from switchrail.ops import AttentionBackend, GatedDeltaBackend, ShortConvBackend


class Capturable:
    """Base of the backends: a plan that depends on the bounds only. Records the batches that refreshed it."""

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.refreshed: list[tuple[int, ...]] = []

    def plan(self, phase: str, batch: Any, bounds: Any = None) -> object:
        assert phase == "decode"
        return bounds

    def refresh(self, plan: Any, batch: Any) -> None:
        assert len(batch.seqlens) == plan.sequences
        self.refreshed.append(getattr(batch, "kv_seqlens", batch.seqlens))


class CapturableAttention(Capturable, AttentionBackend):
    def run(self, call: Any, batch: Any, plan: Any) -> None:
        layer = call.layer
        keys, values = (
            cache[batch.page_table.long()].flatten(1, 2).float() for cache in (layer.k_cache, layer.v_cache)
        )
        n, heads, size = call.q.shape
        q = call.q.float().view(n, keys.shape[2], -1, size)
        scores = torch.einsum("nhgd,nthd->nhgt", q, keys) * layer.scale
        beyond = torch.arange(keys.shape[1], device=q.device) >= batch.kv_lens.unsqueeze(1)
        weights = scores.masked_fill(beyond[:, None, None], float("-inf")).softmax(-1).nan_to_num()
        values = values.masked_fill(beyond[:, :, None, None], 0)  # the values in a forgotten state are poison
        call.out.copy_(torch.einsum("nhgt,nthd->nhgd", weights, values).reshape(n, heads, size))


class CapturableDelta(Capturable, GatedDeltaBackend):
    def run(self, call: Any, batch: Any, plan: Any) -> None:
        layer = call.layer
        live = batch.read_slots >= 0
        slots = batch.read_slots.clamp(min=0)
        state = layer.state[slots].masked_fill(~live[:, None, None, None], 0).float()
        repeat = call.v.shape[1] // call.q.shape[1]
        q, k = (self.normal(x.float()).repeat_interleave(repeat, 1) for x in (call.q, call.k))
        state = state * call.g.float().exp()[..., None, None]
        wanted = (call.v.float() - torch.einsum("nhvk,nhk->nhv", state, k)) * call.beta.float()[..., None]
        state = state + torch.einsum("nhv,nhk->nhvk", wanted, k)
        out = torch.einsum("nhvk,nhk->nhv", state, q) * layer.scale
        call.out.copy_(out.masked_fill(~live[:, None, None], 0))
        kept = layer.state[slots]  # padding rewrites slot 0 with its old value
        layer.state.index_copy_(0, slots, torch.where(live[:, None, None, None], state, kept))

    @staticmethod
    def normal(x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


class CapturableConv(Capturable, ShortConvBackend):
    def run(self, call: Any, batch: Any, plan: Any) -> None:
        layer = call.layer
        live = batch.read_slots >= 0
        slots = batch.read_slots.clamp(min=0)
        window = torch.cat([layer.state[slots], call.x.unsqueeze(-1)], -1)
        out = (window * layer.weight).sum(-1)
        assert layer.bias is None
        assert layer.activation == "silu"
        call.out.copy_(torch.nn.functional.silu(out).masked_fill(~live[:, None], 0))
        kept = layer.state[slots]
        layer.state.index_copy_(0, slots, torch.where(live[:, None, None], window[..., 1:], kept))


CAPTURABLE = {"attention": CapturableAttention, "gated_delta": CapturableDelta, "short_conv": CapturableConv}
