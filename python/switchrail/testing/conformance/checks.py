"""The table of all checks: the scenarios, and checks of other properties."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from switchrail._core import OPS
from switchrail.ops.batch import Phase
from switchrail.ops.catalog import DEFINITIONS
from switchrail.ops.samples.engine import FORMS
from switchrail.ops.samples.scenario import Scenario
from switchrail.testing.conformance import behaviour, engine, host, memory, prefix, special
from switchrail.testing.conformance.deferred import deferred_commit
from switchrail.testing.conformance.one_layer import one_layer
from switchrail.testing.conformance.refusals import refusals
from switchrail.testing.conformance.scenarios import SCENARIOS
from switchrail.testing.conformance.setting import DELTA, GATED, PAGED, RECURRENT, Measured, Setting

EVERY_PHASE: tuple[Phase, ...] = ("prefill", "decode", "verify")


@dataclass(frozen=True, kw_only=True)
class Check:
    """One property to check.

    Attributes:
        name: The check's name.
        about: The property in words.
        run: Checks the property; raises an AssertionError if it does not hold.
        ops: The ops that the check applies to.
        phases: The phases that the check applies to.
        features: The features that the backend must claim.
        device: The required kind of device; None means any.
        core: Whether a quick run includes it in every dtype, not only in the first.
        quick: Whether a quick run includes it.
        traits: Properties of the check's calls, such as `gate=one`.
    """

    name: str
    about: str
    run: Callable[[Setting], Measured | None]
    ops: tuple[str, ...] = OPS
    phases: tuple[str, ...] = EVERY_PHASE
    features: tuple[str, ...] = ()
    device: str | None = None
    core: bool = False
    quick: bool = True
    traits: tuple[str, ...] = ()


def _of_scenario(scenario: Scenario) -> Check:
    def run(setting: Setting) -> Measured:
        lengths = rows[setting.phase]
        assert lengths is not None
        return setting.verify(
            setting.call(lengths, past=scenario.past or None, **scenario.arguments), scenario.hardness
        )

    rows = {
        "prefill": scenario.prefill,
        "decode": None if scenario.decode is None else (1,) * scenario.decode,
        "verify": scenario.verify,
    }
    return Check(
        name=scenario.name,
        about=scenario.about,
        run=run,
        ops=scenario.ops,
        phases=tuple(phase for phase, lengths in rows.items() if lengths is not None),
        features=scenario.features,
        core=scenario.core,
        quick=scenario.quick,
        traits=tuple(f"{name}={value}" for name, value in scenario.arguments.items()),
    )


def _of(run: Callable[[Setting], Measured | None], **restrictions: Any) -> Check:
    """A check named after its function; `about` is the first sentence of the function's docstring."""
    about = (run.__doc__ or "").partition("\n")[0].removeprefix("Checks ").removeprefix("that ")
    name = run.__name__.replace("_", "-")
    return Check(name=name, about=about.partition(". ")[0].rstrip("."), run=run, **restrictions)


def head_size_check(size: tuple[int, int], *, quick: bool) -> Check:
    """A check of one head size, given as (size of q and k, size of v)."""

    def run(setting: Setting) -> Measured:
        return setting.verify(setting.call((66, 5, 1), **setting.of_head_size(size)))

    name = f"head-size-{size[0]}" if size[0] == size[1] else f"head-size-{size[0]}-{size[1]}"
    return Check(name=name, about=f"head size {size[0]} of q and k, {size[1]} of v", run=run, quick=quick)


def page_size_check(size: int) -> Check:
    """A check of one page size, in tokens."""

    def run(setting: Setting) -> Measured:
        return setting.verify(setting.call((40, 1, 17, 2), past=True, page=size))

    return Check(name=f"page-{size}", about=f"pages of {size} tokens", run=run)


def state_dtype_check(name: str) -> Check:
    """A check of a state in a 16-bit dtype."""

    def run(setting: Setting) -> Measured:
        call = setting.call((70, 9, 1), state_dtype=getattr(torch, name), initial="all")
        return setting.verify(call, "bfloat16_state")

    return Check(name=f"state-{name}", about=f"a state in {name}", run=run)


def _of_feature(feature: str) -> Check:
    """A check of one form of memory that a feature allows engines to use."""
    ops = tuple(op for op, definition in DEFINITIONS.items() if feature in definition.claims["features"])
    if feature == "device_parents":
        ops = RECURRENT
    return Check(
        name=f"engine-{feature.replace('_', '-')}",
        about=f"an engine's memory: {' '.join((FORMS[feature].__doc__ or '').split())}",
        run=partial(engine.on_engine_memory, features=(feature,)),
        ops=ops,
        phases=("verify",) if feature in engine.VERIFIED else EVERY_PHASE,
        features=(feature, "raw_gates") if feature == "mixed_weights" else (feature,),
    )


CHECKS: tuple[Check, ...] = (
    *map(_of_scenario, SCENARIOS),
    _of(memory.time_innermost, ops=GATED),
    _of(behaviour.following_slots, ops=RECURRENT),
    _of(special.untouched_slots, ops=RECURRENT),
    _of(special.forgetting, ops=DELTA, core=True),
    _of(special.as_given, ops=DELTA),
    _of(behaviour.checkpoints, ops=RECURRENT, phases=("prefill",), features=("checkpoints",)),
    _of(deferred_commit, ops=GATED, phases=("verify",), features=("deferred_commit",)),
    _of(behaviour.trees, ops=RECURRENT, phases=("verify",), core=True),
    _of(behaviour.trees, ops=PAGED, phases=("verify",), features=("trees",), core=True),
    _of(behaviour.shared_pages, ops=PAGED),
    _of(behaviour.neighbours, core=True),
    _of(behaviour.company),
    _of(behaviour.again),
    _of(one_layer),
    _of(behaviour.in_chunks, phases=("prefill",)),
    _of(behaviour.token_by_token, phases=("decode",)),
    _of(behaviour.growth, ops=RECURRENT, phases=("prefill",)),
    _of(behaviour.merged, ops=PAGED, features=("lse",)),
    _of(prefix.chunked_prefix, phases=("prefill",), features=("plan_chunked_prefix",)),
    *map(_of_feature, FORMS),
    Check(
        name="engine-device-trees",
        about="drafted rows form trees, and only the device has their parents",
        run=partial(engine.on_engine_memory, features=("device_parents",)),
        ops=PAGED,
        phases=("verify",),
        features=("device_parents", "trees"),
    ),
    _of(engine.engine_memory, core=True),
    _of(memory.guards),
    _of(memory.far_slots),
    _of(memory.far_rows),
    _of(refusals),
    _of(host.no_waiting, device="cuda"),
    _of(host.another_stream, device="cuda"),
    _of(host.another_device, device="cuda"),
    _of(host.graph, phases=("decode",), features=("cuda_graph",), device="cuda"),
)

__all__ = ["CHECKS", "EVERY_PHASE", "Check", "head_size_check", "page_size_check", "state_dtype_check"]
