"""Plans the captures of an engine, without torch, for the engine and for `explain`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from switchrail._core import PAGED_OPS
from switchrail.engine.keys import Key, Keys, StepKind
from switchrail.errors import BackendUnfitError, NoBackendError
from switchrail.platforms.serving import Serving

if TYPE_CHECKING:
    from switchrail._core import Decision, RoutePlan
    from switchrail.engine.options import EngineOptions
    from switchrail.platforms import Platform

_RAGGED: Final = "sequences and their lengths differ from step to step"


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphState:
    """The state of one key: captured, planned, or refused.

    Attributes:
        kind: `decode`, or `mixed` for steps with prompt tokens.
        rows: Rows of the step, including padding; in a decode one per sequence.
        tokens: Tokens of the longest cache; None if the key serves any number.
        backends: The key's backends, by op and phase; several for one op are separated by commas.
        because: Why these backends were chosen, by op and phase.
        eager: The calls that run eagerly between captured pieces, by op and phase, with the reasons.
        reason: Why the key is not captured and its steps run eagerly; None if a graph exists or will be
            captured when needed.
    """

    kind: StepKind
    rows: int
    tokens: int | None
    backends: Mapping[str, str]
    because: Mapping[str, str]
    eager: Mapping[str, str]
    reason: str | None = None

    @property
    def name(self) -> str:
        """A description of the key's steps."""
        return Key(self.kind, self.rows, self.tokens).name


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturePlan:
    """The steps to capture, and their backends.

    Attributes:
        keys: All keys.
        plan: The routes of captured decodes.
        own: The routes of all other steps.
        eager: The ops whose decodes can't be captured, each with the reason.
    """

    keys: Keys
    plan: RoutePlan
    own: RoutePlan
    eager: Mapping[str, str]

    def states(self) -> Iterator[tuple[Key, GraphState]]:
        """The planned state of each key."""
        for key in self.keys:
            yield key, self._decode(key) if key.kind == "decode" else self._mixed(key)

    def _decode(self, key: Key) -> GraphState:
        assert key.tokens is not None
        batch = (1,) * key.rows, (key.tokens,) * key.rows
        routes = [one for one in self.plan.decisions if one.op not in self.eager]
        routes += [one for one in self.own.decisions if one.op in self.eager and one.phase == "decode"]
        eager = {f"{op}.decode": reason for op, reason in sorted(self.eager.items())}
        return _state(key, ((one, (one.at(*batch),)) for one in routes), eager)

    def _mixed(self, key: Key) -> GraphState:
        routes = [one for one in self.own.decisions if one.phase != "verify"]
        eager = {f"{one.op}.{one.phase}": _RAGGED for one in routes}
        return _state(key, ((one, [name for name, _ in one.serving]) for one in routes), eager)


def _state(
    key: Key, routes: Iterable[tuple[Decision, Iterable[str]]], eager: Mapping[str, str]
) -> GraphState:
    backends: dict[str, dict[str, None]] = {}
    because: dict[str, dict[str, None]] = {}
    for decision, names in routes:
        call = f"{decision.op}.{decision.phase}"
        backends.setdefault(call, {}).update(dict.fromkeys(names))
        because.setdefault(call, {})[decision.because] = None
    return GraphState(
        kind=key.kind,
        rows=key.rows,
        tokens=key.tokens,
        backends={call: ", ".join(names) for call, names in backends.items()},
        because={call: "; ".join(reasons) for call, reasons in because.items()},
        eager=eager,
    )


def plan_capture(
    plan: Callable[..., RoutePlan],
    own: RoutePlan,
    *,
    platform: Platform,
    options: EngineOptions,
    max_length: int,
    preferences: Mapping[str, str] | None,
) -> CapturePlan | str:
    """Plans captured decodes, with capturable backends if there are any.

    Args:
        plan: The function `plan_routes`, bound to the model.
        own: Its result for the engine's eager steps.
        platform: The platform of the engine.
        options: The engine's options.
        max_length: Maximum tokens per sequence.
        preferences: Chosen backends, as in `plan_routes`.

    Returns:
        The plan, or the reason why nothing is captured.
    """
    hardware = platform.hardware
    if options.capture == "off":
        return "the option capture is 'off'"
    if not hardware.support_cuda_graph() or type(platform.serving).graph_class is Serving.graph_class:
        return f"platform {platform.kind} has no graphs"
    ops = {op for layer in own.layout.layers for op in layer.ops}
    given = (preferences or {}).items()
    chosen = {key: name for key, name in given if key.partition(".")[2] in ("", "decode")}
    in_pieces = hardware.support_piecewise_cuda_graph()
    eager: dict[str, str] = {}
    while True:
        features = {op: ("cuda_graph",) for op in ops if op not in eager}
        try:
            found = plan(preferences=chosen, phases=("decode",), features=features)
            keys = Keys.of(
                options,
                max_length,
                mixed=in_pieces and options.capture == "all",
                caches=not ops.isdisjoint(PAGED_OPS),
            )
            return CapturePlan(keys=keys, plan=found, own=own, eager=eager)
        except (BackendUnfitError, NoBackendError) as error:
            op = error.fields["query"]["op"]
            if op in eager:
                raise
            eager[op] = str(error).partition("\n")[0].rstrip(":")
            if not in_pieces:
                return f"platform {platform.kind} captures no pieces of a step, and {eager[op]}"


__all__ = ["CapturePlan", "GraphState", "plan_capture"]
