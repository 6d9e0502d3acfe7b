"""The table of all checks: the scenarios, and checks of other properties."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from switchrail._core import OPS
from switchrail.ops.catalog import DEFINITIONS
from switchrail.ops.samples.engine import FORMS
from switchrail.ops.samples.scenario import Scenario
from switchrail.testing.conformance import behaviour, engine, host, memory, prefix, special
from switchrail.testing.conformance.one_layer import calls_of_one_layer
from switchrail.testing.conformance.refusals import refusals
from switchrail.testing.conformance.scenarios import SCENARIOS
from switchrail.testing.conformance.setting import (
    DELTA,
    GATED,
    PAGED,
    RECURRENT,
    Measured,
    Setting,
    head_size_pair,
)

EVERY_PHASE = ("prefill", "decode", "verify")


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
        serves: Other phases that the backend must serve, too.
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
    serves: tuple[str, ...] = ()
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


def head_size_check(size: tuple[int, int], *, quick: bool) -> Check:
    """A check of one head size, given as (size of q and k, size of v)."""

    def run(setting: Setting) -> Measured:
        return setting.verify(setting.call((66, 5, 1), **setting.of_head_size(size)))

    name = f"head-size-{size[0]}" if size[0] == size[1] else f"head-size-{size[0]}-{size[1]}"
    return Check(name=name, about=f"heads of {size[0]} and {size[1]}", run=run, quick=quick)


def page_size_check(size: int) -> Check:
    """A check of one page size, in tokens."""

    def run(setting: Setting) -> Measured:
        return setting.verify(setting.call((40, 1, 17, 2), past=True, page=size))

    return Check(name=f"page-{size}", about=f"{size} tokens a page", run=run)


def state_dtype_check(name: str) -> Check:
    """A check of a state whose dtype differs from that of the computation."""

    def run(setting: Setting) -> Measured:
        import torch

        dtype = getattr(torch, name)
        rough = dtype.itemsize == 2
        call = setting.call((70, 9, 1), state_dtype=dtype, initial="all")
        return setting.verify(call, "bfloat16_state" if rough else "usual")

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
    Check(
        name="time-innermost",
        about="inputs such as gates with time innermost in memory",
        run=memory.time_innermost,
        ops=GATED,
    ),
    Check(
        name="following-slots",
        about="slots with consecutive numbers",
        run=behaviour.following_slots,
        ops=RECURRENT,
    ),
    Check(
        name="untouched-slots",
        about="slots that no sequence writes keep their contents",
        run=special.untouched_slots,
        ops=RECURRENT,
    ),
    Check(
        name="forgetting",
        about="every eighth decay is 0, and the others are near 1",
        run=special.forgetting,
        ops=DELTA,
        core=True,
    ),
    Check(
        name="as-given",
        about="queries and keys are used unnormalised without qk_l2norm",
        run=special.as_given,
        ops=DELTA,
    ),
    Check(
        name="checkpoints",
        about="intermediate states are stored in the given slots",
        run=behaviour.checkpoints,
        ops=RECURRENT,
        phases=("prefill",),
        features=("checkpoints",),
    ),
    *(
        Check(
            name="trees",
            about="drafted rows form trees",
            run=behaviour.trees,
            ops=ops,
            phases=("verify",),
            features=features,
            core=True,
        )
        for ops, features in ((RECURRENT, ()), (PAGED, ("trees",)))
    ),
    Check(name="shared-pages", about="sequences that share pages", run=behaviour.shared_pages, ops=PAGED),
    Check(
        name="neighbours",
        about="a sequence of NaN changes no bit of any other",
        run=behaviour.neighbours,
        core=True,
    ),
    Check(
        name="company",
        about="a sequence has the same result alone as in a batch",
        run=behaviour.company,
    ),
    Check(
        name="again",
        about="a repeated call gives the same bits, even with one plan for both",
        run=behaviour.again,
    ),
    Check(
        name="one-layer",
        about="a layer that was called before has the results of a new layer",
        run=calls_of_one_layer,
    ),
    Check(
        name="in-chunks",
        about="a prefill in chunks of any size gives the result of one pass",
        run=behaviour.in_chunks,
        phases=("prefill",),
    ),
    Check(
        name="token-by-token",
        about="decoding token by token gives the result of one prefill",
        run=behaviour.token_by_token,
        phases=("decode",),
    ),
    Check(
        name="growth",
        about="the error does not grow with the length of a sequence",
        run=behaviour.growth,
        ops=RECURRENT,
        phases=("prefill",),
    ),
    Check(
        name="merged",
        about="attention over parts of a cache, merged by log-sum-exp, equals that over the whole",
        run=behaviour.merged,
        ops=PAGED,
        features=("lse",),
    ),
    Check(
        name="chunked-prefix",
        about="a prefill planned with and without ragged keys and chunks of the prefix has one result",
        run=prefix.chunked_prefix,
        phases=("prefill",),
        features=("plan_chunked_prefix",),
    ),
    *map(_of_feature, FORMS),
    Check(
        name="engine-device-trees",
        about="drafted rows form trees, and only the device has their parents",
        run=partial(engine.on_engine_memory, features=("device_parents",)),
        ops=PAGED,
        phases=("verify",),
        features=("device_parents", "trees"),
    ),
    Check(
        name="engine-memory",
        about="all claimed forms of an engine's memory at once",
        run=engine.all_claimed,
        core=True,
    ),
    Check(name="guards", about="nothing is written beside the outputs and the states", run=memory.guards),
    Check(
        name="far-slots", about="slots or pages more than 2^31 elements into their pool", run=memory.far_slots
    ),
    Check(name="far-rows", about="rows more than 2^31 elements apart", run=memory.far_rows),
    Check(
        name="refusals",
        about="inputs that break the contract are refused, and nothing is written",
        run=refusals,
    ),
    Check(
        name="no-waiting",
        about="the host never waits for the device",
        run=host.no_waiting,
        device="cuda",
    ),
    Check(
        name="another-stream",
        about="a stream that is not the default one",
        run=host.another_stream,
        device="cuda",
    ),
    Check(
        name="another-device",
        about="a device that is not the current one",
        run=host.another_device,
        device="cuda",
    ),
    Check(
        name="graph",
        about="a captured call is replayed with other numbers, lengths and slots",
        run=host.graph,
        phases=("decode",),
        features=("cuda_graph",),
        device="cuda",
    ),
)

__all__ = ["CHECKS", "Check", "head_size_check", "head_size_pair", "page_size_check", "state_dtype_check"]
