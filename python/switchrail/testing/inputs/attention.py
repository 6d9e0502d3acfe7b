"""Random calls of `attention`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

from switchrail.ops.batch import Phase
from switchrail.testing.inputs.call import Call
from switchrail.testing.inputs.common import Random, compute_dtype, views
from switchrail.testing.inputs.pages import paged_batch


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
    window: int | None = None,
    soft_cap: float | None = None,
    sinks: bool = False,
    lse: bool = False,
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
        window: The argument of that name, which is left out where it is None. What no row sees is NaN.
        soft_cap: Likewise.
        sinks: Whether there are any.
        lse: Whether the log-sum-exp is asked for.
        strided: Whether q is a view of a fused buffer.
        padding: The indices of the sequences that are padding.
        norm: The factor on q and k.
        seed: The seed.
    """
    random = Random(seed)
    rows = sum(lengths)
    batch, seen = paged_batch(random, lengths, kv_lengths, padding, page, window)
    k_cache = random.normal(*seen.shape, kv_heads, head_size) * norm
    v_cache = random.normal(*seen.shape, kv_heads, head_size)
    k_cache[~seen] = torch.nan
    v_cache[~seen] = torch.nan
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
    if sinks:
        tensors["sinks"] = (3 * random.normal(heads)).to(dtype)
    if lse:
        tensors["lse"] = torch.full((rows, heads), torch.nan, dtype=compute_dtype(dtype))
    options: dict[str, Any] = {"scale": head_size**-0.5}
    if window is not None:
        options["window"] = window
    if soft_cap is not None:
        options["soft_cap"] = soft_cap
    call = Call(
        op="attention",
        phase=phase,
        tensors=tensors,
        options=options,
        batch=batch,
        padding=frozenset(padding),
    )
    return call.to(device)


__all__ = ["attention_call"]
