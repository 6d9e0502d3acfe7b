"""Random samples of `mamba2`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from switchrail.ops.mamba2 import DEFINITION
from switchrail.ops.mamba2.contract import CONTRACT
from switchrail.ops.samples.draws import StateDraws
from switchrail.ops.samples.random import Gate, log_decay, views
from switchrail.ops.samples.sample import Sample
from switchrail.ops.samples.scenario import Scenario, Timed, heads, timed


def mamba2_call(
    lengths: Sequence[int],
    *,
    heads: int = 4,
    groups: int = 2,
    head_size: int = 16,
    state_size: int = 16,
    gate: Gate = "decaying",
    dt_softplus: bool = True,
    dt_limits: tuple[float, float] = (0.0, float("inf")),
    bias: bool = True,
    skip: bool = True,
    zero_keys: bool = False,
    **shared: Any,
) -> Sample:
    """Makes a random sample of `mamba2`; the argument `norm` multiplies x and the state.

    Args:
        lengths: Tokens per sequence; 1 each in decode.
        heads: H, the number of heads.
        groups: G, the number of groups.
        head_size: P.
        state_size: S.
        gate: The kind of the decays exp(A), one per head, as in `log_decay`, with finite A. Time steps are
            about 1. With `mixed`, about a quarter of dt is -30 (0 if `dt_softplus` is False).
        dt_softplus: The `dt_softplus` option; if False, neither dt nor dt_bias is negative.
        dt_limits: The options `dt_min` and `dt_max`.
        bias: Whether to pass dt_bias.
        skip: Whether to pass D.
        zero_keys: Whether every third row of B and every fifth row of C is zero.
        **shared: The arguments of `StateDraws`.
    """
    draws = StateDraws(contract=CONTRACT, lengths=lengths, **shared)
    x = draws.rows(heads, head_size) * draws.norm
    b, c = draws.rows(groups, state_size), draws.rows(groups, state_size)
    if zero_keys:
        b[::3] = 0
        c[::5] = 0
    dt = draws.rows(heads)
    dt_bias = 0.5 * draws.random.normal(heads)
    if not dt_softplus:
        dt, dt_bias = dt.abs(), dt_bias.abs()
    if gate == "mixed":
        dt[draws.random.uniform(*dt.shape) < 0.25] = -30 if dt_softplus else 0
    tensors: dict[str, torch.Tensor | None] = {}
    tensors["x"], tensors["B"], tensors["C"] = views([x, b, c], draws.dtype, draws.strided)
    (tensors["dt"],) = views([dt], draws.dtype, draws.strided)
    tensors["state"] = draws.pool(heads, head_size, state_size, dtype=draws.compute, factor=draws.norm)
    tensors["A"] = log_decay(draws.random, gate, heads).clamp_min(-1e4).to(draws.compute)
    tensors["D"] = draws.random.normal(heads).to(draws.compute) if skip else None
    tensors["dt_bias"] = dt_bias.to(draws.compute) if bias else None
    tensors["out"] = draws.unset(heads, head_size)
    return draws.sample(tensors, dt_softplus=dt_softplus, dt_min=dt_limits[0], dt_max=dt_limits[1])


SCENARIOS = (
    *heads({"heads": 1, "groups": 1}, {"heads": 3, "groups": 1}, {"heads": 3, "groups": 3}),
    Scenario(name="large-norms", about="large inputs and states", arguments={"norm": 30.0}),
    Scenario(name="activated-steps", about="time steps already activated", arguments={"dt_softplus": False}),
    Scenario(
        name="limited-steps",
        about="time steps are limited on both sides",
        arguments={"dt_limits": (0.1, 1.5)},
    ),
    Scenario(name="plain", about="no bias and no skip", arguments={"bias": False, "skip": False}),
)

(_SIZES,) = DEFINITION.sizes

TIMED = tuple(
    each
    for model, sizes in (("Nemotron-H", _SIZES), ("Bamba", {**_SIZES, "G": 1}))
    for each in (
        *timed("prefill", sizes, (8192,), (2048,) * 16, model=model),
        *timed("decode", sizes, (1,), (1,) * 32, model=model),
    )
)


def flops(case: Timed, axes: Mapping[str, int]) -> float:
    """Floating-point operations on tensor cores if computed in chunks of 64."""
    heads, size, state = axes["H"], axes["P"], axes["S"]
    chunk = 2 * 64 * (state * axes["G"] / heads + size)
    return sum(case.lengths) * heads * (chunk + 4 * size * state)
