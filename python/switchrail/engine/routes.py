"""Plans the routes that an engine needs, for the engine itself and for `explain`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import switchrail
from switchrail._core import LINEAR_OPS, OPS, PAGED_OPS, PHASES
from switchrail.errors import (
    BackendUnfitError,
    ConfigError,
    LayoutError,
    PlatformError,
    PreferenceError,
    UnknownBackendError,
)
from switchrail.policy import choices_of, denials_of, read_policy, with_denials

if TYPE_CHECKING:
    from pathlib import Path

    from switchrail._core import Layout, RoutePlan
    from switchrail.engine.options import EngineOptions
    from switchrail.platforms import Platform
    from switchrail.runtime import Runtime

_log = logging.getLogger("switchrail")

PREFILL_STEP: Final = "plan_chunked_prefix"
"""The optional step of MLA backends that plans a prefill's attention to expanded keys and values."""


def layout_of(runtime: Runtime, checkpoint: Path, read_config: Callable[[], Mapping[str, Any]]) -> Layout:
    """The layout of a checkpoint, from the core or from a registered family of its model type.

    Args:
        runtime: The runtime with the registered families.
        checkpoint: The folder, or its `config.json`.
        read_config: Returns the contents of `config.json`.

    Raises:
        BackendImportError: The path of the family's function does not exist.
        LayoutError: See `Layout.from_config`.
    """
    try:
        return switchrail.Layout.from_config(checkpoint)
    except LayoutError as error:
        config = read_config()
        kinds = runtime.kinds_of(config)
        if kinds is None:
            if str(checkpoint) not in error.message:
                error.extend(f"in {checkpoint}")
            raise
        return switchrail.Layout.from_kinds(str(config["model_type"]), kinds)


def plan_routes(
    runtime: Runtime,
    layout: Layout,
    *,
    platform: Platform,
    dtype: str,
    page_size: int,
    state_dtype: str = "float32",
    preferences: Mapping[str, str] | None,
    phases: Iterable[str] = ("prefill", "decode"),
    features: Mapping[str, Iterable[str]] | None = None,
) -> RoutePlan:
    """Plan the routes of a model that uses an engine's pools; see `Runtime.plan`.

    The platform's default backends apply where the user has neither chosen a backend nor denied the default.
    If a default backend can't serve, the error says that the platform chose it. `features` lists, by op,
    features that the backends must have.

    Raises:
        PreferenceError: A choice has no effect, since the model doesn't run its op in any of `phases`.
        SwitchrailError: As in `Runtime.plan`.
    """
    phases = tuple(phases)
    chosen = dict(preferences or {})
    decided = read_policy().completed(chosen)
    choices, denials = choices_of(decided), denials_of(decided)
    ops = {op for layer in layout.layers for op in layer.ops}
    _check_effect(chosen, layout.model, ops, phases)
    defaults = {
        f"{op}.{phase}": backend
        for op in sorted(ops)
        for phase in phases
        if not any(key in choices for key in _keys(op, phase))
        and (backend := _default_backend(platform, op, phase)) is not None
        and not any(f"!{backend}" in denials.get(key, ()) for key in _keys(op, phase))
    }
    if defaults:
        listed = " ".join(f"{key}={name}" for key, name in defaults.items())
        _log.debug("defaults of platform %s: %s", platform.kind, listed)
    try:
        return runtime.plan(
            layout,
            device=platform,
            dtype=dtype,
            state_dtype=state_dtype,
            page_size=page_size,
            state_layouts=dict.fromkeys(LINEAR_OPS, "VK"),
            features=features,
            preferences=with_denials(defaults | choices_of(chosen), chosen),
            phases=phases,
        )
    except (BackendUnfitError, UnknownBackendError) as error:
        key = error.fields.get("key")
        if key not in defaults:
            raise
        raise type(error)(
            f"{error}\n{key}={defaults[key]} is a default of platform {platform.kind}, and not your choice; "
            f"choosing a backend for {key} overrides it",
            **error.fields,
            platform=platform.kind,
        ) from error


def choices_in(preferences: Mapping[str, str] | None, phase: str) -> dict[str, str]:
    """The chosen backends that apply to a phase."""
    return {key: name for key, name in (preferences or {}).items() if key.partition(".")[2] in ("", phase)}


def with_trees(
    plan: Callable[..., RoutePlan],
    layout: Layout,
    backends: Mapping[str, str] | None,
) -> dict[str, str]:
    """The chosen backends, completed by backends that support trees for verifications of paged ops.

    Raises:
        NoBackendError: A paged op has no backend that supports trees.
        BackendUnfitError: A chosen backend doesn't support trees.
    """
    chosen = dict(backends or {})
    ops = {op for layer in layout.layers for op in layer.ops}
    found = plan(
        preferences=choices_in(backends, "verify"),
        phases=("verify",),
        features={op: ("trees",) for op in ops if op in PAGED_OPS},
    )
    for _, op, phase, name in found.table:
        if op in PAGED_OPS and op not in chosen:
            chosen.setdefault(f"{op}.{phase}", name)
    return chosen


def check_prefill_steps(routes: RoutePlan, options: EngineOptions) -> None:
    """Check that the backends of an MLA prefill have `PREFILL_STEP`, if an option requires it.

    Raises:
        ConfigError: One of these backends lacks the step.
    """
    asked = [name for name in ("ragged_prefill", "chunked_prefix") if getattr(options, name)]
    for decision in routes.decisions if asked else ():
        if (decision.op, decision.phase) != ("mla", "prefill"):
            continue
        serving = {name for name, _ in decision.serving}
        for backend in routes.backends:
            lacks = PREFILL_STEP not in backend.capabilities["features"]
            if lacks and backend.op == "mla" and backend.name in serving and "prefill" in backend.phases:
                valid = f"another backend for mla.prefill, or {asked[0]}=None to do without"
                raise ConfigError(
                    f"EngineOptions: {asked[0]} is True, but mla.prefill={backend.name} lacks the step "
                    f"{PREFILL_STEP}; valid: {valid}",
                    problems={asked[0]: f"{backend.name} lacks {PREFILL_STEP}"},
                    valid={asked[0]: valid},
                )


def _default_backend(platform: Platform, op: str, phase: str) -> str | None:
    backend = platform.serving.default_backend(op, phase)
    if backend is not None and not isinstance(backend, str):
        raise PlatformError(
            f"platform {platform.kind!r} gives {backend!r} for default_backend({op!r}, {phase!r}); valid: "
            "the name of a backend, or None",
            found=backend,
        )
    return backend


def _check_effect(chosen: Mapping[str, str], model: str, ops: set[str], phases: Sequence[str]) -> None:
    known = {key for op in OPS for phase in PHASES for key in _keys(op, phase)}
    valid = tuple(dict.fromkeys(key for op in sorted(ops) for phase in phases for key in _keys(op, phase)))
    for key, name in chosen.items():
        if key in known and key not in valid:
            raise PreferenceError(
                f"{key}={name} would have no effect: {model} runs {', '.join(sorted(ops))}, in "
                f"{' and '.join(phases)}; valid: {', '.join(valid)}",
                found=key,
                valid=valid,
                nearest=(),
            )


def _keys(op: str, phase: str) -> tuple[str, ...]:
    """The preference keys that apply to an op in a phase."""
    family = ("linear", f"linear.{phase}") if op in LINEAR_OPS else ()
    return (op, f"{op}.{phase}", *family)
