"""Random samples of `short_conv`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch

from switchrail.ops.samples.draws import StateDraws
from switchrail.ops.samples.random import views
from switchrail.ops.samples.sample import Sample
from switchrail.ops.samples.scenario import Scenario, timed
from switchrail.ops.short_conv import DEFINITION
from switchrail.ops.short_conv.contract import CONTRACT


def short_conv_call(
    lengths: Sequence[int],
    *,
    channels: int = 24,
    width: int = 4,
    bias: bool = False,
    activation: Literal["silu"] | None = "silu",
    **shared: Any,
) -> Sample:
    """Makes a random sample of `short_conv`.

    Args:
        lengths: Rows per sequence; 1 each in decode.
        channels: C, the number of channels.
        width: W, the number of taps.
        bias: Whether to pass a bias.
        activation: The `activation` option.
        **shared: The arguments of `StateDraws`. `strided` may also be "time", for an x whose time axis is
            contiguous. `norm` has no effect. The default of `state_dtype` is the inputs' dtype.
    """
    draws = StateDraws(contract=CONTRACT, lengths=lengths, **shared)
    x = draws.rows(channels)
    if draws.strided == "time":
        x_view = x.to(draws.dtype).T.contiguous().T
    else:
        (x_view,) = views([x], draws.dtype, draws.strided)
    tensors: dict[str, torch.Tensor | None] = {
        "x": x_view,
        "weight": (draws.random.normal(channels, width) * width**-0.5).to(draws.dtype),
        "state": draws.pool(width - 1, channels, dtype=draws.dtype).transpose(1, 2),
        "bias": draws.random.normal(channels).to(draws.dtype) if bias else None,
        "out": draws.unset(channels),
    }
    return draws.sample(tensors, activation=activation)


SCENARIOS = (
    Scenario(name="bias", about="a bias", arguments={"bias": True}),
    Scenario(name="linear", about="no activation", arguments={"activation": None}),
    Scenario(
        name="time-innermost", about="inputs with a contiguous time axis", arguments={"strided": "time"}
    ),
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
