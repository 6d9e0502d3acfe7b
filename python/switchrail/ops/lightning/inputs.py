"""Random samples of `lightning`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch

from switchrail.ops.batch import Phase
from switchrail.ops.lightning import DEFINITION
from switchrail.ops.lightning.contract import CONTRACT
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


def lightning_call(
    lengths: Sequence[int],
    *,
    phase: Phase = "prefill",
    heads: int = 4,
    key_size: int = 16,
    value_size: int = 16,
    dtype: torch.dtype = torch.float32,
    state_dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    gate: Gate = "decaying",
    zero_keys: bool = False,
    strided: bool = True,
    initial: Initial = "some",
    in_place: bool = True,
    padding: Collection[int] = (),
    norm: float = 1.0,
    seed: int = 0,
) -> Sample:
    """Make a random sample of `lightning`.

    Args:
        lengths: Tokens per sequence; 1 each in decode.
        phase: The phase.
        heads: H, the number of heads.
        key_size: K, the head size of q and k.
        value_size: V, the head size of v.
        dtype: The dtype of q, k, v and out.
        state_dtype: The dtype of the state; by default float32, or float64 for a float64 `dtype`.
        device: The device of all tensors.
        gate: The kind of the heads' decays, as in `log_decay`.
        zero_keys: Whether every third key and every fifth query is zero.
        strided: Whether q, k and v are views of one fused buffer.
        initial: Which sequences start from a state. In decode, all with a slot do.
        in_place: Whether each sequence reads the slot that it writes.
        padding: The indices of the padding sequences.
        norm: A factor on q, k and v; its square is a factor on the initial state.
        seed: The random seed.
    """
    random = Random(seed)
    rows = sum(lengths)
    compute = compute_dtype(dtype)
    q = random.normal(rows, heads, key_size) * norm
    k = random.normal(rows, heads, key_size) * norm
    if zero_keys:
        k[::3] = 0
        q[::5] = 0
    v = random.normal(rows, heads, value_size) * norm
    g = log_decay(random, gate, heads)
    batch, slots, padded = state_batch(random, lengths, phase, initial, in_place, padding)
    state = random.normal(slots, heads, value_size, key_size) * norm**2
    state[unread(batch, slots)] = torch.nan
    tensors: dict[str, torch.Tensor | None] = {}
    tensors["q"], tensors["k"], tensors["v"] = views([q, k, v], dtype, strided)
    tensors["g"] = g.to(compute)
    tensors["state"] = state.to(state_dtype or compute)
    tensors["out"] = torch.full((rows, heads, value_size), torch.nan, dtype=dtype)
    options = {"scale": key_size**-0.5}
    sample = Sample(
        contract=CONTRACT, phase=phase, tensors=tensors, options=options, batch=batch, padding=padded
    )
    return sample.to(device)


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
    """Floating-point operations on tensor cores in chunks of 64."""
    key, value = axes["K"], axes["V"]
    return sum(case.lengths) * axes["H"] * (2 * 64 * (key + value) + 4 * key * value)


__all__ = ["SCENARIOS", "TIMED", "flops", "lightning_call"]
