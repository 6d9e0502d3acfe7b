"""Plans the captures of an engine, without torch, for the engine and for `explain`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal

from switchrail._core import PAGED_OPS
from switchrail.engine.drafts import Drafts
from switchrail.engine.keys import Key, Keys, StepKind
from switchrail.engine.routes import choices_in
from switchrail.errors import BackendUnfitError, NoBackendError
from switchrail.platforms.serving import Serving

if TYPE_CHECKING:
    from switchrail._core import Decision, RoutePlan
    from switchrail.engine.options import EngineOptions
    from switchrail.platforms import Platform

DEFERRED: Final = "committed in the next verification"

_GRAPH_STATE: Final = "init_graph_state", "graph_fill_value"
"""Optional steps for captured decodes. A backend with one of them can't serve captured proposals."""

_RAGGED: Final = "sequences and their lengths differ from step to step"


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphState:
    """The state of one key (see `Key`): captured, planned, or refused.

    Attributes:
        kind: `decode`, `verify`, `mixed` for steps with prompt tokens, or `propose` for a draft model.
        rows: Rows of the step, including padding; a decode has one row per sequence. For proposals, the
            number of sequences.
        tokens: Tokens of the longest cache; None if the key serves any number.
        width: Rows of each sequence in a verification, including padding; otherwise 1.
        backends: The key's backends, by op and phase; commas separate several backends of one op.
        because: Why these backends were chosen, by op and phase.
        eager: The calls that run eagerly between captured pieces, by op and phase, with the reasons.
        commits: By op and phase, when a verification's states are committed, with the reason if the commit is
            not deferred. Empty unless `kind` is `verify`.
        reason: Why the key is not captured and its steps run eagerly; None if a graph exists or will be
            captured when needed.
    """

    kind: StepKind
    rows: int
    tokens: int | None
    width: int = 1
    backends: Mapping[str, str]
    because: Mapping[str, str]
    eager: Mapping[str, str]
    commits: Mapping[str, str]
    reason: str | None = None

    @property
    def name(self) -> str:
        """A description of the key's steps."""
        return Key(self.kind, self.rows, self.tokens, self.width).name


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturePlan:
    """The steps to capture, and their backends.

    Attributes:
        keys: All keys.
        plan: The routes of captured decodes.
        own: The routes of eager steps, and of the calls that run eagerly between captured pieces.
        eager: The ops whose decodes can't be captured, each with the reason.
        verify: The routes of captured verifications, or the reason why verifications are not captured. None
            without drafts.
        propose: The routes of decodes and of verifications in captured proposals, or the reason why proposals
            are not captured. None if the model proposes nothing.
    """

    keys: Keys
    plan: RoutePlan
    own: RoutePlan
    eager: Mapping[str, str]
    verify: RoutePlan | str | None = None
    propose: tuple[RoutePlan, RoutePlan] | str | None = None

    def states(self) -> Iterator[tuple[Key, GraphState]]:
        """The planned state of each key."""
        for key in self.keys:
            yield key, self._mixed(key) if key.kind == "mixed" else self._whole(key)

    def _whole(self, key: Key) -> GraphState:
        assert key.tokens is not None
        sequences = key.rows // key.width
        batch = (key.width,) * sequences, (key.tokens,) * sequences
        if key.kind == "verify":
            assert self.verify is not None
            assert not isinstance(self.verify, str)
            verify = ((one, (one.at(*batch),)) for one in self.verify.decisions)
            return _state(key, verify, {}, commits(self.verify))
        if key.kind == "propose":
            assert isinstance(self.propose, tuple)
            decisions = [one for plan in self.propose for one in plan.decisions]
            return _state(key, ((one, (one.at(*batch),)) for one in decisions), {})
        routes = [one for one in self.plan.decisions if one.op not in self.eager]
        routes += [one for one in self.own.decisions if one.op in self.eager and one.phase == "decode"]
        eager = {f"{op}.decode": reason for op, reason in sorted(self.eager.items())}
        return _state(key, ((one, (one.at(*batch),)) for one in routes), eager)

    def _mixed(self, key: Key) -> GraphState:
        routes = self.own.decisions
        eager = {f"{one.op}.{one.phase}": _RAGGED for one in routes}
        return _state(key, ((one, [name for name, _ in one.serving]) for one in routes), eager)


def _state(
    key: Key,
    routes: Iterable[tuple[Decision, Iterable[str]]],
    eager: Mapping[str, str],
    commits: Mapping[str, str] = MappingProxyType({}),
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
        width=key.width,
        backends={call: ", ".join(names) for call, names in backends.items()},
        because={call: "; ".join(reasons) for call, reasons in because.items()},
        eager=eager,
        commits=dict(commits),
    )


def commits(verify: RoutePlan) -> dict[str, str]:
    """When captured verifications commit states, by op and phase.

    A value is `DEFERRED`, or says that the commit follows each verification, and why. A backend can't read
    another backend's records, and all ops share one table of pending records. So no op defers its commits if
    an op that could defer them has several backends, each for some sizes.
    """
    able = {
        (one.op, one.name) for one in verify.backends if "deferred_commit" in one.capabilities["features"]
    }
    found: dict[str, str] = {}
    several = ""
    for one in verify.decisions:
        if one.op in PAGED_OPS:
            continue
        names = [name for name, _ in one.serving]
        lacking = [name for name in names if (one.op, name) not in able]
        if len(lacking) < len(names) > 1:
            several = f"{' and '.join(names)} serve {one.op}, depending on the size"
        why = f"{lacking[0]} lacks deferred_commit" if lacking else ""
        found[f"{one.op}.verify"] = f"committed after each verification: {why}" if why else DEFERRED
    if several:
        return dict.fromkeys(found, f"committed after each verification: {several}")
    return found


def plan_capture(
    plan: Callable[..., RoutePlan],
    own: RoutePlan,
    *,
    platform: Platform,
    options: EngineOptions,
    max_length: int,
    preferences: Mapping[str, str] | None = None,
    proposes: Literal["chains", "trees"] | None = None,
) -> CapturePlan | str:
    """Plan the captures of an engine.

    If the platform can capture a step in pieces, ops without a capturable backend for decodes run eagerly
    between these pieces.

    Args:
        plan: The function `plan_routes`, bound to the model.
        own: The result of `plan` for the engine's eager steps.
        platform: The platform of the engine.
        options: The engine's options.
        max_length: Maximum tokens per sequence.
        preferences: Chosen backends, as in `plan_routes`.
        proposes: Whether the model extends chains or trees of drafts; None if it proposes nothing.

    Returns:
        The plan, or the reason why nothing is captured.
    """
    hardware = platform.hardware
    if options.capture == "off":
        return "the option capture is 'off'"
    if not hardware.support_cuda_graph() or type(platform.serving).graph_class is Serving.graph_class:
        return f"platform {platform.kind} has no graphs"
    ops = {op for layer in own.layout.layers for op in layer.ops}
    chosen = choices_in(preferences, "decode")
    in_pieces = hardware.support_piecewise_cuda_graph()
    eager: dict[str, str] = {}
    while True:
        features = {op: ("cuda_graph",) for op in ops if op not in eager}
        try:
            found = plan(preferences=chosen, phases=("decode",), features=features)
            verify = _plan_verify(plan, ops, options, preferences)
            propose = None if proposes is None else _plan_propose(plan, ops, proposes == "trees")
            keys = Keys.of(
                options,
                max_length,
                mixed=in_pieces and options.capture == "all",
                caches=not ops.isdisjoint(PAGED_OPS),
                verify=verify is not None and not isinstance(verify, str),
                proposes=isinstance(propose, tuple),
            )
            return CapturePlan(keys=keys, plan=found, own=own, eager=eager, verify=verify, propose=propose)
        except (BackendUnfitError, NoBackendError) as error:
            op = error.fields["query"]["op"]
            if op in eager:
                raise
            eager[op] = _first_line(error)
            if not in_pieces:
                return f"platform {platform.kind} captures no pieces of a step, and {eager[op]}"


def _plan_verify(
    plan: Callable[..., RoutePlan],
    ops: Iterable[str],
    options: EngineOptions,
    preferences: Mapping[str, str] | None,
) -> RoutePlan | str | None:
    """The routes of captured verifications, or the reason why there are none. None without drafts."""
    if options.draft is None:
        return None
    features = {op: _verify_features(op, has_trees(options)) for op in ops}
    try:
        return plan(preferences=choices_in(preferences, "verify"), phases=("verify",), features=features)
    except (BackendUnfitError, NoBackendError) as error:
        return _first_line(error)


def _plan_propose(
    plan: Callable[..., RoutePlan], ops: Iterable[str], are_trees: bool
) -> tuple[RoutePlan, RoutePlan] | str:
    """The routes of decodes and verifications in captured proposals, or why there are none.

    Backends of ops with paged caches need the feature `kv_bounds` for decodes and for trees, since the host
    knows only upper bounds of the caches' lengths.
    """
    bounds = {op: ("kv_bounds",) if op in PAGED_OPS else () for op in ops}
    decode = {op: ("cuda_graph", *bounds[op]) for op in ops}
    verify = {op: (*_verify_features(op, are_trees), *(bounds[op] if are_trees else ())) for op in ops}
    try:
        decodes = plan(preferences={}, phases=("decode",), features=decode)
        verifications = plan(preferences={}, phases=("verify",), features=verify)
    except (BackendUnfitError, NoBackendError) as error:
        return _first_line(error)
    for backend in decodes.backends:
        steps = [name for name in _GRAPH_STATE if name in backend.capabilities["features"]]
        if steps:
            return f"backend {backend.name} of {backend.op} has the optional step {steps[0]}"
    return decodes, verifications


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].rstrip(":")


def _verify_features(op: str, are_trees: bool) -> tuple[str, ...]:
    """The features that an op needs in captured verifications.

    If the op reads the drafts' parents, it needs `device_parents`, since only the device knows the parents.
    """
    if op not in PAGED_OPS:
        return "cuda_graph", "device_parents"
    return ("cuda_graph", "trees", "device_parents") if are_trees else ("cuda_graph",)


def has_trees(options: EngineOptions) -> bool:
    """Whether drafts may be trees."""
    return options.draft_branches > 1 or (isinstance(options.draft, Drafts) and options.draft.are_trees)
