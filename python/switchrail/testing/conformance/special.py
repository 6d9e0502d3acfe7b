"""Calls with a few numbers put in by hand, where the generators' own would hide a mistake."""

from __future__ import annotations

import torch

from switchrail.testing.conformance.setting import Measured, Setting


def untouched_slots(setting: Setting) -> Measured:
    """Slots that no sequence writes keep what they hold; NaN would hide what is added."""
    call = setting.call((70, 9, 0, 33), padding=(1,))
    state = call.state
    state[state.isnan()] = 0.5
    return setting.verify(call)


def forgetting(setting: Setting) -> Measured:
    """Every eighth decay is 0, all others are near 1, which a sum of their logs must not lose."""
    call = setting.call((100, 33), gate="near_one", initial="all")
    gate = call.tensors["g"]
    assert gate is not None
    gate[::8] = -torch.inf
    return setting.verify(call)


def as_given(setting: Setting) -> Measured:
    """Without `qk_l2norm`, queries and keys count as they are."""
    call = setting.call((70, 9), qk_l2norm=False)
    for name, factor in (("q", 3.0), ("k", 0.75)):
        tensor = call.tensors[name]
        assert tensor is not None
        tensor *= factor
    return setting.verify(call)


__all__ = ["as_given", "forgetting", "untouched_slots"]
