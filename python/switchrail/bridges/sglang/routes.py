"""Chooses and binds the backends for the layers of SGLang's model runners."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from switchrail._core import Layout
from switchrail.adapters import ADAPTED, features_of
from switchrail.bridges.sglang.names import backend_of
from switchrail.dispatch import Dispatcher
from switchrail.errors import BridgeError

if TYPE_CHECKING:
    import torch

    from switchrail._core import BoundPlan
    from switchrail.bridges.sglang.versions import Version
    from switchrail.ops.batch import Phase
    from switchrail.platforms import Platform
    from switchrail.runtime import Runtime

_log = logging.getLogger("switchrail")


class HeadSizes(NamedTuple):
    """The sizes and numbers of a layer's heads. The fields have the same names as in a layout."""

    head_size_k: int
    head_size_v: int
    q_heads: int
    k_heads: int
    v_heads: int


def bind_layers(
    runtime: Runtime,
    version: Version,
    model_runner: Any,
    kind: str,
    layers: Mapping[int, HeadSizes | None],
    asked: Mapping[Phase, str],
    needed: Mapping[str, Collection[str]],
    **restrictions: Any,
) -> Dispatcher:
    """Chooses and constructs the backends for the layers of one kind in a model runner's model.

    Args:
        runtime: The runtime with the registrations.
        version: SGLang's version.
        model_runner: SGLang's model runner.
        kind: The kind of the layers.
        layers: The heads of each layer, by id; None for a layer without heads.
        asked: The chosen names, by phase; a group from `planned_together`.
        needed: The features that the layers' calls need, by op. The chosen names apply to the last op, and
            to each other op with a backend of that name.
        **restrictions: Further arguments of `Runtime.plan`.

    Raises:
        BridgeError: The layers' heads differ.
        SwitchrailError: No backend fits, or the chosen backend does not; see `Runtime.plan`.
    """
    *_, op = needed
    # A plan has all ids up to the last one; those that are not in `layers` get another kind.
    other = "full_attention" if kind != "full_attention" else "gated_delta"
    kinds = [kind if id in layers else other for id in range(max(layers, default=-1) + 1)]
    layout = Layout.from_kinds(type(model_runner.model).__name__, kinds).to_dict()
    shapes = set(layers.values())
    if len(shapes) > 1:
        raise BridgeError(
            f"layers of one kind have different heads: {sorted(map(str, shapes))}", found=shapes
        )
    heads = shapes.pop() if shapes else None
    if heads is not None:
        layout["shapes"] = {kind: {op: heads._asdict()}}
    graphs = {"cuda_graph"} if "prefill" not in asked and captures(version, model_runner) else set()
    plan = runtime.plan(
        Layout.from_json(json.dumps(layout)),
        device=platform_of(runtime, model_runner.device),
        dtype=model_runner.dtype,
        preferences=dict(_preferences(runtime, needed, op, asked)),
        phases=tuple(asked),
        features={each: sorted({*features, *graphs} - ADAPTED.keys()) for each, features in needed.items()},
        **restrictions,
    )
    for decision in plan.decisions:
        if decision.op in needed:
            _log.info(
                "%s %s of layers %s: backend %s of %s",
                *(decision.op, decision.phase, ", ".join(map(str, layers))),
                *(decision.chosen, decision.origin),
            )
    # SGLang expands the keys and values of latents itself.
    flags = {"ragged": False, "chunked": False}
    return Dispatcher(runtime.bind(plan), list(needed), needed, flags=flags)


def platform_of(runtime: Runtime, device: str) -> Platform:
    """The platform of SGLang's device: the runtime's, if a plugin provides it for this type of device."""
    own = runtime.platform
    is_plugins = own.kind.startswith("oot:") and own.device.split(":")[0] == device.split(":")[0]
    return own if is_plugins else runtime.find_platform(device)


def _preferences(
    runtime: Runtime, ops: Iterable[str], op: str, asked: Mapping[Phase, str]
) -> Iterator[tuple[str, str]]:
    """Preferences for the chosen backends, for `op` and for each other op with a backend of that name."""
    for phase, name in asked.items():
        chosen = backend_of(name)
        for each in ops:
            if chosen is not None and (each == op or chosen in {one.name for one in runtime.backends(each)}):
                yield f"{each}.{phase}", chosen


def all_have(bound: BoundPlan, ops: Collection[str], feature: str) -> bool:
    """Whether all of a plan's backends for some ops have a feature."""
    backends = [backend for backend in bound.plan.backends if backend.op in ops]
    return all(feature in features_of(backend) for backend in backends)


def radix_heads(module: Any) -> HeadSizes:
    """The heads of one of SGLang's `RadixAttention` modules."""
    return HeadSizes(
        module.qk_head_dim,
        module.v_head_dim,
        module.tp_q_head_num,
        module.tp_k_head_num,
        module.tp_v_head_num,
    )


def modules_of(model: torch.nn.Module, kind: type) -> dict[int, Any]:
    """A model's layers of one class, by id."""
    found: list[Any] = [module for module in model.modules() if isinstance(module, kind)]
    return {module.layer_id: module for module in found}


def captures(version: Version, model_runner: Any) -> bool:
    """Whether SGLang captures decode steps and verification. It never captures prompts for Switchrail."""
    return str(model_runner.device) == "cuda" and version.captures(model_runner)


def planned_together(
    version: Version, model_runner: Any, asked: Mapping[Phase, str]
) -> list[dict[Phase, str]]:
    """Splits the chosen names, by phase, into groups that each get a plan.

    Verification has its own plan, since SGLang keeps the states of drafts in separate memory. Prompts have
    their own plan if decode is captured, so that only decode needs backends that can be captured.
    """
    live: dict[Phase, str] = {phase: name for phase, name in asked.items() if phase != "verify"}
    apart = live.keys() == {"prefill", "decode"} and captures(version, model_runner)
    groups: list[dict[Phase, str]] = [{phase: live[phase]} for phase in live] if apart else [live]
    if "verify" in asked:
        groups.append({"verify": asked["verify"]})
    return [group for group in groups if group]
