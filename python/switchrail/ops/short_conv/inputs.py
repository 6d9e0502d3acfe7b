"""Random samples of `short_conv`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

import torch

from switchrail.ops.batch import Phase
from switchrail.ops.samples.random import Initial, Random, state_batch, unread, views
from switchrail.ops.samples.sample import Sample
from switchrail.ops.samples.scenario import Scenario, timed
from switchrail.ops.short_conv import DEFINITION
from switchrail.ops.short_conv.contract import CONTRACT


def short_conv_call(
    lengths: Sequence[int],
    *,
    phase: Phase = "prefill",
    channels: int = 24,
    width: int = 4,
    dtype: torch.dtype = torch.float32,
    state_dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    bias: bool = False,
    activation: Literal["silu"] | None = "silu",
    strided: bool | Literal["time"] = True,
    initial: Initial = "some",
    in_place: bool = True,
    padding: Collection[int] = (),
    seed: int = 0,
) -> Sample:
    """Make a random sample of `short_conv`.

    Args:
        lengths: Rows per sequence; 1 each in decode.
        phase: The phase.
        channels: C, the number of channels.
        width: W, the number of taps.
        dtype: The dtype of x, weight, bias and out.
        state_dtype: The dtype of the state; `dtype` by default.
        device: The device of all tensors.
        bias: Whether to pass a bias.
        activation: The `activation` option.
        strided: Whether x is a view of a wider buffer; "time" makes the time axis contiguous instead.
        initial: Which sequences start from a state. In decode, all with a slot do.
        in_place: Whether each sequence reads the slot that it writes.
        padding: The indices of the padding sequences.
        seed: The random seed.
    """
    random = Random(seed)
    rows = sum(lengths)
    x = random.normal(rows, channels)
    if strided == "time":
        x_view = x.to(dtype).T.contiguous().T
    else:
        (x_view,) = views([x], dtype, strided)
    weight = random.normal(channels, width) * width**-0.5
    batch, slots, padded = state_batch(random, lengths, phase, initial, in_place, padding)
    state = random.normal(slots, width - 1, channels)
    state[unread(batch, slots)] = torch.nan
    tensors: dict[str, torch.Tensor | None] = {
        "x": x_view,
        "weight": weight.to(dtype),
        "bias": random.normal(channels).to(dtype) if bias else None,
        "state": state.to(state_dtype or dtype).transpose(1, 2),
        "out": torch.full((rows, channels), torch.nan, dtype=dtype),
    }
    options = {"activation": activation}
    sample = Sample(
        contract=CONTRACT, phase=phase, tensors=tensors, options=options, batch=batch, padding=padded
    )
    return sample.to(device)


SCENARIOS = (
    Scenario(name="bias", about="a bias", arguments={"bias": True}),
    Scenario(name="linear", about="no activation", arguments={"activation": None}),
    Scenario(name="time-innermost", about="time innermost", arguments={"strided": "time"}),
    *(Scenario(name=f"taps-{n}", about=f"{n} taps", arguments={"width": n}) for n in (2, 3, 7)),
    *(
        Scenario(name=f"channels-{n}", about=f"{n} channels", arguments={"channels": n})
        for n in (1, 100, 300)
    ),
)

(_SIZES,) = DEFINITION.sizes

TIMED = (
    *timed("prefill", _SIZES, (2048,), (32768,), (2048,) * 16),
    *timed("decode", _SIZES, (1,), (1,) * 32, (1,) * 256),
)

__all__ = ["SCENARIOS", "TIMED", "short_conv_call"]
