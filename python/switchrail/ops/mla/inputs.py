"""Random samples of `mla`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from switchrail.ops.mla import DEFINITION
from switchrail.ops.mla.contract import CONTRACT
from switchrail.ops.samples.draws import PagedDraws
from switchrail.ops.samples.random import views
from switchrail.ops.samples.sample import Sample
from switchrail.ops.samples.scenario import Scenario, Timed, heads, timed


def mla_call(
    lengths: Sequence[int],
    *,
    page: int = 16,
    heads: int = 4,
    nope_size: int = 16,
    rope_size: int = 8,
    latent_size: int = 32,
    value_size: int = 16,
    absorbed: bool = False,
    lse: bool = False,
    **shared: Any,
) -> Sample:
    """Makes a random sample of `mla`; the argument `norm` multiplies the queries and the cache.

    Args:
        lengths: Query rows per sequence; 1 each in decode.
        page: Page size in tokens.
        heads: H, the number of heads.
        nope_size: D, unless `absorbed`.
        rope_size: E.
        latent_size: R.
        value_size: V, unless `absorbed`.
        absorbed: Whether w_k and w_v are None; then D and V are R.
        lse: Whether to request the log-sum-exp.
        **shared: The arguments of `PagedDraws`.
    """
    draws = PagedDraws(contract=CONTRACT, lengths=lengths, page=page, **shared)
    cache = draws.cache(latent_size + rope_size) * draws.norm
    key_size, out_size = (latent_size, latent_size) if absorbed else (nope_size, value_size)
    queries = draws.rows(heads, key_size + rope_size) * draws.norm
    weights = draws.random.normal(heads, key_size + out_size, latent_size) * latent_size**-0.5
    (queries,), (weights,) = (views([each], draws.dtype, draws.strided) for each in (queries, weights))
    tensors: dict[str, torch.Tensor | None] = {
        "q_nope": queries[:, :, :key_size],
        "q_rope": queries[:, :, key_size:],
        "kv_cache": cache.to(draws.dtype),
        "w_k": None if absorbed else weights[:, :key_size],
        "w_v": None if absorbed else weights[:, key_size:],
        "out": draws.unset(heads, out_size),
    }
    if lse:
        tensors["lse"] = draws.unset(heads, dtype=draws.compute)
    return draws.sample(tensors, scale=(nope_size + rope_size) ** -0.5)


SCENARIOS = (
    *heads({"heads": 1}, {"heads": 3}),
    Scenario(
        name="absorbed",
        about="absorbed queries, and latents as output",
        past=True,
        arguments={"absorbed": True},
        core=True,
    ),
    Scenario(
        name="log-sum-exp",
        about="the log-sum-exp is requested",
        past=True,
        arguments={"lse": True},
        features=("lse",),
    ),
)

SERVED = {
    "prefill": DEFINITION.generated({axis: DEFINITION.sizes[0][axis] for axis in ("D", "V")}),
    "decode": {"absorbed": True},
    "verify": {"absorbed": True},
}
"""By phase, the arguments of `mla_call` for calls as models make them: only prefill expands the latents."""

_EXPANDED = {**DEFINITION.sizes[0], "page": 64}
_ABSORBED = {**_EXPANDED, "D": 512, "V": 512}

TIMED = (
    *timed("prefill", _EXPANDED, (8192,), (1024,) * 8),
    *timed("prefill", _EXPANDED, (1024,), past=7168),
    *timed("decode", _ABSORBED, (1,), (1,) * 32, past=8191),
    *timed("decode", _ABSORBED, (1,) * 128, past=1023),
)


def flops(case: Timed, axes: Mapping[str, int]) -> float:
    """Floating-point operations on tensor cores: absorbed in decode, otherwise with K and V expanded once."""
    if case.phase == "decode":
        return case.seen * 2 * axes["H"] * (2 * axes["R"] + axes["E"])
    cached = sum(length + case.past for length in case.lengths)
    expand = cached * 2 * axes["R"] * (axes["D"] + axes["V"])
    return axes["H"] * (case.seen * 2 * (axes["D"] + axes["E"] + axes["V"]) + expand)
