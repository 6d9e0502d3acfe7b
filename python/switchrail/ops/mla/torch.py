"""Multi-head latent attention over a paged cache in plain torch."""

from __future__ import annotations

import torch

from switchrail.ops.batch import Bounds, PagedBatch, Phase
from switchrail.ops.mla.contract import CONTRACT, MlaBackend, MlaCall
from switchrail.ops.mla.prefix import ChunkedPrefix, Piece
from switchrail.ops.pages import ManyRows, PagedPlan, check_paged_plan, take
from switchrail.ops.ragged import ragged_attention
from switchrail.ops.softmax import attend, merge

KEYS = 512
"""Positions per product for a sequence with several rows. Bounds the memory for logits, keys and values."""


class MlaPlan(PagedPlan):
    """A step's plan.

    Attributes:
        prefix: The pieces that `plan_chunked_prefix` made; None if it made none or was not called.
    """

    prefix: ChunkedPrefix | None = None


class TorchMla(MlaBackend):
    """Absorbed attention for single-row sequences, expanded attention in pieces for all others.

    Computes in float32 (float64 for float64 inputs).

    Single-row sequences of similar length are batched and attend to the latents, as one key that all heads
    share. For a sequence with several rows, keys and values are expanded for `KEYS` positions at a time, and
    the results are merged by their log-sum-exps. If `plan_chunked_prefix` made pieces and the layer has both
    weights, all sequences are expanded together in these pieces, also those with a single row. On CUDA,
    torch's settings determine the precision of float32 products; the default is IEEE.
    """

    def plan(self, phase: Phase, batch: PagedBatch, bounds: Bounds | None = None) -> MlaPlan:
        """Check the batch. The first `run` splits it into calls."""
        return MlaPlan(CONTRACT, phase, batch)

    def plan_chunked_prefix(self, plan: MlaPlan, batch: PagedBatch, ragged: bool, chunked: bool) -> None:
        """Split a prefill into its new tokens and chunks of the prefixes; see `switchrail.ops.steps`."""
        check_paged_plan(plan, batch, MlaPlan)
        plan.prefix = ChunkedPrefix.of(batch, ragged=ragged, chunked=chunked)

    def run(self, call: MlaCall, batch: PagedBatch, plan: MlaPlan) -> None:
        """Compute attention for T packed query rows of N sequences of any length."""
        CONTRACT.check_call(call, batch, CONTRACT.feature_names)
        layer, q_nope, q_rope, out, lse = call
        kv_cache, w_k, w_v, scale = layer.kv_cache, layer.w_k, layer.w_v, layer.scale
        check_paged_plan(plan, batch, MlaPlan)
        compute = torch.promote_types(q_nope.dtype, torch.float32)
        if plan.prefix is not None and plan.prefix.serves(layer):
            plan.prefix.run(call, _attend_ragged, compute)
            plan.clear_padding(out, lse)
            return
        parts = plan.parts(kv_cache.shape[1], causal=False)
        latent_size = kv_cache.shape[2] - q_rope.shape[2]
        plain, rotated = q_nope.to(compute), q_rope.to(compute)
        key_weights = None if w_k is None else w_k.to(compute)
        value_weights = None if w_v is None else w_v.to(compute)
        for single in parts.single:
            latents = take(kv_cache, single.tokens).view(len(single.rows), -1, kv_cache.shape[2])
            latents = latents.to(compute)
            query = plain.index_select(0, single.rows)
            if key_weights is not None:
                query = torch.bmm(query.transpose(0, 1), key_weights).transpose(0, 1)
            query = torch.cat([query, rotated.index_select(0, single.rows)], dim=-1)
            mask = None if single.mask is None else single.mask[:, 0]
            values = latents[..., :latent_size]
            result, total = attend(query, latents, values, scale=scale, mask=mask)
            if value_weights is not None:
                result = torch.bmm(result.transpose(0, 1), value_weights.mT).transpose(0, 1)
            out.index_copy_(0, single.rows, result.to(out.dtype))
            if lse is not None:
                lse.index_copy_(0, single.rows, total)
        queries = torch.cat([plain, rotated], dim=-1).transpose(0, 1)
        for many in parts.many:
            rows = slice(many.start, many.stop)
            latents = take(kv_cache, many.tokens)
            result, total = _attend_in_pieces(
                many, queries[:, rows], latents, latent_size, key_weights, value_weights, scale
            )
            out[rows] = result.transpose(0, 1)
            if lse is not None:
                lse[rows] = total.T
        plan.clear_padding(out, lse)


def _attend_ragged(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, piece: Piece, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    return ragged_attention(q, k, v, piece.ragged, scale=scale, causal=piece.causal)


def _attend_in_pieces(
    many: ManyRows,
    queries: torch.Tensor,
    latents: torch.Tensor,
    latent_size: int,
    key_weights: torch.Tensor | None,
    value_weights: torch.Tensor | None,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute attention for the rows of one sequence.

    Args:
        many: The sequence, and where its rows are.
        queries: [H, rows, D + E], in the compute dtype.
        latents: [S, R + E].
        latent_size: R.
        key_weights: [H, D, R] or None.
        value_weights: [H, V, R] or None.
        scale: A factor on the logits.

    Returns:
        [H, rows, V] and the log-sum-exp [H, rows].
    """
    heads, count = queries.shape[:2]
    value_size = latent_size if value_weights is None else value_weights.shape[1]
    out = torch.zeros(heads, count, value_size, dtype=queries.dtype, device=queries.device)
    lse = torch.full((heads, count), -torch.inf, dtype=queries.dtype, device=queries.device)
    for low in range(0, len(latents), KEYS):
        piece = latents[low : low + KEYS].to(queries.dtype)
        high = low + len(piece)
        latent, rotated = piece[:, :latent_size], piece[:, latent_size:]
        plain_keys = latent.expand(heads, -1, -1) if key_weights is None else latent @ key_weights.mT
        keys = torch.cat([plain_keys, rotated.expand(heads, -1, -1)], dim=-1)
        values = latent.expand(heads, -1, -1) if value_weights is None else latent @ value_weights.mT
        for block in many.blocks:
            if block.seen <= low:
                continue
            rows = slice(block.start - many.start, block.stop - many.start)
            mask = (
                block.mask[:, low:high]
                if many.past + rows.start + 1 < high and block.mask is not None
                else None
            )
            part, total = attend(
                queries[:, rows],
                keys[:, : block.seen - low],
                values[:, : block.seen - low],
                scale=scale,
                mask=mask,
            )
            out[:, rows], lse[:, rows] = merge(out[:, rows], lse[:, rows], part, total)
    return out, lse
