"""Makes backends from registrations: imports the class, checks it, constructs it."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from switchrail import config
from switchrail._core import PAGED_OPS, PHASES
from switchrail.checks import shown
from switchrail.errors import BackendImportError
from switchrail.nearest import nearest
from switchrail.ops.steps import declared, step_problems
from switchrail.overrides import check_overrides

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from switchrail._core import Registration
    from switchrail.ops.backend import AnyBackend


@dataclass(frozen=True, slots=True)
class Implementation:
    """The class of a registration's backend, and the type of its configuration.

    Attributes:
        target: The class, or its path `module:Qualified.name`, which `build` imports.
        config_type: The type of the backend's configuration; None if it has none.
    """

    target: type[Any] | str
    config_type: type[Any] | None

    def build(self, registration: Registration) -> AnyBackend:
        """Constructs the backend with its current configuration.

        Raises:
            BackendImportError: The path doesn't lead to a backend for the registration's op and phases.
            ConfigError: The configuration is invalid.
        """
        name, op, path = registration.name, registration.op, registration.path
        try:
            found = _import(name, op, path) if isinstance(self.target, str) else self.target
            features = registration.capabilities["features"]
            cls = check_class(found, name, op, path, registration.phases, features)
        except BackendImportError as error:
            raise _with_ways_out(error, registration) from error.__cause__
        values = None
        if self.config_type is not None:
            where = f"configuration of {op} backend {name!r}"
            values = config.validate(self.config_type, registration.effective_config, where)
        backend = cls(values)
        steps = backend.optional_steps()  # a wrapper (`switchrail.ops.delegate`) has those of its parts
        for step in declared(features):
            if step not in steps:
                problem = f"its registration has the feature {step!r}, but none of its parts has this step"
                raise _with_ways_out(_misfit(name, op, path, problem), registration)
        for step in steps if _is_wrapper(cls) else ():
            if step not in features:
                problem = f"one of its parts has the step {step!r}, but its registration has no such feature"
                raise _with_ways_out(_misfit(name, op, path, problem), registration)
        return backend


def check_class(
    cls: object, name: str, op: str, path: str, phases: Iterable[str], features: Collection[str]
) -> type[AnyBackend]:
    """Checks that a class is a backend for an op, has the needed methods, and matches its base class.

    The class's optional steps must match the features of its registration.

    Raises:
        BackendImportError: The class fails one of these checks.
    """
    from switchrail.ops import backend

    if not isinstance(cls, type):
        raise _misfit(
            name, op, path, f"it is {cls!r}; valid: a class derived from switchrail.ops.backend.Backend"
        )
    if not issubclass(cls, backend.Backend):
        raise _misfit(name, op, path, "it isn't derived from switchrail.ops.backend.Backend")
    found = getattr(cls, "op", None)
    if found != op:
        raise _misfit(name, op, path, f"it is a backend for {found!r}; valid: a class whose `op` is {op!r}")
    old = _phases_without_run(cls)
    if old:
        raise _misfit(name, op, path, old)
    if cls.run is backend.Backend.run:
        raise _misfit(name, op, path, "it has no method 'run'")
    if "verify" in phases and op not in PAGED_OPS and cls.commit is backend.Backend.commit:
        raise _misfit(name, op, path, "it is registered for verify but has no method 'commit'")
    problems = [problem.text for problem in check_overrides(cls, backend.Backend)]
    problems += step_problems(cls, features, is_wrapper=_is_wrapper(cls))
    if problems:
        raise _misfit(name, op, path, "; ".join(problems))
    return cls


def _is_wrapper(cls: type[AnyBackend]) -> bool:
    """Whether the class is a backend that has its parts' optional steps; see `switchrail.ops.delegate`."""
    from switchrail.ops.backend import Backend

    return cls.optional_steps is not Backend.optional_steps


def _phases_without_run(cls: type[AnyBackend]) -> str:
    """A message if a class has methods named like phases (the old interface) in place of `run`; else ""."""
    mine = cls.__mro__[: next(i for i, one in enumerate(cls.__mro__) if "run" in vars(one))]
    old = [phase for phase in PHASES if any(callable(vars(one).get(phase)) for one in mine)]
    if not old:
        return ""
    found = " and ".join(map(repr, old))
    return (
        f"it has {found}, which Switchrail no longer calls; valid: one method for all phases, "
        "`run(call, batch, plan)`, where `call` has the tensors and `call.layer` the pools, weights and "
        "options; `plan(phase, batch, bounds)` can store the phase in the plan, and in verify `run` returns "
        "the `record` for `commit(call, batch, plan, record, accepted)`"
    )


def _with_ways_out(error: BackendImportError, registration: Registration) -> BackendImportError:
    """The error with the backend's origin and suggestions added."""
    ways = [f"choose another backend with {registration.op}=NAME"]
    if plugin := registration.to_dict()["origin"].get("plugin"):
        ways.append(f"set SWITCHRAIL_PLUGINS to the plugins that may be loaded, without {plugin!r}")
    return BackendImportError(
        f"{error}; it was registered by {registration.origin}; to continue without it, {', or '.join(ways)}",
        **error.fields,
        problem=error.message,
    )


def _import(name: str, op: str, path: str) -> Any:
    module_name, _, qualified_name = path.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if not f"{module_name}.".startswith(f"{missing}."):  # the module exists, but imports a missing module
            missing = None
        problem = f"importing {module_name!r} failed: {shown(error, None)}"
        raise _error(name, op, path, problem, missing=missing) from error
    for part in qualified_name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            _, hint = nearest(part, map(str, vars(found)) if hasattr(found, "__dict__") else ())
            problem = f"{found!r} has no attribute {part!r}{hint}"
            raise _error(name, op, path, problem, missing=part) from error
    return found


def _misfit(name: str, op: str, path: str, problem: str) -> BackendImportError:
    """The error for an imported class that does not fit its registration."""
    message = f"{op} backend {name!r} ({path!r}) can't be used: {problem}"
    return BackendImportError(message, backend=name, op=op, path=path, missing=None)


def _error(name: str, op: str, path: str, problem: str, *, missing: str | None) -> BackendImportError:
    message = f"{op} backend {name!r} can't be imported from {path!r}: {problem}"
    return BackendImportError(message, backend=name, op=op, path=path, missing=missing)
