"""Engines of others in which Switchrail's backends can serve: the installed ones, and what serves there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any, Final

from switchrail._core import Layout, RoutePlan
from switchrail.errors import SwitchrailError


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """An engine of others.

    Attributes:
        name: Its distribution.
        how: How its users ask for Switchrail; empty if there is no bridge.
        since: The oldest version that is served; None if only `versions` are.
        versions: The versions that the bridge was tested with.
        ops: By version, the ops that its bridge serves; all for other versions.
        needs: By op, the features that backends need on its memory.
    """

    name: str
    how: str = ""
    since: str | None = None
    versions: tuple[str, ...] = ()
    ops: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    needs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def problem(self, version: str) -> str | None:
        """Why a version is not served; None if it is."""
        if not self.how:
            return "there is no bridge"
        if self.since is not None:
            return (
                None if release(version) >= release(self.since) else f"its bridge needs {self.since} or later"
            )
        known = ", ".join(self.versions)
        return None if version in self.versions else f"its bridge knows the versions {known}"


HOSTS: Final = (
    Host(
        name="transformers",
        how="switchrail.bridges.transformers.use(model)",
        since="5.17",
        versions=("5.23.0",),
    ),
    Host(
        name="sglang",
        how="--linear-attn-backend switchrail",
        versions=("0.5.11", "0.5.23"),
        ops={
            "0.5.11": ("gated_delta", "short_conv", "attention"),
            "0.5.23": ("gated_delta", "kda", "short_conv", "attention"),
        },
        needs={"short_conv": ("transposed_state",)},
    ),
    Host(name="vllm"),
)
"""The known engines."""


def release(version: str) -> tuple[int, ...]:
    """The major and minor release of a version."""
    return tuple(int(part) for part in version.split(".")[:2])


def installed() -> Iterator[tuple[Host, str]]:
    """The installed engines with their versions, from metadata; none is imported."""
    for host in HOSTS:
        version = _installed_version(host.name)
        if version is not None:
            yield host, version


def _installed_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def served_in(
    host: Host, version: str, layout: Layout, plan: Callable[..., RoutePlan]
) -> list[tuple[str, str, str]]:
    """What would serve a model in an engine: op, phase, and the backend or the reason for none.

    Args:
        host: The engine.
        version: Its version.
        layout: The model's layout.
        plan: Plans routes with given features by op; see `Runtime.plan`.
    """
    problem = host.problem(version)
    if problem is not None:
        return [("all", "all", f"none: {problem}")]
    ops = sorted({op for layer in layout.layers for op in layer.ops})
    left = [op for op in ops if op not in host.ops.get(version, ops)]
    rows = [(op, "all", f"{host.name}'s own: the bridge does not serve it") for op in left]
    features = {op: needs for op, needs in host.needs.items() if op in ops}
    try:
        routes: Any = plan(features=features).routes
    except SwitchrailError as error:
        return [*rows, ("all", "all", f"none: {error}")]
    decided = {(one.decision.op, one.decision.phase): one.decision.chosen for one in routes}
    return rows + [(op, phase, name) for (op, phase), name in decided.items() if op not in left]


__all__ = ["HOSTS", "Host", "installed", "release", "served_in"]
