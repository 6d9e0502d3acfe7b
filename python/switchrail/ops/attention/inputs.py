"""Random samples of `attention`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from switchrail.ops.attention import DEFINITION
from switchrail.ops.attention.contract import CONTRACT
from switchrail.ops.batch import Phase
from switchrail.ops.samples.pages import paged_batch
from switchrail.ops.samples.random import Random, compute_dtype, views
from switchrail.ops.samples.sample import Sample
from switchrail.ops.samples.scenario import Scenario, Timed, heads, timed


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
) -> Sample:
    """Make a random sample of `attention`.

    Args:
        lengths: Query rows per sequence; 1 each in decode.
        kv_lengths: Cached tokens per sequence, its own rows included; `lengths` by default. Padding sequences
            always have 0.
        phase: The phase.
        heads: H, the number of query heads.
        kv_heads: HKV, the number of key-value heads.
        head_size: D.
        page: Page size in tokens.
        dtype: The dtype of all tensors.
        device: The device of all tensors.
        window: The `window` option; None omits it. Cache positions that no row attends to hold NaN.
        soft_cap: The `soft_cap` option; None omits it.
        sinks: Whether to pass sinks.
        lse: Whether to request the log-sum-exp.
        strided: Whether q is a view of a fused buffer.
        padding: The indices of the padding sequences.
        norm: A factor on q and k.
        seed: The random seed.
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
    sample = Sample(
        contract=CONTRACT,
        phase=phase,
        tensors=tensors,
        options=options,
        batch=batch,
        padding=frozenset(padding),
    )
    return sample.to(device)


SCENARIOS = tuple(
    Scenario(
        name=name,
        about=about,
        prefill=(40, 1, 17, 70),
        past=True,
        decode=6,
        arguments=arguments,
        features=tuple(arguments),
    )
    for name, about, arguments in (
        ("window-1", "each row sees itself only", {"window": 1}),
        ("window-16", "a window of one block", {"window": 16}),
        ("window-33", "a window that ends within a block", {"window": 33}),
        ("window-1000", "a window wider than all", {"window": 1000}),
        ("soft-cap", "capped logits", {"soft_cap": 5.0}),
        ("soft-cap-large", "a cap far above the logits", {"soft_cap": 1e5}),
        ("sinks", "a sink a head", {"sinks": True}),
        ("log-sum-exp", "the log-sum-exp is asked for", {"lse": True}),
        (
            "features",
            "all features together",
            {"window": 33, "soft_cap": 5.0, "sinks": True, "lse": True},
        ),
    )
) + heads({"heads": 1, "kv_heads": 1}, {"heads": 8, "kv_heads": 1}, {"heads": 6, "kv_heads": 2})

_SIZES = {**DEFINITION.sizes[-1], "page": 64}

TIMED = (
    *timed("prefill", _SIZES, (8192,), (2048,) * 16),
    *timed("prefill", _SIZES, (512,), past=32256),
    *timed("decode", _SIZES, (1,), past=8191),
    *timed("decode", _SIZES, (1,), past=32767),
    *timed("decode", _SIZES, (1,) * 32, past=8191),
    *timed("decode", _SIZES, (1,) * 128, past=1023),
)


def flops(case: Timed, axes: Mapping[str, int]) -> float:
    """Floating-point operations that can run on tensor cores."""
    return case.seen * 4 * axes["H"] * axes["D"]


__all__ = ["SCENARIOS", "TIMED", "attention_call", "flops"]
