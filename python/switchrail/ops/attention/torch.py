"""Causal softmax attention over a paged cache in plain torch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention

from switchrail.ops.attention.contract import CONTRACT
from switchrail.ops.backend import AttentionBackend
from switchrail.ops.batch import PagedBatch, Phase

WASTE = 512
"""How many tokens of padding a group of single rows may gather before another group is worth its calls."""

BLOCK = 256
"""Query rows a call where a mask is needed: bounds the mask and what is computed only to be masked."""


@dataclass(frozen=True, slots=True)
class _SingleRows:
    """Sequences with one row each, of about the same length.

    Attributes:
        rows: [B] int64, their packed rows.
        tokens: [B * L] int64, the place in the cache of each position; a position past the end repeats the
            first.
        mask: [B, 1, 1, L] bool, the positions before the end; None where all are.
    """

    rows: torch.Tensor
    tokens: torch.Tensor
    mask: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class _Block:
    """Rows of one sequence.

    Attributes:
        start: The first packed row.
        stop: The last packed row + 1.
        seen: The number of positions that the last row sees.
        mask: [rows, seen] bool, what each row sees; None where plain causality covers it.
    """

    start: int
    stop: int
    seen: int
    mask: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class _ManyRows:
    """One sequence with several rows.

    Attributes:
        tokens: [L] int64, the place in the cache of each position.
        blocks: Its rows.
    """

    tokens: torch.Tensor
    blocks: tuple[_Block, ...]


@dataclass(frozen=True, slots=True)
class _Parts:
    single: tuple[_SingleRows, ...]
    many: tuple[_ManyRows, ...]


class _Plan:
    """The calls that a batch is cut into."""

    def __init__(self, batch: PagedBatch) -> None:
        self._batch = batch
        self._parts: dict[int, _Parts] = {}
        self._starts = [0]
        for length in batch.seqlens:
            self._starts.append(self._starts[-1] + length)
        for n, (length, kv) in enumerate(zip(batch.seqlens, batch.kv_seqlens, strict=True)):
            if 0 < kv < length:
                raise CONTRACT.error(
                    "batch.kv_seqlens",
                    f"{kv} for sequence {n} of {length} rows",
                    "as many as its rows at least, or 0",
                )
        padding = [
            row
            for n, kv in enumerate(batch.kv_seqlens)
            if kv == 0
            for row in range(self._starts[n], self._starts[n + 1])
        ]
        self.padding_rows: torch.Tensor | None = None
        """int64, the rows of padding; None where there is none."""
        if padding:
            self.padding_rows = torch.tensor(padding).to(batch.page_table.device, non_blocking=True)

    def parts(self, page: int) -> _Parts:
        """The calls for pages of `page` tokens, prepared when the first layer of a step asks."""
        if page not in self._parts:
            batch = self._batch
            device = batch.page_table.device
            longest = max(batch.kv_seqlens, default=0)
            if longest > page * batch.page_table.shape[1]:
                raise CONTRACT.error(
                    "batch.page_table",
                    f"{batch.page_table.shape[1]} pages of {page} tokens a sequence",
                    f"enough for the longest, {longest} tokens",
                )
            live = [n for n in range(len(batch.seqlens)) if batch.seqlens[n] and batch.kv_seqlens[n]]
            single = sorted((n for n in live if batch.seqlens[n] == 1), key=lambda n: batch.kv_seqlens[n])
            self._parts[page] = _Parts(
                tuple(self._single_rows(members, page, device) for members in self._groups(single)),
                tuple(self._many_rows(n, page, device) for n in live if batch.seqlens[n] > 1),
            )
        return self._parts[page]

    def _groups(self, sequences: list[int]) -> list[list[int]]:
        """Cuts sequences, longest last, into groups whose padding to the longest stays within `WASTE`."""
        groups: list[list[int]] = []
        wasted = WASTE + 1
        for n in reversed(sequences):
            if wasted <= WASTE:
                wasted += self._batch.kv_seqlens[groups[-1][0]] - self._batch.kv_seqlens[n]
            if wasted > WASTE:
                groups.append([])
                wasted = 0
            groups[-1].append(n)
        return groups

    def _single_rows(self, members: list[int], page: int, device: torch.device) -> _SingleRows:
        lengths = torch.tensor([self._batch.kv_seqlens[n] for n in members])[:, None]
        positions = torch.arange(int(lengths.max()))
        mask = positions < lengths
        positions = (positions * mask).to(device, non_blocking=True)
        table = self._batch.page_table[torch.tensor(members).to(device, non_blocking=True)].long()
        tokens = table.gather(1, positions // page) * page + positions % page
        rows = torch.tensor([self._starts[n] for n in members])
        return _SingleRows(
            rows.to(device, non_blocking=True),
            tokens.flatten(),
            None if mask.all() else mask[:, None, None].to(device, non_blocking=True),
        )

    def _many_rows(self, n: int, page: int, device: torch.device) -> _ManyRows:
        length, kv, first = self._batch.seqlens[n], self._batch.kv_seqlens[n], self._starts[n]
        positions = torch.arange(kv, device=device)
        tokens = self._batch.page_table[n].long().index_select(0, positions // page) * page + positions % page
        if length == kv:
            return _ManyRows(tokens, (_Block(first, first + length, kv, None),))
        blocks = []
        for low in range(0, length, BLOCK):
            high = min(low + BLOCK, length)
            seen = kv - length + high
            mask = positions[:seen] <= torch.arange(seen - (high - low), seen, device=device)[:, None]
            blocks.append(_Block(first + low, first + high, seen, mask))
        return _ManyRows(tokens, tuple(blocks))


class TorchAttention(AttentionBackend):
    """torch's own attention over keys and values gathered from their pages.

    Sequences with one row are gathered together, in groups of about one length, their query heads that share
    a key-value head standing as rows of one; a sequence with several rows has a call of its own. On CUDA
    float32 products are as exact as torch is set to make them, which is IEEE unless it was told otherwise.
    """

    def plan(self, phase: Phase, batch: PagedBatch) -> _Plan:
        """Cuts the batch into calls."""
        CONTRACT.check_batch(phase, batch)
        return _Plan(batch)

    def prefill(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        *,
        out: torch.Tensor,
        batch: PagedBatch,
        plan: object,
        scale: float,
    ) -> None:
        """Attends T packed query rows of N sequences of any length."""
        tensors = {"q": q, "k_cache": k_cache, "v_cache": v_cache, "out": out}
        CONTRACT.check_arguments(batch, {**tensors, "scale": scale})
        _attend(plan, q, k_cache, v_cache, out, scale)

    def decode(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        *,
        out: torch.Tensor,
        batch: PagedBatch,
        plan: object,
        scale: float,
    ) -> None:
        """Attends one query row a sequence."""
        tensors = {"q": q, "k_cache": k_cache, "v_cache": v_cache, "out": out}
        CONTRACT.check_arguments(batch, {**tensors, "scale": scale})
        _attend(plan, q, k_cache, v_cache, out, scale)


def _attend(
    plan: object,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    out: torch.Tensor,
    scale: float,
) -> None:
    assert isinstance(plan, _Plan)
    page, kv_heads, head_size = k_cache.shape[1:]
    parts = plan.parts(page)
    keys, values = k_cache.flatten(0, 1), v_cache.flatten(0, 1)
    if q.device.type == "cuda" and (q.data_ptr() % 16 or q.stride(0) * q.itemsize % 16):
        # torch 2.11 hands such a view to a fused kernel that reads 16 bytes at a time, and NaN comes out
        q = q.contiguous()
    for single in parts.single:
        count = len(single.rows)
        shape = (count, -1, kv_heads, head_size)
        attended = scaled_dot_product_attention(
            q.index_select(0, single.rows).view(count, kv_heads, -1, head_size),
            keys.index_select(0, single.tokens).view(shape).transpose(1, 2),
            values.index_select(0, single.tokens).view(shape).transpose(1, 2),
            attn_mask=single.mask,
            scale=scale,
        )
        out.index_copy_(0, single.rows, attended.reshape(count, -1, head_size))
    for many in parts.many:
        k = keys.index_select(0, many.tokens).transpose(0, 1)[None]
        v = values.index_select(0, many.tokens).transpose(0, 1)[None]
        for block in many.blocks:
            attended = scaled_dot_product_attention(
                q[block.start : block.stop].transpose(0, 1)[None],
                k[:, :, : block.seen],
                v[:, :, : block.seen],
                attn_mask=block.mask,
                is_causal=block.mask is None,
                scale=scale,
                enable_gqa=True,
            )
            out[block.start : block.stop] = attended[0].transpose(0, 1)
    if plan.padding_rows is not None:
        out.index_fill_(0, plan.padding_rows, 0)


__all__ = ["TorchAttention"]
