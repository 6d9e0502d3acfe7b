"""The optional steps of backends, and how a wrapper passes them on to its parts.

A backend declares an optional step as a feature of its registration, and has a method of that name. The
method takes some or all of the step's arguments, by name. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from inspect import Parameter, signature
from types import MappingProxyType
from typing import Any, Final

from switchrail._core import OPS, PAGED_OPS
from switchrail.errors import ArgumentError, DispatchError
from switchrail.nearest import nearest, unknown

Call = Callable[..., Any]
"""A function or method that runs a step. Its arguments are passed by name."""


@dataclass(frozen=True, slots=True)
class Step:
    """An optional step of backends.

    Attributes:
        name: The name of the step's feature and of the method that runs the step.
        arguments: The arguments that a method may take.
        about: What the step does.
        ops: The ops whose backends may have the step.
        phase: The phase whose plans the step completes; None for a step that runs before any plan is made.
        flags: The arguments that are flags, each of which permits something if it is True. A method that
            doesn't take a flag is called only if the flag is True.
    """

    name: str
    arguments: tuple[str, ...]
    about: str
    ops: tuple[str, ...] = OPS
    phase: str | None = None
    flags: tuple[str, ...] = ()

    @property
    def is_planned(self) -> bool:
        """Whether the step completes a plan."""
        return self.phase is not None


STEPS: Final[Mapping[str, Step]] = MappingProxyType(
    {
        step.name: step
        for step in (
            Step(
                "plan_chunked_prefix",
                ("plan", "batch", "ragged", "chunked"),
                "plans attention to expanded keys and values: ragged for the new tokens, in chunks for the "
                "cached prefix",
                ops=("mla",),
                phase="prefill",
                flags=("ragged", "chunked"),
            ),
            Step(
                "fill_verify_buffers",
                ("plan", "batch"),
                "fills buffers that depend on the drafted tokens, such as a tree's mask",
                phase="verify",
            ),
            Step(
                "init_graph_state",
                ("bounds",),
                "allocates the state of captured decodes, once for the largest of them",
            ),
            Step(
                "graph_fill_value",
                (),
                "returns the number of cached tokens that a captured decode gives its padding sequences, "
                "instead of 0",
                ops=PAGED_OPS,
            ),
        )
    }
)
"""The optional steps by name."""


def taken(step: Step, method: Call) -> tuple[str, ...]:
    """The arguments of a step that a method takes.

    Raises:
        TypeError: The method has an argument that the step lacks, or that can't be passed by name.
    """
    names: list[str] = []
    for parameter in signature(method).parameters.values():
        if parameter.kind is Parameter.VAR_KEYWORD:
            return step.arguments
        if parameter.kind in (Parameter.POSITIONAL_ONLY, Parameter.VAR_POSITIONAL):
            raise TypeError(
                f"{step.name} takes {parameter.name!r}, which can't be passed by name; valid: {_valid(step)}"
            )
        if parameter.name not in step.arguments:
            near = nearest(parameter.name, step.arguments)[1]
            raise TypeError(f"{step.name} takes {parameter.name!r}{near}; valid: {_valid(step)}")
        names.append(parameter.name)
    return tuple(names)


def _valid(step: Step) -> str:
    return f"any of {', '.join(step.arguments)}" if step.arguments else "no arguments"


def adapted_step(step: Step, method: Call) -> Call:
    """Wrap a method that takes some of a step's arguments, so that all arguments can be passed."""
    names = taken(step, method)
    unknown_flags = [flag for flag in step.flags if flag not in names]

    def call(**arguments: Any) -> Any:
        if all(arguments[flag] for flag in unknown_flags):
            return method(**{name: arguments[name] for name in names})
        return None

    return call


def own_steps(backend: object) -> dict[str, Call]:
    """The steps for which a backend has a method."""
    found = {name: getattr(backend, name, None) for name in STEPS}
    return {name: adapted_step(STEPS[name], method) for name, method in found.items() if callable(method)}


def declared(features: Collection[str]) -> tuple[str, ...]:
    """The features of a registration that are steps."""
    return tuple(name for name in STEPS if name in features)


def completing(backend: Any, features: Collection[str], phase: str) -> dict[str, Call]:
    """The declared steps of a backend that complete its plans of a phase."""
    names = [name for name in declared(features) if STEPS[name].phase == phase]
    if not names:
        return {}
    steps = backend.optional_steps()
    return {name: steps[name] for name in names}


def checked_flags(flags: Mapping[str, bool] | None) -> Mapping[str, bool]:
    """Check flags of steps, by name; None stands for no flags.

    Raises:
        ArgumentError: A flag is unknown.
    """
    valid = [flag for step in STEPS.values() for flag in step.flags]
    for name in flags or {}:
        if name not in valid:
            raise unknown(
                ArgumentError, f"no optional step has a flag {name!r}", name, valid, argument="flags"
            )
    return flags or {}


def complete(steps: Mapping[str, Call], plan: object, batch: object, flags: Mapping[str, bool]) -> None:
    """Run the steps that complete a plan. A flag that is not given is True."""
    for name, step in steps.items():
        step(plan=plan, batch=batch, **{flag: flags.get(flag, True) for flag in STEPS[name].flags})


def forwarded(
    parts: Mapping[str, Mapping[str, Call]], inside: Callable[[Any, Any], tuple[str, Any, Any]]
) -> dict[str, Call]:
    """The steps of a wrapper: every step that one of its parts has.

    A step that completes a plan runs on the part that made the plan, if that part has the step. Other steps
    run on all parts that have them, and their results must agree.

    Args:
        parts: The steps of each part, by the part's name.
        inside: The method `Wrapper.inside`.
    """

    def of_plan(name: str, /, plan: Any, batch: Any, **flags: Any) -> Any:
        part, own_plan, own_batch = inside(plan, batch)
        step = parts[part].get(name)
        return None if step is None else step(plan=own_plan, batch=own_batch, **flags)

    def of_all(name: str, /, **arguments: Any) -> Any:
        return agreed(
            name, {part: steps[name](**arguments) for part, steps in parts.items() if name in steps}
        )

    return {
        name: partial(of_plan if step.is_planned else of_all, name)
        for name, step in STEPS.items()
        if any(name in steps for steps in parts.values())
    }


def agreed(name: str, results: Mapping[str, Any]) -> Any:
    """The common result of a step that several backends have run; None if no backend has a result.

    Raises:
        DispatchError: The results differ.
    """
    found = {backend: result for backend, result in results.items() if result is not None}
    if len(set(found.values())) > 1:
        listed = ", ".join(f"{backend} returned {result!r}" for backend, result in found.items())
        raise DispatchError(f"{name}: {listed}; all backends must return the same value", found=found)
    return next(iter(found.values()), None)


def step_problems(cls: type[Any], claimed: Collection[str], *, is_wrapper: bool) -> list[str]:
    """Reasons why a class's steps don't match its registration.

    Args:
        cls: The class.
        claimed: The features of its registration.
        is_wrapper: Whether instances get steps from their parts, which the class does not know.
    """
    problems = []
    for name, step in STEPS.items():
        owner = next((one for one in cls.__mro__ if name in vars(one)), None)
        found: Any = None if owner is None else vars(owner)[name]
        method = found.__get__(object(), cls) if hasattr(found, "__get__") else found
        if owner is None or not callable(method):
            if name in claimed and not is_wrapper:
                near = nearest(name, (each for each in dir(cls) if not each.startswith("_")))[1]
                problems.append(
                    f"its registration has the feature {name!r}, but the class has no method {name!r}{near}"
                )
            continue
        try:
            taken(step, method)
        except TypeError as error:
            problems.append(f"{cls.__qualname__}.{error}")
        if name not in claimed and owner.__module__.partition(".")[0] != "switchrail":
            problems.append(
                f"the class has the method {name!r}, but its registration has no feature {name!r}"
            )
    return problems
