"""Random samples of `mamba2`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch

from switchrail.ops.batch import Phase
from switchrail.ops.mamba2 import DEFINITION
from switchrail.ops.mamba2.contract import CONTRACT
from switchrail.ops.samples.random import (
    Gate,
    Initial,
    Random,
    compute_dtype,
    log_decay,
    state_batch,
    unread,
    views,
)
from switchrail.ops.samples.sample import Sample
from switchrail.ops.samples.scenario import Scenario, Timed, heads, timed


def mamba2_call(
    lengths: Sequence[int],
    *,
    phase: Phase = "prefill",
    heads: int = 4,
    groups: int = 2,
    head_size: int = 16,
    state_size: int = 16,
    dtype: torch.dtype = torch.float32,
    state_dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    gate: Gate = "decaying",
    dt_softplus: bool = True,
    dt_limits: tuple[float, float] = (0.0, float("inf")),
    bias: bool = True,
    skip: bool = True,
    zero_keys: bool = False,
    strided: bool = True,
    initial: Initial = "some",
    in_place: bool = True,
    padding: Collection[int] = (),
    norm: float = 1.0,
    seed: int = 0,
) -> Sample:
    """Make a random sample of `mamba2`.

    Args:
        lengths: Tokens per sequence; 1 each in decode.
        phase: The phase.
        heads: H, the number of heads.
        groups: G, the number of groups.
        head_size: P.
        state_size: S.
        dtype: The dtype of x, B, C, dt and out.
        state_dtype: The dtype of the state; by default float32, or float64 for a float64 `dtype`.
        device: The device of all tensors.
        gate: The kind of A, one value per head, as in `log_decay` but finite. Time steps are about 1; with
            `mixed` every fourth is 0, or as close as softplus allows.
        dt_softplus: The `dt_softplus` option; if False, dt is positive.
        dt_limits: The options `dt_min` and `dt_max`.
        bias: Whether to pass dt_bias.
        skip: Whether to pass D.
        zero_keys: Whether every third row of B and every fifth row of C is zero.
        strided: Whether x, B and C are views of one fused buffer, and dt of another.
        initial: Which sequences start from a state. In decode, all with a slot do.
        in_place: Whether each sequence reads the slot that it writes.
        padding: The indices of the padding sequences.
        norm: A factor on x and the initial state.
        seed: The random seed.
    """
    random = Random(seed)
    rows = sum(lengths)
    compute = compute_dtype(dtype)
    x = random.normal(rows, heads, head_size) * norm
    b, c = random.normal(rows, groups, state_size), random.normal(rows, groups, state_size)
    if zero_keys:
        b[::3] = 0
        c[::5] = 0
    dt = random.normal(rows, heads)
    dt_bias = 0.5 * random.normal(heads)
    if not dt_softplus:
        dt, dt_bias = dt.abs(), dt_bias.abs()
    if gate == "mixed":
        dt[random.uniform(rows, heads) < 0.25] = -30 if dt_softplus else 0
    batch, slots, padded = state_batch(random, lengths, phase, initial, in_place, padding)
    state = random.normal(slots, heads, head_size, state_size) * norm
    state[unread(batch, slots)] = torch.nan
    tensors: dict[str, torch.Tensor | None] = {}
    tensors["x"], tensors["B"], tensors["C"] = views([x, b, c], dtype, strided)
    (tensors["dt"],) = views([dt], dtype, strided)
    tensors["A"] = log_decay(random, gate, heads).clamp_min(-1e4).to(compute)
    tensors["D"] = random.normal(heads).to(compute) if skip else None
    tensors["dt_bias"] = dt_bias.to(compute) if bias else None
    tensors["state"] = state.to(state_dtype or compute)
    tensors["out"] = torch.full((rows, heads, head_size), torch.nan, dtype=dtype)
    options = {"dt_softplus": dt_softplus, "dt_min": dt_limits[0], "dt_max": dt_limits[1]}
    sample = Sample(
        contract=CONTRACT, phase=phase, tensors=tensors, options=options, batch=batch, padding=padded
    )
    return sample.to(device)


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
    """Floating-point operations on tensor cores in chunks of 64."""
    heads, size, state = axes["H"], axes["P"], axes["S"]
    chunk = 2 * 64 * (state * axes["G"] / heads + size)
    return sum(case.lengths) * heads * (chunk + 4 * size * state)


__all__ = ["SCENARIOS", "TIMED", "flops", "mamba2_call"]
