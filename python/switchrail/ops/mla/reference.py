"""Reference for multi-head latent attention over a paged cache, one row at a time; for tests only."""

from __future__ import annotations

import torch

from switchrail.ops.batch import PagedBatch, PagedTreeBatch
from switchrail.ops.mla.contract import CONTRACT, MlaBackend, MlaCall
from switchrail.ops.oracle import seen_by


class ReferenceMla(MlaBackend):
    """Section 2.1 of DeepSeek-V2, arXiv 2405.04434, in float64, with expanded keys and values.

    Nothing is absorbed. If w_k or w_v is None, all heads share the latent as their key or value.
    """

    def run(self, call: MlaCall, batch: PagedBatch, plan: object) -> None:
        """Compute attention for T packed query rows of N sequences of any length."""
        CONTRACT.check("verify" if isinstance(batch, PagedTreeBatch) else "prefill", call, batch)
        layer, q_nope, q_rope, out, lse = call
        kv_cache, w_k, w_v, scale = layer.kv_cache, layer.w_k, layer.w_v, layer.scale
        page = kv_cache.shape[1]
        heads, rope_size = q_rope.shape[1:]
        row = 0
        for n, (length, kv_length) in enumerate(zip(batch.seqlens, batch.kv_lens.tolist(), strict=True)):
            used = batch.page_table[n, : -(-kv_length // page)].long()
            cached = kv_cache[used].flatten(0, 1)[:kv_length].double()
            latents, rotated = cached[:, :-rope_size], cached[:, -rope_size:]
            shared = latents[:, None].expand(-1, heads, -1)
            plain_keys = shared if w_k is None else torch.einsum("hdr,sr->shd", w_k.double(), latents)
            keys = torch.cat([plain_keys, rotated[:, None].expand(-1, heads, -1)], dim=-1)
            values = shared if w_v is None else torch.einsum("hvr,sr->shv", w_v.double(), latents)
            for i in range(length):
                seen = seen_by(batch, n, i, row)
                query = torch.cat([q_nope[row], q_rope[row]], dim=-1).double()
                logits = torch.einsum("hd,shd->hs", scale * query, keys[seen])
                out[row] = torch.einsum("hs,shd->hd", torch.softmax(logits, dim=-1), values[seen])
                if lse is not None:
                    lse[row] = torch.logsumexp(logits, dim=-1)
                row += 1
