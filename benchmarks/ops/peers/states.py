"""Wrappers for libraries whose functions take a dense tensor of states instead of slots."""

from __future__ import annotations

from collections.abc import Callable

import torch
from switchrail.ops.batch import StateBatch
from switchrail.testing.inputs import Sample

from benchmarks.ops.clock import Run

Step = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""Computes the output and the states after the batch from the states before it."""


def with_slots(call: Sample, step: Step) -> Run:
    """A function that runs the step on states that it reads from their slots and writes back."""
    batch, state = call.batch, call.state
    assert isinstance(batch, StateBatch)

    def run() -> torch.Tensor:
        with torch.inference_mode():
            out, states = step(state.index_select(0, batch.read_slots))
            state.index_copy_(0, batch.write_slots, states.to(state.dtype))
        return out.reshape(call.out.shape)

    return run


def on_own_states(call: Sample, step: Step) -> Run:
    """A function that runs the step on a separate copy of the states and does not write them back."""
    batch = call.batch
    assert isinstance(batch, StateBatch)
    states = call.state.index_select(0, batch.read_slots)

    def run() -> torch.Tensor:
        with torch.inference_mode():
            return step(states)[0].reshape(call.out.shape)

    return run


def normalised(tensor: torch.Tensor) -> torch.Tensor:
    """The rows divided by their L2 norms: x rsqrt(sum of squares + 1e-6), contiguous."""
    x = tensor.float()
    return (x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt()).to(tensor.dtype)
