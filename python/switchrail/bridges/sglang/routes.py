"""From a model runner of SGLang to the bound plan of its layers."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from switchrail._core import Layout
from switchrail.bridges.sglang.names import backend_of
from switchrail.errors import BridgeError

if TYPE_CHECKING:
    import torch

    from switchrail._core import BoundPlan
    from switchrail.runtime import Runtime

_log = logging.getLogger("switchrail")


class HeadSizes(NamedTuple):
    """The heads of a layer: their sizes and numbers, named as in a layout."""

    head_size_k: int
    head_size_v: int
    q_heads: int
    k_heads: int
    v_heads: int


def bind_layers(
    runtime: Runtime,
    model_runner: Any,
    op: str,
    kind: str,
    layers: Iterable[int],
    asked: Mapping[str, str],
    sizes: Iterable[HeadSizes],
    features: Iterable[str] = (),
    **restrictions: Any,
) -> BoundPlan:
    """Decides and constructs the backends of some layers of a runner's model.

    The kinds of layers come from the model that SGLang has built, so a draft worker's from its draft.

    Args:
        runtime: The runtime with the registrations.
        model_runner: SGLang's model runner.
        op: The op that the names asked for belong to.
        kind: The kind of the layers.
        layers: The ids of the layers.
        asked: The names asked for, by phase.
        sizes: The heads of each layer.
        features: Features that the layers' calls use.
        **restrictions: Further arguments of `Runtime.plan`.

    Raises:
        BridgeError: The layers' heads differ.
        SwitchrailError: No backend fits, or the chosen one does not; see `Runtime.plan`.
    """
    ids = set(layers)
    other = "full_attention" if kind != "full_attention" else "gated_delta"
    kinds = [kind if id in ids else other for id in range(max(ids, default=-1) + 1)]
    chosen = {f"{op}.{phase}": backend_of(name) for phase, name in asked.items()}
    layout = Layout.from_kinds(type(model_runner.model).__name__, kinds).to_dict()
    shapes = set(sizes)
    if len(shapes) > 1:
        raise BridgeError(f"layers of one kind have different heads: {sorted(shapes)}", found=shapes)
    layout["shapes"] = {kind: {op: shape._asdict()} for shape in shapes}
    if _captures(model_runner):
        features = (*features, "cuda_graph")
    plan = runtime.plan(
        Layout.from_json(json.dumps(layout)),
        device=runtime.find_platform(model_runner.device),
        dtype=model_runner.dtype,
        preferences={key: name for key, name in chosen.items() if name is not None},
        phases=tuple(asked),
        features={op: features},
        **restrictions,
    )
    for decision in plan.decisions:
        if decision.op == op:
            _log.info(
                "%s %s of layers %s: backend %s of %s",
                *(op, decision.phase, ", ".join(map(str, sorted(ids)))),
                *(decision.chosen, decision.origin),
            )
    return runtime.bind(plan)


def all_have(bound: BoundPlan, op: str, feature: str) -> bool:
    """Whether all backends of an op have a feature."""
    backends = [backend for backend in bound.plan.backends if backend.op == op]
    return all(feature in backend.capabilities["features"] for backend in backends)


def modules_of(model: torch.nn.Module, kind: type) -> dict[int, Any]:
    """A model's layers of one class, by id."""
    return {module.layer_id: module for module in model.modules() if isinstance(module, kind)}


def _captures(model_runner: Any) -> bool:
    """Whether SGLang records graphs of decode steps."""
    return str(model_runner.device) == "cuda" and not model_runner.server_args.disable_cuda_graph


__all__ = ["HeadSizes", "all_have", "bind_layers", "modules_of"]
