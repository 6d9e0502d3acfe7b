"""Other engines: which are installed, and which layers Switchrail can serve in them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any, Final

from switchrail._core import LINEAR_OPS, Layout, RoutePlan
from switchrail.errors import SwitchrailError


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """An engine of another project.

    Attributes:
        name: The name of the engine's distribution.
        how: How users select Switchrail for all layers; empty if there is no bridge, or if the choice depends
            on the kind of layer (see `kinds`).
        since: The oldest version that is served; None if only the listed `versions` are served.
        before: The oldest later version that is not served; None if all later ones are.
        versions: The versions that the bridge was tested with.
        kinds: By version, the kinds of layers that the bridge serves, and how users select Switchrail for
            each kind. In versions without an entry the bridge serves all kinds.
        needs: By op, the features that backends need to work on the engine's memory.
    """

    name: str
    how: str = ""
    since: str | None = None
    before: str | None = None
    versions: tuple[str, ...] = ()
    kinds: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    needs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def problem(self, version: str) -> str | None:
        """Why a version is not served; None if it is served."""
        if not (self.how or self.kinds):
            return "there is no bridge"
        if self.since is not None:
            if release(version) < release(self.since):
                return f"the bridge needs {self.since} or later"
            if self.before is not None and release(version) >= release(self.before):
                return f"the bridge needs a version before {self.before}"
            return None
        known = ", ".join(self.versions)
        return None if version in self.versions else f"the bridge supports the versions {known}"


_LINEAR, _ATTENTION = "--linear-attn-backend switchrail", "--attention-backend switchrail"

HOSTS: Final = (
    Host(
        name="transformers",
        how="switchrail.bridges.transformers.use(model)",
        since="5.17",
        before="5.24",  # renames caches' arguments, and passes rotary functions one more argument
        versions=("5.23.0",),
    ),
    Host(
        name="sglang",
        versions=("0.5.11", "0.5.23"),
        kinds={
            "0.5.11": {"gated_delta": _LINEAR, "full_attention": _ATTENTION, "mla": _ATTENTION},
            "0.5.23": {
                **dict.fromkeys(("gated_delta", "kda", "lightning", "mamba2", "short_conv"), _LINEAR),
                "full_attention": _ATTENTION,
                "mla": _ATTENTION,
            },
        },
        needs={"short_conv": ("transposed_state",), "lightning": ("transposed_state",)},
    ),
    Host(name="vllm"),
)
"""The known engines."""


def release(version: str) -> tuple[int, ...]:
    """The major and minor numbers at the start of a version, such as 5 and 0 of `5.0rc1`."""
    found = re.match(r"\d+(\.\d+)?", version)
    return tuple(map(int, found[0].split("."))) if found else ()


def installed() -> Iterator[tuple[Host, str]]:
    """The installed engines with their versions, read from metadata; none is imported."""
    for host in HOSTS:
        with suppress(metadata.PackageNotFoundError):
            yield host, metadata.version(host.name)


def served_in(
    host: Host, version: str, layout: Layout, plan: Callable[..., RoutePlan], backends: Mapping[str, str]
) -> list[tuple[str, str, str, str]]:
    """Whether and how Switchrail would serve a model in another engine, as rows of a table.

    A row has an op, a phase, the backend (or why there is none), and how users select Switchrail. The phase
    of an op that is not served is `all`. A reason that concerns all ops has `all` as the op, too.

    Other engines give all layers of an op to one backend. So an op is served only if the bridge serves every
    kind of layer that runs the op.

    Args:
        host: The engine.
        version: The engine's version.
        layout: The model's layout.
        plan: Plans routes from the arguments `layout`, `preferences` and `features`; see `Runtime.plan`.
        backends: The preferences. Preferences for ops that the model does not run are ignored.
    """
    problem = host.problem(version)
    if problem is not None:
        return [("all", "all", f"none: {problem}", "")]
    kinds: dict[str, set[str]] = {}
    for layer in layout.layers:
        for op in layer.ops:
            kinds.setdefault(op, set()).add(layer.kind)
    served = host.kinds.get(version, dict.fromkeys((layer.kind for layer in layout.layers), host.how))
    left = {op: sorted(found - served.keys()) for op, found in kinds.items() if not found <= served.keys()}
    rows = [
        (op, "all", f"{host.name}'s own: the bridge does not serve {', '.join(found)} layers", "")
        for op, found in sorted(left.items())
    ]
    how = {op: served[min(found)] for op, found in kinds.items() if op not in left}
    if not how:
        return rows
    needed = {op: needs for op, needs in host.needs.items() if op in how}
    chosen = {key: name for key, name in backends.items() if _concerns(key, how)}
    try:
        routes: Any = plan(layout=_with_ops(layout, how), features=needed, preferences=chosen).routes
    except SwitchrailError as error:
        return [*rows, ("all", "all", f"none: {error}", "")]
    decided = {(one.decision.op, one.decision.phase): one.decision.chosen for one in routes}
    return rows + [(op, phase, name, how[op]) for (op, phase), name in decided.items()]


def _with_ops(layout: Layout, ops: Iterable[str]) -> Layout:
    """The layout with only these ops."""
    document = layout.to_dict()
    for layer in document["layers"]:
        layer["ops"] = [op for op in layer["ops"] if op in ops]
    return Layout.from_json(json.dumps(document))


def _concerns(key: str, ops: Iterable[str]) -> bool:
    """Whether a preference's key applies to one of these ops."""
    own = key.partition(".")[0]
    return any(op == own or (own == "linear" and op in LINEAR_OPS) for op in ops)
