"""Random samples of `mla`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch

from switchrail.ops.batch import Phase
from switchrail.ops.mla import DEFINITION
from switchrail.ops.mla.contract import CONTRACT
from switchrail.ops.samples.pages import paged_batch
from switchrail.ops.samples.random import Random, compute_dtype, views
from switchrail.ops.samples.sample import Sample
from switchrail.ops.samples.scenario import Scenario, Timed, heads, timed


def mla_call(
    lengths: Sequence[int],
    *,
    kv_lengths: Sequence[int] | None = None,
    phase: Phase = "prefill",
    heads: int = 4,
    nope_size: int = 16,
    rope_size: int = 8,
    latent_size: int = 32,
    value_size: int = 16,
    page: int = 16,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    absorbed: bool = False,
    lse: bool = False,
    strided: bool = True,
    padding: Collection[int] = (),
    norm: float = 1.0,
    seed: int = 0,
) -> Sample:
    """Make a random sample of `mla`.

    Args:
        lengths: Query rows per sequence; 1 each in decode.
        kv_lengths: Cached tokens per sequence, its own rows included; `lengths` by default. Padding sequences
            always have 0.
        phase: The phase.
        heads: H, the number of heads.
        nope_size: D.
        rope_size: E.
        latent_size: R.
        value_size: V.
        page: Page size in tokens.
        dtype: The dtype of all tensors.
        device: The device of all tensors.
        absorbed: Whether both weights are None, so D and V are R.
        lse: Whether to request the log-sum-exp.
        strided: Whether the queries are views of one buffer, and the weights of another.
        padding: The indices of the padding sequences.
        norm: A factor on the queries and the latents.
        seed: The random seed.
    """
    random = Random(seed)
    rows = sum(lengths)
    batch, seen = paged_batch(random, lengths, kv_lengths, padding, page)
    cache = random.normal(*seen.shape, latent_size + rope_size) * norm
    cache[~seen] = torch.nan
    key_size, out_size = (latent_size, latent_size) if absorbed else (nope_size, value_size)
    queries = random.normal(rows, heads, key_size + rope_size) * norm
    weights = random.normal(heads, key_size + out_size, latent_size) * latent_size**-0.5
    queries, weights = queries.to(dtype), weights.to(dtype)
    if strided:
        (queries,), (weights,) = views([queries], dtype, True), views([weights], dtype, True)
    tensors: dict[str, torch.Tensor | None] = {
        "q_nope": queries[:, :, :key_size],
        "q_rope": queries[:, :, key_size:],
        "kv_cache": cache.to(dtype),
        "w_k": None if absorbed else weights[:, :key_size],
        "w_v": None if absorbed else weights[:, key_size:],
        "out": torch.full((rows, heads, out_size), torch.nan, dtype=dtype),
    }
    if lse:
        tensors["lse"] = torch.full((rows, heads), torch.nan, dtype=compute_dtype(dtype))
    sample = Sample(
        contract=CONTRACT,
        phase=phase,
        tensors=tensors,
        options={"scale": (nope_size + rope_size) ** -0.5},
        batch=batch,
        padding=frozenset(padding),
    )
    return sample.to(device)


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
"""Prefill expands the latents; decode and verify use absorbed weights."""

_EXPANDED = {**DEFINITION.sizes[0], "page": 64}
_ABSORBED = {**_EXPANDED, "D": 512, "V": 512}

TIMED = (
    *timed("prefill", _EXPANDED, (8192,), (1024,) * 8),
    *timed("prefill", _EXPANDED, (1024,), past=7168),
    *timed("decode", _ABSORBED, (1,), (1,) * 32, past=8191),
    *timed("decode", _ABSORBED, (1,) * 128, past=1023),
)


def flops(case: Timed, axes: Mapping[str, int]) -> float:
    """Floating-point operations on tensor cores: absorbed in decode, else with K and V expanded once."""
    if case.phase == "decode":
        return case.seen * 2 * axes["H"] * (2 * axes["R"] + axes["E"])
    cached = sum(length + case.past for length in case.lengths)
    expand = cached * 2 * axes["R"] * (axes["D"] + axes["V"])
    return axes["H"] * (case.seen * 2 * (axes["D"] + axes["E"] + axes["V"]) + expand)


__all__ = ["SCENARIOS", "SERVED", "TIMED", "flops", "mla_call"]
