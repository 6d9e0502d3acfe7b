"""Random samples of `attention`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from switchrail.ops.attention import DEFINITION
from switchrail.ops.attention.contract import CONTRACT
from switchrail.ops.samples.draws import PagedDraws
from switchrail.ops.samples.random import views
from switchrail.ops.samples.sample import Sample
from switchrail.ops.samples.scenario import Scenario, Timed, heads, timed


def attention_call(
    lengths: Sequence[int],
    *,
    page: int = 16,
    heads: int = 4,
    kv_heads: int = 2,
    head_size: int = 16,
    window: int | None = None,
    soft_cap: float | None = None,
    sinks: bool = False,
    lse: bool = False,
    **shared: Any,
) -> Sample:
    """Makes a random sample of `attention`; the argument `norm` multiplies q and the cached keys.

    Args:
        lengths: Query rows per sequence; 1 each in decode.
        page: Page size in tokens.
        heads: H, the number of query heads.
        kv_heads: HKV, the number of key-value heads.
        head_size: D.
        window: The `window` option; None omits it. Cache entries outside the windows of all rows are NaN.
        soft_cap: The `soft_cap` option; None omits it.
        sinks: Whether to pass sinks.
        lse: Whether to request the log-sum-exp.
        **shared: The arguments of `PagedDraws`.
    """
    draws = PagedDraws(contract=CONTRACT, lengths=lengths, page=page, window=window, **shared)
    k_cache = draws.cache(kv_heads, head_size) * draws.norm
    v_cache = draws.cache(kv_heads, head_size)
    inputs = [draws.rows(heads, head_size) * draws.norm, draws.rows(2 * kv_heads, head_size)]
    q, _ = views(inputs, draws.dtype, draws.strided)
    tensors: dict[str, torch.Tensor | None] = {
        "q": q,
        "k_cache": k_cache.to(draws.dtype),
        "v_cache": v_cache.to(draws.dtype),
        "out": draws.unset(heads, head_size),
    }
    if sinks:
        tensors["sinks"] = (3 * draws.random.normal(heads)).to(draws.dtype)
    if lse:
        tensors["lse"] = draws.unset(heads, dtype=draws.compute)
    options: dict[str, Any] = {"scale": head_size**-0.5}
    if window is not None:
        options["window"] = window
    if soft_cap is not None:
        options["soft_cap"] = soft_cap
    return draws.sample(tensors, **options)


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
        ("window-16", "a window as long as a page", {"window": 16}),
        ("window-33", "a window that ends within a page", {"window": 33}),
        ("window-1000", "a window longer than all sequences", {"window": 1000}),
        ("soft-cap", "capped logits", {"soft_cap": 5.0}),
        ("soft-cap-large", "a cap far above the logits", {"soft_cap": 1e5}),
        ("sinks", "a sink for each head", {"sinks": True}),
        ("log-sum-exp", "the log-sum-exp is requested", {"lse": True}),
        (
            "features",
            "a window, a soft cap, sinks and the log-sum-exp together",
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
    """The number of floating-point operations that can run on tensor cores."""
    return case.seen * 4 * axes["H"] * axes["D"]
