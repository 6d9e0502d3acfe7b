"""Random calls of `attention`."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from switchrail.ops.batch import PagedBatch, Phase
from switchrail.testing.inputs.call import Call
from switchrail.testing.inputs.common import Random, sequences, views

UNDEFINED_PAGE = 2**30
"""What stands in a page table past the last used page."""


def attention_call(
    lengths: Sequence[int],
    *,
    kv_lengths: Sequence[int] | None = None,
    phase: Phase = "prefill",
    heads: int = 4,
    kv_heads: int = 2,
    head_size: int = 16,
    page: int = 16,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    strided: bool = True,
    padding: Collection[int] = (),
    norm: float = 1.0,
    seed: int = 0,
) -> Call:
    """A random call of `attention`.

    Args:
        lengths: The number of query rows of each sequence; in decode each is 1.
        kv_lengths: The number of tokens of each sequence in the cache, its own rows included; `lengths` when
            left out. A sequence of padding has none, whatever is given here.
        phase: The phase.
        heads: H, the number of query heads.
        kv_heads: HKV, the number of key-value heads.
        head_size: D.
        page: The number of tokens a page holds.
        dtype: The dtype of all tensors.
        device: Where the tensors are.
        strided: Whether q is a view of a fused buffer.
        padding: The indices of the sequences that are padding.
        norm: The factor on q and k.
        seed: The seed.
    """
    random = Random(seed)
    rows = sum(lengths)
    kv_seqlens = tuple(
        0 if n in padding else kv for n, kv in enumerate(lengths if kv_lengths is None else kv_lengths)
    )
    counts = [-(-kv // page) for kv in kv_seqlens]
    pages = sum(counts) + 3
    order = random.permutation(pages - 1) + 1
    k_cache = random.normal(pages, page, kv_heads, head_size) * norm
    v_cache = random.normal(pages, page, kv_heads, head_size)
    page_table = torch.full((len(lengths), max([*counts, 0]) + 1), UNDEFINED_PAGE, dtype=torch.int32)
    valid = torch.zeros(pages, page, dtype=torch.bool)
    first = 0
    for n, (count, kv) in enumerate(zip(counts, kv_seqlens, strict=True)):
        mine = order[first : first + count]
        first += count
        page_table[n, :count] = mine.int()
        for i, number in enumerate(mine.tolist()):
            valid[number, : kv - i * page] = True
    k_cache[~valid] = torch.nan
    v_cache[~valid] = torch.nan
    q, _ = views(
        [random.normal(rows, heads, head_size) * norm, random.normal(rows, 2 * kv_heads, head_size)],
        dtype,
        strided,
    )
    tensors: dict[str, torch.Tensor | None] = {
        "q": q,
        "k_cache": k_cache.to(dtype),
        "v_cache": v_cache.to(dtype),
        "out": torch.full((rows, heads, head_size), torch.nan, dtype=dtype),
    }
    batch = PagedBatch(
        **sequences(lengths),
        page_table=page_table,
        kv_lens=torch.tensor(kv_seqlens, dtype=torch.int32),
        kv_seqlens=kv_seqlens,
    )
    call = Call(
        op="attention",
        phase=phase,
        tensors=tensors,
        options={"scale": head_size**-0.5},
        batch=batch,
        padding=frozenset(padding),
    )
    return call.to(device)


__all__ = ["UNDEFINED_PAGE", "attention_call"]
