"""Checks of calls on the memory of an engine, in the forms that features of the contracts allow."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from switchrail.ops.samples.engine import FORMS
from switchrail.ops.samples.scenario import Hardness
from switchrail.testing.compare import Error
from switchrail.testing.conformance.bounds import BOUNDS
from switchrail.testing.conformance.setting import PAGED, RECURRENT, Measured, Setting

VERIFIED = ("device_parents", "row_states")
"""The features of verification only."""


def on_engine_memory(setting: Setting, features: Collection[str]) -> Measured:
    """Checks calls that need some features, with even gaps and with odd ones, which break alignment."""
    arguments: dict[str, Any] = {}
    if setting.op in RECURRENT:
        arguments["initial"] = "all" if "row_states" in features else "some"
    if "mixed_weights" in features:
        arguments |= {"raw": "softplus", "beta_scale": 1.0}
    hardness: Hardness = "hard" if "mixed_weights" in features else "usual"
    worst = Measured(Error(0.0, 0.0), BOUNDS[hardness][setting.dtype])
    for odd in (False, True):
        call = setting.call((35, 3, 0, 17, 1), past=True, padding=(1,), seed=int(odd), **arguments)
        for name, form in FORMS.items():
            if name in features:
                call = form(call, odd)
        needed = call.contract.needed_features(call.phase, call.made, call.batch)
        assert needed & set(features), f"the call needs none of {', '.join(features)}"
        worst |= setting.verify(call, hardness)
    return worst


def all_claimed(setting: Setting) -> Measured | None:
    """Checks calls that need all claimed features of memory at once."""
    features = set(FORMS) & setting.subject.features
    if setting.phase != "verify" or (setting.op in PAGED and "trees" not in setting.subject.features):
        features -= set(VERIFIED)
    return on_engine_memory(setting, features) if features else None


__all__ = ["VERIFIED", "all_claimed", "on_engine_memory"]
