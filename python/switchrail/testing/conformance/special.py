"""Checks of calls in which some values are set by hand, because random values would hide a mistake."""

from __future__ import annotations

import torch

from switchrail.testing.conformance.setting import Measured, Setting


def untouched_slots(setting: Setting) -> Measured:
    """Checks that slots which no sequence writes keep their (finite) values. NaN would hide additions."""
    call = setting.call((70, 9, 0, 33), padding=(1,))
    state = call.state
    state[state.isnan()] = 0.5
    return setting.verify(call)


def forgetting(setting: Setting) -> Measured:
    """Checks decays of 0 among decays near 1. Sums of logs must not lose the digits of the decays near 1."""
    call = setting.call((100, 33), gate="near_one", initial="all")
    call.tensor("g")[::8] = -torch.inf
    return setting.verify(call)


def as_given(setting: Setting) -> Measured:
    """Checks that without `qk_l2norm`, queries and keys are used as given."""
    call = setting.call((70, 9), qk_l2norm=False)
    for name, factor in (("q", 3.0), ("k", 0.75)):
        call.tensor(name).mul_(factor)
    return setting.verify(call)
