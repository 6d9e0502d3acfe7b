"""Random calls of `short_conv`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

import torch

from switchrail.ops.batch import Phase
from switchrail.testing.inputs.call import Call
from switchrail.testing.inputs.common import Initial, Random, state_batch, unread, views


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
    strided: Literal["channels", "time", "none"] = "channels",
    initial: Initial = "some",
    in_place: bool = True,
    padding: Collection[int] = (),
    seed: int = 0,
) -> Call:
    """A random call of `short_conv`.

    Args:
        lengths: The number of rows of each sequence; in decode each is 1.
        phase: The phase.
        channels: C, the number of channels.
        width: W, the number of taps.
        dtype: The dtype of x, weight, bias and out.
        state_dtype: The dtype of the state; `dtype` when left out.
        device: Where the tensors are.
        bias: Whether there is a bias.
        activation: The argument of that name.
        strided: Whether x is a view of a wider buffer with contiguous channels, a view with contiguous time,
            or dense.
        initial: Which sequences start from a state; in decode all with a slot do.
        in_place: Whether a sequence reads the slot that it writes.
        padding: The indices of the sequences that are padding.
        seed: The seed.
    """
    random = Random(seed)
    rows = sum(lengths)
    x = random.normal(rows, channels)
    if strided == "time":
        x_view = x.to(dtype).T.contiguous().T
    else:
        (x_view,) = views([x], dtype, strided == "channels")
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
    call = Call(op="short_conv", phase=phase, tensors=tensors, options=options, batch=batch, padding=padded)
    return call.to(device)


__all__ = ["short_conv_call"]
