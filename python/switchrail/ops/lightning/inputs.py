"""Random samples of `lightning`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from switchrail.ops.lightning import DEFINITION
from switchrail.ops.lightning.contract import CONTRACT
from switchrail.ops.samples.draws import StateDraws
from switchrail.ops.samples.random import Gate, log_decay, views
from switchrail.ops.samples.sample import Sample
from switchrail.ops.samples.scenario import Scenario, Timed, heads, timed


def lightning_call(
    lengths: Sequence[int],
    *,
    heads: int = 4,
    key_size: int = 16,
    value_size: int = 16,
    gate: Gate = "decaying",
    zero_keys: bool = False,
    **shared: Any,
) -> Sample:
    """Makes a random sample of `lightning`; `norm` multiplies q, k and v, `norm` squared the state.

    Args:
        lengths: Tokens per sequence; 1 each in decode.
        heads: H, the number of heads.
        key_size: K, the head size of q and k.
        value_size: V, the head size of v.
        gate: The kind of the heads' decays, as in `log_decay`.
        zero_keys: Whether every third key and every fifth query is zero.
        **shared: The arguments of `StateDraws`.
    """
    draws = StateDraws(contract=CONTRACT, lengths=lengths, **shared)
    q, k = draws.rows(heads, key_size) * draws.norm, draws.rows(heads, key_size) * draws.norm
    if zero_keys:
        k[::3] = 0
        q[::5] = 0
    v = draws.rows(heads, value_size) * draws.norm
    tensors: dict[str, torch.Tensor | None] = {"g": log_decay(draws.random, gate, heads).to(draws.compute)}
    tensors["q"], tensors["k"], tensors["v"] = views([q, k, v], draws.dtype, draws.strided)
    tensors["state"] = draws.pool(heads, value_size, key_size, dtype=draws.compute, factor=draws.norm**2)
    tensors["out"] = draws.unset(heads, value_size)
    return draws.sample(tensors, scale=key_size**-0.5)


SCENARIOS = (
    *heads({"heads": 1}, {"heads": 3}),
    Scenario(name="large-norms", about="large inputs and states", arguments={"norm": 6.0}),
)

(_SIZES,) = DEFINITION.sizes

TIMED = (
    *timed("prefill", _SIZES, (8192,), (32768,), (2048,) * 16),
    *timed("prefill", _SIZES, (32768,), decays=False),
    *timed("decode", _SIZES, (1,), (1,) * 32),
)


def flops(case: Timed, axes: Mapping[str, int]) -> float:
    """Floating-point operations on tensor cores if computed in chunks of 64."""
    key, value = axes["K"], axes["V"]
    return sum(case.lengths) * axes["H"] * (2 * 64 * (key + value) + 4 * key * value)
