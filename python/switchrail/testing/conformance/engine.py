"""Checks of calls on an engine's memory, in the forms that the contracts' features allow."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from switchrail.ops.samples.engine import FORMS
from switchrail.ops.samples.scenario import Hardness
from switchrail.testing.compare import Error
from switchrail.testing.conformance.bounds import BOUNDS
from switchrail.testing.conformance.setting import PAGED, RECURRENT, Measured, Setting

VERIFIED = ("device_parents", "row_states")
"""The features of `FORMS` that only verification has."""


def on_engine_memory(setting: Setting, features: Collection[str]) -> Measured:
    """Checks calls that need the given features, with even gaps, and with odd gaps, which break alignment.

    If the pool has gaps, the smallest pages or states are checked, too, because an axis then has size 1.
    """
    arguments: dict[str, Any] = {}
    if setting.op in RECURRENT:
        arguments["initial"] = "all" if "row_states" in features else "some"
    if "mixed_weights" in features:
        arguments |= {"raw": "softplus", "beta_scale": 1.0}
    hardness: Hardness = "hard" if "mixed_weights" in features else "usual"
    worst = Measured(Error(0.0, 0.0), BOUNDS[hardness][setting.dtype])
    rounds: list[tuple[bool, dict[str, int]]] = [(False, {}), (True, {})]
    if "strided_pool" in features:
        rounds += [(True, sizes) for sizes in _smallest(setting)]
    for odd, sizes in rounds:
        call = setting.call((35, 3, 0, 17, 1), past=True, padding=(1,), seed=int(odd), **arguments, **sizes)
        for name, form in FORMS.items():
            if name in features:
                call = form(call, odd)
        needed = call.contract.needed_features(call.phase, call.made, call.batch)
        missing = (set(features) if not sizes else {"strided_pool"}) - needed
        assert not missing, f"the call does not need {', '.join(sorted(missing))}"
        worst |= setting.verify(call, hardness)
    return worst


def _smallest(setting: Setting) -> list[dict[str, int]]:
    """The generator's arguments for pages of one token, or for states of one column.

    Empty for other ops with a state, and if the backend claims page sizes without 1.
    """
    if setting.op == "short_conv":
        return [{"width": 2}]
    claimed = setting.subject.claims("page_sizes")
    return [{"page": 1}] if setting.op in PAGED and (not claimed or 1 in claimed) else []


def engine_memory(setting: Setting) -> Measured | None:
    """Checks all claimed forms of an engine's memory at once."""
    features = set(FORMS) & setting.subject.features
    if setting.phase != "verify" or (setting.op in PAGED and "trees" not in setting.subject.features):
        features -= set(VERIFIED)
    return on_engine_memory(setting, features) if features else None
