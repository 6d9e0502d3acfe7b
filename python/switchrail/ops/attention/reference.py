"""Reference for causal softmax attention over a paged cache, one row at a time; for tests only."""

from __future__ import annotations

import torch

from switchrail.ops.attention.contract import CONTRACT, AttentionBackend, AttentionCall
from switchrail.ops.batch import PagedBatch, PagedTreeBatch
from switchrail.ops.oracle import seen_by


class ReferenceAttention(AttentionBackend):
    """softmax(scale q K^T) V (Vaswani et al., arXiv 1706.03762) in float64, over the visible positions."""

    def run(self, call: AttentionCall, batch: PagedBatch, plan: object) -> None:
        """Compute attention for T packed query rows of N sequences of any length."""
        CONTRACT.check("verify" if isinstance(batch, PagedTreeBatch) else "prefill", call, batch)
        layer, q, out, lse = call
        k_cache, v_cache, scale, window = layer.k_cache, layer.v_cache, layer.scale, layer.window
        soft_cap, sinks = layer.soft_cap, layer.sinks
        page = k_cache.shape[1]
        group = q.shape[1] // k_cache.shape[2]
        row = 0
        for n, (length, kv_length) in enumerate(zip(batch.seqlens, batch.kv_lens.tolist(), strict=True)):
            used = batch.page_table[n, : -(-kv_length // page)].long()
            keys = k_cache[used].flatten(0, 1)[:kv_length].double().repeat_interleave(group, dim=1)
            values = v_cache[used].flatten(0, 1)[:kv_length].double().repeat_interleave(group, dim=1)
            for i in range(length):
                seen = seen_by(batch, n, i, row, window)
                seen_keys, seen_values = keys[seen], values[seen]
                logits = torch.einsum("hd,shd->hs", scale * q[row].double(), seen_keys)
                if soft_cap is not None:
                    logits = soft_cap * torch.tanh(logits / soft_cap)
                if sinks is not None and len(seen_keys):
                    logits = torch.cat([logits, sinks.double()[:, None]], dim=1)
                weights = torch.softmax(logits, dim=-1)[:, : len(seen_keys)]
                out[row] = torch.einsum("hs,shd->hd", weights, seen_values).to(out.dtype)
                if lse is not None:
                    lse[row] = torch.logsumexp(logits, dim=-1)
                row += 1
