"""MLA's prefill with expanded keys and values: all new tokens at once, cached prefixes in chunks.

A sequence's new tokens attend to each other, then to its cached prefix, one chunk at a time. The results are
merged by their log-sum-exps. If all of a batch's keys fit in one chunk, prefixes and new tokens are expanded
and attended to together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

import torch

from switchrail.ops.batch import PagedBatch, PagedTreeBatch
from switchrail.ops.mla.contract import CONTRACT, MlaCall, MlaLayer
from switchrail.ops.pages import check_pages, take
from switchrail.ops.ragged import RaggedBatch
from switchrail.ops.slots import indices
from switchrail.ops.softmax import merge

CHUNK = 8192
"""Maximum number of keys in a chunk, summed over the sequences."""


class Piece:
    """Rows of some sequences, and the keys that they attend to in one call.

    Attributes:
        rows: The packed rows of the sequences.
        ragged: The rows and the keys of the sequences, both packed without gaps; no sequence is empty.
        causal: Whether a sequence's last row attends to all its keys, and each earlier row to one key less
            than the next row. If False, every row attends to all keys of its sequence.
        starts: `ragged.cu_seqlens` on the host.
        starts_k: `ragged.cu_seqlens_k` on the host.
    """

    def __init__(self, batch: PagedBatch, spans: Sequence[tuple[int, int, int]], *, causal: bool) -> None:
        """Compute the piece's tables.

        Args:
            batch: The batch of the rows.
            spans: For each sequence: its index, the position of its first key, and the number of its keys.
            causal: See the attributes.
        """
        device = batch.page_table.device
        first_rows = [0, *accumulate(batch.seqlens)]
        rows = [range(first_rows[n], first_rows[n + 1]) for n, _, _ in spans]
        seqlens, seqlens_k = tuple(map(len, rows)), tuple(count for _, _, count in spans)
        self.starts, self.starts_k = (
            torch.tensor([0, *accumulate(each)], dtype=torch.int32) for each in (seqlens, seqlens_k)
        )
        self.rows: slice | torch.Tensor = slice(rows[0].start, rows[-1].stop)
        if sum(seqlens) != rows[-1].stop - rows[0].start:
            self.rows = indices([row for own in rows for row in own], device)
        self.ragged = RaggedBatch(
            cu_seqlens=self.starts.to(device, non_blocking=True),
            cu_seqlens_k=self.starts_k.to(device, non_blocking=True),
            seqlens=seqlens,
            seqlens_k=seqlens_k,
        )
        self.causal = causal
        self._batch = batch
        self._spans = spans
        self._indices: dict[int, torch.Tensor] = {}

    def cache_indices(self, page: int) -> torch.Tensor:
        """The keys' indices in a cache with pages of `page` tokens, [S] int64, counted in tokens."""
        if page not in self._indices:
            check_pages(CONTRACT, self._batch, page)
            table, total = self._batch.page_table, sum(self.ragged.seqlens_k)
            numbers = [number for span in self._spans for number in span]
            owners, firsts, counts = indices(numbers, table.device).view(-1, 3).unbind(1)
            starts = self.ragged.cu_seqlens_k[:-1].long()
            which = torch.repeat_interleave(counts, output_size=total)
            positions = torch.arange(total, device=table.device) + (firsts - starts).index_select(0, which)
            pages = table[owners.index_select(0, which), positions // page].long()
            self._indices[page] = pages * page + positions % page
        return self._indices[page]


Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Piece, float], tuple[torch.Tensor, torch.Tensor]]
"""Ragged attention of a piece: `attend(q, k, v, piece, scale)` takes q [T, H, D + E], k [S, H, D + E] and v
[S, H, V], and returns the output [T, H, V] and its natural log-sum-exp [T, H], float32 or float64."""


class ChunkedPrefix:
    """The pieces of a prefill: the new tokens, then the cached prefixes.

    Attributes:
        own: All rows, with the keys of the new tokens; also with the prefixes' keys if all keys fit in one
            chunk.
        chunks: Rows with keys of their sequences' prefixes, at most `capacity` keys in each piece.
    """

    def __init__(self, batch: PagedBatch, capacity: int, live: Sequence[int]) -> None:
        """Plan a batch.

        Args:
            batch: The batch.
            capacity: Maximum number of keys in a chunk.
            live: The sequences that have rows and keys; at least one.
        """
        rows, keys = batch.seqlens, batch.kv_seqlens
        prefix = {n: keys[n] - rows[n] for n in live}
        one_shot = sum(keys[n] for n in live) <= capacity
        own = [(n, 0, keys[n]) if one_shot else (n, prefix[n], rows[n]) for n in live]
        self.own = Piece(batch, own, causal=True)
        self.chunks: tuple[Piece, ...] = ()
        if not one_shot:
            chunks: list[list[tuple[int, int, int]]] = []
            free = 0
            for n, total in prefix.items():
                first = 0
                while first < total:
                    if not free:
                        chunks.append([])
                        free = capacity
                    count = min(free, total - first)
                    chunks[-1].append((n, first, count))
                    free, first = free - count, first + count
            self.chunks = tuple(Piece(batch, chunk, causal=False) for chunk in chunks)

    @classmethod
    def of(cls, batch: PagedBatch, *, ragged: bool, chunked: bool) -> ChunkedPrefix | None:
        """Plan a batch; None if a flag or the batch rules this form of prefill out.

        Args:
            batch: The batch.
            ragged: Whether new tokens may be expanded.
            chunked: Whether cached prefixes may be expanded.
        """
        if not ragged or batch.kv_bounds or isinstance(batch, PagedTreeBatch):
            return None
        live = [n for n, length in enumerate(batch.seqlens) if length and batch.kv_seqlens[n]]
        if not live or (not chunked and any(batch.kv_seqlens[n] > batch.seqlens[n] for n in live)):
            return None
        return cls(batch, CHUNK, live)

    def serves(self, layer: MlaLayer) -> bool:
        """Whether the layer has the two weights that expand latents."""
        return layer.w_k is not None and layer.w_v is not None

    def run(self, call: MlaCall, attend: Attend, dtype: torch.dtype) -> None:
        """Run a call. The rows of padding are left as they are.

        Args:
            call: The call.
            attend: The backend's ragged attention.
            dtype: The dtype of the queries and of the expanded keys and values.
        """
        layer, q_nope, q_rope, out, lse = call
        queries = torch.cat([q_nope, q_rope], dim=-1).to(dtype)
        result, total = attend(queries[self.own.rows], *expand(layer, self.own, dtype), self.own, layer.scale)
        if self.chunks:
            compute = torch.promote_types(dtype, torch.float32)
            sums = torch.zeros(out.shape, dtype=compute, device=out.device)
            totals = torch.full(out.shape[:2], -torch.inf, dtype=total.dtype, device=out.device)
            sums[self.own.rows], totals[self.own.rows] = result.to(compute), total
            for chunk in self.chunks:
                rows = chunk.rows
                part = attend(queries[rows], *expand(layer, chunk, dtype), chunk, layer.scale)
                sums[rows], totals[rows] = merge(sums[rows], totals[rows], *part)
            result, total = sums[self.own.rows], totals[self.own.rows]
        out[self.own.rows] = result.to(out.dtype)
        if lse is not None:
            lse[self.own.rows] = total.to(lse.dtype)


def expand(layer: MlaLayer, piece: Piece, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """The keys [S, H, D + E] and values [S, H, V] of a piece, from the latents in the cache."""
    w_k, w_v, cache = layer.w_k, layer.w_v, layer.kv_cache
    assert w_k is not None
    assert w_v is not None
    heads, size, latent_size = w_k.shape
    cached = take(cache, piece.cache_indices(cache.shape[1])).to(dtype)
    latents, rotated = cached[:, :latent_size], cached[:, latent_size:]
    shared = latents.expand(heads, -1, -1)
    keys = cached.new_empty(len(cached), heads, size + rotated.shape[1])
    values = cached.new_empty(len(cached), heads, w_v.shape[1])
    torch.bmm(shared, w_k.to(dtype).mT, out=keys[..., :size].transpose(0, 1))
    torch.bmm(shared, w_v.to(dtype).mT, out=values.transpose(0, 1))
    keys[..., size:] = rotated[:, None]
    return keys, values
