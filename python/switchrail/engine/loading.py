"""Loads a model and plans its routes, for the engine's model and for its draft model."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from switchrail._core import PHASES, BoundPlan, Layout, RoutePlan
from switchrail.engine.capture import plan_capture
from switchrail.engine.checkpoint import Checkpoint, load
from switchrail.engine.memory import Needs, PoolClasses
from switchrail.engine.models.binding import find_mixers, read_shapes
from switchrail.engine.models.families import Family
from switchrail.engine.models.operations import prepare
from switchrail.engine.options import EngineOptions
from switchrail.engine.routes import check_prefill_steps, layout_of, plan_routes, with_trees
from switchrail.engine.runner import Capture, Runner
from switchrail.errors import ConfigError
from switchrail.platforms import Platform
from switchrail.runtime import Runtime

_log = logging.getLogger("switchrail")


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A loaded model with its routes.

    Attributes:
        checkpoint: The model.
        routes: The model's routes.
        bound: The routes, bound to their backends.
        make: Makes a runner for the model: `Runner` with the known arguments filled in.
        needs: Returns the memory of the model's pools, given the options of a runner.
        capture: Plans the captures of a runner, given its options; returns None if nothing is captured.
    """

    checkpoint: Checkpoint
    routes: RoutePlan
    bound: BoundPlan
    make: Callable[..., Runner]
    needs: Callable[[EngineOptions], Needs]
    capture: Callable[..., Capture | None]


def load_model(
    runtime: Runtime,
    path: Path,
    config: dict[str, Any],
    family: Family,
    *,
    platform: Platform,
    dtype: torch.dtype,
    options: EngineOptions,
    max_length: int | None,
    backends: Mapping[str, str] | None = None,
    are_trees: bool,
) -> LoadedModel:
    """Plan the routes from the model's own layout, log the backends' names, and load the model.

    Args:
        runtime: The runtime with the backends.
        path: The checkpoint folder.
        config: The config from `read_config`.
        family: The family from `read_config`.
        platform: The platform for the model.
        dtype: The dtype of weights and activations.
        options: The engine's options.
        max_length: Maximum tokens per sequence; None for the model's own limit.
        backends: Chosen backends, as for `Engine`.
        are_trees: Whether the model verifies trees.

    Raises:
        SwitchrailError: As for `Engine`.
    """
    layout = layout_of(runtime, path, lambda: config)
    if are_trees:
        _check_windows(path, layout)
    return ready_model(
        runtime,
        layout,
        lambda: load(
            path,
            config,
            family,
            layout,
            device=torch.device(platform.device),
            dtype=dtype,
            max_length=max_length,
        ),
        platform=platform,
        dtype=dtype,
        options=options,
        backends=backends,
        are_trees=are_trees,
    )


def ready_model(
    runtime: Runtime,
    layout: Layout,
    load_weights: Callable[[], Checkpoint],
    *,
    platform: Platform,
    dtype: torch.dtype,
    options: EngineOptions,
    backends: Mapping[str, str] | None = None,
    are_trees: bool = False,
) -> LoadedModel:
    """Plan the routes of a layout, log the backends' names, and load the model with that layout.

    Args:
        runtime: The runtime with the backends.
        layout: The layout of the model.
        load_weights: Loads the model.
        platform: The platform for the model.
        dtype: The dtype of weights and activations.
        options: The engine's options.
        backends: Chosen backends, as for `Engine`.
        are_trees: Whether the model verifies trees.

    Raises:
        SwitchrailError: As for `Engine`.
    """
    plan = partial(
        plan_routes,
        layout=layout,
        platform=platform,
        dtype=str(dtype),
        page_size=options.page_size,
        state_dtype=options.state_dtype,
        phases=PHASES if are_trees or options.draft is not None else ("prefill", "decode"),
    )
    if are_trees:
        backends = with_trees(partial(plan, runtime), layout, backends)
    routes = plan(runtime, preferences=backends)
    check_prefill_steps(routes, options)
    names = dict.fromkeys(f"{op}.{phase}={name}" for _, op, phase, name in routes.table)
    _log.info("backends: %s", " ".join(names))
    bound: BoundPlan = runtime.bind(routes)
    checkpoint = load_weights()
    platform.serving.after_weights_loaded(checkpoint.model)
    forward_of = partial(runtime.forward_of, platform=platform)
    state_dtype: torch.dtype = getattr(torch, options.state_dtype)
    family = checkpoint.family
    prepare(forward_of, checkpoint.model, family.module, family.operations)
    make = partial(
        Runner,
        checkpoint,
        bound,
        platform=platform,
        forward_of=forward_of,
        dtype=dtype,
        state_dtype=state_dtype,
    )

    def needs(options: EngineOptions) -> Needs:
        shapes = read_shapes(find_mixers(checkpoint.model, family, layout.layers))
        return PoolClasses(shapes, platform).needs(options, dtype=dtype, state_dtype=state_dtype)

    capture = partial(_capture, runtime, partial(plan, runtime), routes, platform)
    return LoadedModel(checkpoint, routes, bound, make, needs, capture)


def _capture(
    runtime: Runtime,
    plan: Callable[..., RoutePlan],
    routes: RoutePlan,
    platform: Platform,
    options: EngineOptions,
    **given: Any,
) -> Capture | None:
    """Plan the captures of a runner, with arguments for `plan_capture`; None if nothing is captured."""
    planned = plan_capture(plan, routes, platform=platform, options=options, **given)
    graph_class = platform.serving.graph_class()
    if isinstance(planned, str) or graph_class is None:
        if options.capture != "off" and platform.hardware.support_cuda_graph():
            reason = planned if isinstance(planned, str) else f"platform {platform.kind} has no graphs"
            _log.warning("nothing is captured: %s", reason)
        return None
    for op, reason in planned.eager.items():
        _log.warning("decodes run %s eagerly: %s", op, reason)
    if isinstance(planned.verify, str):
        _log.warning("verifications of drafts run eagerly: %s", planned.verify)
    if isinstance(planned.propose, str):
        _log.warning("the steps of a proposal are captured one by one: %s", planned.propose)
    verify = runtime.bind(planned.verify) if isinstance(planned.verify, RoutePlan) else None
    propose = planned.propose if isinstance(planned.propose, tuple) else None
    return Capture(
        planned,
        runtime.bind(planned.plan),
        graph_class,
        verify,
        None if propose is None else (runtime.bind(propose[0]), runtime.bind(propose[1])),
    )


def _check_windows(path: Path, layout: Layout) -> None:
    """Refuse trees for a model with windows, because no op supports trees together with windows.

    Raises:
        ConfigError: A layer has a window.
    """
    for layer in layout.layers:
        for op in layer.ops:
            window = layout.shape(layer.kind, op).get("window")
            if window is not None:
                raise ConfigError(
                    f"the drafts are trees, but layer {layer.id} of the model in {path} has a window of "
                    f"{window} tokens; valid: chains (draft_branches of 1), or a model without windows",
                    problems={"draft": f"found trees for a model with a window of {window} tokens"},
                    valid={"draft": "drafts that are chains"},
                )
