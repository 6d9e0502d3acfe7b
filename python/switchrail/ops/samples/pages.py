"""Random batches over a paged cache."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from switchrail.ops.batch import PagedBatch, sequences
from switchrail.ops.samples.random import Random

UNDEFINED_PAGE = 2**30
"""The entry of page tables past the last used page."""


def paged_batch(
    random: Random,
    lengths: Sequence[int],
    kv_lengths: Sequence[int] | None,
    padding: Collection[int],
    page: int,
    window: int | None = None,
) -> tuple[PagedBatch, torch.Tensor]:
    """Makes a batch on permuted pages, and the mask [pages, page] of cache entries that rows attend to."""
    kv_seqlens = tuple(
        0 if n in padding else kv for n, kv in enumerate(lengths if kv_lengths is None else kv_lengths)
    )
    counts = [-(-kv // page) for kv in kv_seqlens]
    pages = sum(counts) + 3
    order = random.permutation(pages - 1) + 1
    page_table = torch.full((len(lengths), max([*counts, 0]) + 1), UNDEFINED_PAGE, dtype=torch.int32)
    seen = torch.zeros(pages, page, dtype=torch.bool)
    first = 0
    for n, (count, kv) in enumerate(zip(counts, kv_seqlens, strict=True)):
        mine = order[first : first + count]
        first += count
        page_table[n, :count] = mine.int()
        places = torch.arange(kv)
        if window is not None:
            places = places[max(0, kv - lengths[n] - window + 1) :]
        seen[mine[places // page], places % page] = True
    batch = PagedBatch(
        **sequences(tuple(lengths), "cpu"),
        page_table=page_table,
        kv_lens=torch.tensor(kv_seqlens, dtype=torch.int32),
        kv_seqlens=kv_seqlens,
    )
    return batch, seen
