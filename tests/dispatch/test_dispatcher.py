"""Tests of `Dispatcher` without an engine."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from switchrail import Layout, Runtime
from switchrail._core import BoundPlan
from switchrail.dispatch import Dispatcher, Part
from switchrail.errors import ContractError, DispatchError, UnknownPhaseError
from switchrail.ops import (
    AttentionCall,
    AttentionLayer,
    GatedDeltaBackend,
    GatedDeltaCall,
    GatedDeltaLayer,
    PagedBatch,
    StateBatch,
    VerifyBatch,
)
from switchrail.ops.gated_delta.torch import TorchGatedDelta
from switchrail.testing.compare import same_bits
from switchrail.testing.inputs import gated_delta_call, kda_call

HEADS, SIZE = 2, 16


@pytest.fixture
def runtime() -> Runtime:
    return Runtime()


class Told(GatedDeltaBackend):
    """Records its plans and calls."""

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.planned: list[tuple[str, Any]] = []
        self.ran: list[tuple[Any, Any, Any]] = []

    def plan(self, phase: Any, batch: Any, bounds: Any = None) -> Any:
        self.planned.append((phase, batch))
        return f"plan of {phase} {len(self.planned)}"

    def run(self, call: Any, batch: Any, plan: Any) -> Any:
        self.ran.append((call, batch, plan))
        call.out.fill_(len(self.ran))


class Other(Told):
    pass


class Failing(Told):
    def run(self, call: Any, batch: Any, plan: Any) -> Any:
        raise RuntimeError("no such kernel")


class FailingPlan(Told):
    def plan(self, phase: Any, batch: Any, bounds: Any = None) -> Any:
        raise RuntimeError("no such batch")


def half(**options: Any) -> GatedDeltaLayer:
    state = torch.zeros(8, HEADS, SIZE, SIZE)
    return GatedDeltaLayer(**{"state": state, "scale": 1.0, "qk_l2norm": False, **options})


def call_of(layer: GatedDeltaLayer, rows: int) -> GatedDeltaCall:
    x = torch.arange(rows).float()[:, None, None].expand(rows, HEADS, SIZE)
    g = torch.zeros(rows, HEADS)
    return GatedDeltaCall(layer, x, x, x, g, g, torch.full((rows, HEADS, SIZE), torch.nan))


def states(*lengths: int) -> StateBatch:
    count = len(lengths)
    return StateBatch(
        cu_seqlens=torch.tensor([0, *lengths]).cumsum(0).int(),
        seqlens=lengths,
        read_slots=torch.arange(1, count + 1),
        write_slots=torch.arange(1, count + 1),
        has_initial_state=torch.ones(count, dtype=torch.bool),
    )


def both() -> list[Part]:
    """A part with three decode rows, and a part with a prompt of four rows."""
    return [
        Part(phase="decode", rows=slice(0, 3), states=states(1, 1, 1)),
        Part(phase="prefill", rows=slice(3, 7), states=states(4)),
    ]


@pytest.fixture
def make(runtime: Runtime) -> Callable[..., Dispatcher]:
    def make(
        *,
        count: int = 2,
        ops: Any = ("gated_delta",),
        phases: Any = ("prefill", "decode"),
        **preferences: Any,
    ) -> Dispatcher:
        for cls in (Told, Other, Failing, FailingPlan):
            runtime.register(cls.__name__.lower(), cls, op="gated_delta", phases=phases, priority=-1)
        plan = runtime.plan(
            Layout.from_kinds("tiny", ["gated_delta"] * count + ["full_attention"]),
            device="cpu",
            dtype="float32",
            phases=phases,
            preferences={key.replace("__", "."): name for key, name in preferences.items()},
        )
        return Dispatcher(runtime.bind(plan), ops)

    return make


def test_each_part_runs_on_its_own_backend_with_its_own_rows_batch_and_plan(make: Any) -> None:
    dispatcher = make(gated_delta__decode="told", gated_delta__prefill="other")
    layers = [half(), half()]
    for layer_id, layer in enumerate(layers):
        dispatcher.add(layer_id, layer)
    parts, calls = both(), [call_of(layer, 7) for layer in layers]
    with dispatcher.running(parts):
        for call in calls:
            dispatcher.dispatch(call)
    for part, name in zip(parts, ("decode", "prefill"), strict=True):
        backend = dispatcher.bound.backend("gated_delta", name, 0)
        assert backend.planned == [(name, part.states)]
        assert [(call.layer, batch, plan) for call, batch, plan in backend.ran] == [
            (layer, part.states, f"plan of {name} 1") for layer in layers
        ]
        for made, (call, _, _) in zip(calls, backend.ran, strict=True):
            assert torch.equal(call.q, made.q[part.rows])
            assert call.out.data_ptr() == made.out[part.rows].data_ptr()
    assert not any(call.out.isnan().any() for call in calls)


def test_one_backend_plans_each_part_once_and_one_part_is_run_as_it_is(make: Any) -> None:
    dispatcher = make(gated_delta="told")
    layers = [half(), half()]
    for layer_id, layer in enumerate(layers):
        dispatcher.add(layer_id, layer)
    backend = dispatcher.bound.backend("gated_delta", "decode", 0)
    for parts in (both(), both()[:1]):
        backend.planned.clear(), backend.ran.clear()
        rows = parts[-1].rows.stop
        calls = [call_of(layer, rows) for layer in layers]
        with dispatcher.running(parts):
            for call in calls:
                dispatcher.dispatch(call)
        assert [phase for phase, _ in backend.planned] == [part.phase for part in parts]
        if len(parts) == 1:
            assert all(ran is call for (ran, _, _), call in zip(backend.ran, calls, strict=True))


def test_tables_are_made_once_for_each_combination_of_routes(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatcher = make(count=1, gated_delta="told")
    layer = half()
    dispatcher.add(0, layer)
    made: list[object] = []
    table = Dispatcher._table

    def counted(self: Dispatcher, *routes: Any) -> Any:
        made.append(routes)
        return table(self, *routes)

    monkeypatch.setattr(Dispatcher, "_table", counted)
    for parts in (both(), both()[:1], both()[1:], both(), both()[:1]):
        rows = sum(sum(part.lengths) for part in parts)
        first = parts[0].rows.start
        parts = [dataclasses.replace(p, rows=slice(p.rows.start - first, p.rows.stop - first)) for p in parts]
        with dispatcher.running(parts):
            dispatcher.dispatch(call_of(layer, rows))
    assert len(made) == 3


def test_each_layer_is_called_once_a_step(make: Any) -> None:
    dispatcher = make(gated_delta="told")
    layers = [half(), half()]
    for layer_id, layer in enumerate(layers):
        dispatcher.add(layer_id, layer)
    first, second = (call_of(layer, 7) for layer in layers)
    with (
        pytest.raises(DispatchError, match=r"layer 1 did not run its gated_delta .*missing calls: 1\)"),
        dispatcher.running(both()),
    ):
        dispatcher.dispatch(first)
    with dispatcher.running(both()):
        dispatcher.dispatch(first)
        dispatcher.dispatch(second)
        with pytest.raises(DispatchError, match="layer 0 ran its gated_delta twice in one step"):
            dispatcher.dispatch(first)
    with pytest.raises(DispatchError, match="layer 0 ran its gated_delta outside of a step"):
        dispatcher.dispatch(first)
    with (
        pytest.raises(DispatchError, match="a GatedDeltaLayer that was never added"),
        dispatcher.running(both()),
    ):
        dispatcher.dispatch(call_of(half(), 7))


def test_a_step_that_was_left_behind_is_over(make: Any) -> None:
    """After an interrupt between the end of a step and the end of its `with` block, a new step can begin."""
    dispatcher = make(count=1, gated_delta="told")
    layer = half()
    dispatcher.add(0, layer)
    left_behind = dispatcher.running(both())
    left_behind.__enter__()
    with dispatcher.running(both()[:1]):
        dispatcher.dispatch(call_of(layer, 3))
    with pytest.raises(DispatchError, match="layer 0 ran its gated_delta outside of a step"):
        dispatcher.dispatch(call_of(layer, 7))
    with pytest.raises(DispatchError, match="did not run"):
        left_behind.__exit__(None, None, None)


def test_a_call_that_failed_counts_as_missing(make: Any) -> None:
    dispatcher = make(count=1, gated_delta="failing")
    layer = half()
    dispatcher.add(0, layer)
    with (
        pytest.raises(DispatchError, match="layer 0 did not run its gated_delta"),
        dispatcher.running(both()),
        pytest.raises(RuntimeError, match="no such kernel"),
    ):
        dispatcher.dispatch(call_of(layer, 7))


def test_every_layer_of_the_plan_is_added(make: Any) -> None:
    dispatcher = make(gated_delta="told")
    dispatcher.add(1, half())
    missing = "the plan has gated_delta of layer 0, which was not added"
    with pytest.raises(DispatchError, match=missing), dispatcher.running(both()):
        pass  # pragma: no cover


STARTS = {
    "a gap": (0, 3, 4, 8),
    "an overlap": (0, 3, 2, 6),
    "too few": (0, 2, 3, 7),
    "not from 0": (1, 4, 4, 8),
}


@pytest.mark.parametrize("name", STARTS)
def test_parts_have_all_rows_one_after_the_other(make: Any, name: str) -> None:
    dispatcher = make(count=1, gated_delta="told")
    dispatcher.add(0, half())
    a, b, c, d = STARTS[name]
    first, second = both()
    parts = [dataclasses.replace(first, rows=slice(a, b)), dataclasses.replace(second, rows=slice(c, d))]
    for wrong in (parts, []):
        with pytest.raises(DispatchError, match=r"rows|one part"), dispatcher.running(wrong):
            pass  # pragma: no cover


def test_a_copy_of_a_layer_remembers_nothing() -> None:
    layer = half()
    layer.checked.add("seen")
    layer.kept["owner"] = "addresses"
    for other in (copy.copy(layer), copy.deepcopy(layer), dataclasses.replace(layer)):
        assert other is not layer
        assert other != layer
        assert (other.checked, other.kept, other.scale) == (set(), {}, layer.scale)


def test_add_refuses_layers_that_do_not_fit(make: Any) -> None:
    dispatcher = make(gated_delta="told", ops=None)
    dispatcher.add(0, half())
    with pytest.raises(DispatchError, match="layer 0 already has its gated_delta"):
        dispatcher.add(0, half())
    with pytest.raises(ContractError, match=r"scale: got 0\.0"):
        dispatcher.add(1, half(scale=0.0))
    with pytest.raises(
        ContractError, match=r"A_log: got a value, expected None: .* lacks the feature raw_gates"
    ):
        dispatcher.add(1, half(gate="softplus", A_log=torch.zeros(HEADS)))
    caches = torch.zeros(2, 16, HEADS, SIZE)
    attention = AttentionLayer(k_cache=caches, v_cache=caches, scale=1.0)
    for layer_id in (0, 7, -1, "2", None):
        with pytest.raises(DispatchError, match=rf"no attention of layer {layer_id!r}; valid: 2$"):
            dispatcher.add(layer_id, attention)
    dispatcher.add(2, attention)
    known = half()
    dispatcher.add(1, known)
    with pytest.raises(DispatchError, match="already the gated_delta of layer 1"):
        dispatcher.add(2, known)
    with pytest.raises(DispatchError, match="got a object, expected one of AttentionLayer"):
        dispatcher.add(0, object())
    for state, message in (
        (None, "state: got NoneType"),
        (torch.zeros(8, HEADS, SIZE, SIZE, dtype=torch.int32), "state: got dtype int32"),
        (torch.zeros(8, SIZE, SIZE), "state: got shape"),
        (torch.zeros(8, HEADS, SIZE, SIZE).mT, "state: got strides"),
    ):
        with pytest.raises(ContractError, match=message):
            dispatcher.add(1, half(state=state))
    with pytest.raises(DispatchError, match="no kda of layer 0; valid: none"):
        dispatcher.add(0, kda_call([1]).made.layer)


def test_a_part_needs_the_batch_that_its_op_takes(make: Any) -> None:
    dispatcher = make(gated_delta="told", ops=("attention",))
    caches = torch.zeros(2, 16, HEADS, SIZE)
    layer = AttentionLayer(k_cache=caches, v_cache=caches, scale=1.0)
    dispatcher.add(2, layer)
    with (
        pytest.raises(DispatchError, match="the decode part has no pages, which attention needs"),
        dispatcher.running(both()[:1]),
    ):
        pass  # pragma: no cover
    with pytest.raises(UnknownPhaseError, match="unknown phase 'decod'; nearest: decode; valid: prefill, "):
        Part(phase="decod", rows=slice(0, 1))  # type: ignore[arg-type]
    with pytest.raises(DispatchError, match="the decode part has no sequences"):
        Part(phase="decode", rows=slice(0, 1)).lengths  # noqa: B018
    pages = PagedBatch(
        cu_seqlens=torch.tensor([0, 1], dtype=torch.int32),
        seqlens=(1,),
        page_table=torch.ones(1, 1, dtype=torch.int32),
        kv_lens=torch.tensor([5], dtype=torch.int32),
        kv_seqlens=(5,),
    )
    q = torch.ones(1, HEADS, SIZE)
    out = torch.full_like(q, torch.nan)
    with dispatcher.running([Part(phase="decode", rows=slice(0, 1), pages=pages)]):
        dispatcher.dispatch(AttentionCall(layer, q, out))
    assert torch.equal(out, torch.zeros_like(out))


@pytest.mark.parametrize(
    ("name", "note"),
    [
        ("failing", "backend failing failed in gated_delta prefill of layer 0"),
        ("failingplan", "backend failingplan failed in planning gated_delta prefill"),
    ],
)
def test_a_backends_error_has_a_note_with_backend_op_and_phase(make: Any, name: str, note: str) -> None:
    dispatcher = make(count=1, gated_delta__decode="told", gated_delta__prefill=name)
    layer = half()
    dispatcher.add(0, layer)
    with pytest.raises(RuntimeError, match="no such") as caught, dispatcher.running(both()):
        dispatcher.dispatch(call_of(layer, 7))
    assert caught.value.__notes__ == [note]  # type: ignore[attr-defined]
    with dispatcher.running(both()[:1]):
        dispatcher.dispatch(call_of(layer, 3))


def test_a_verification_is_committed_in_all_layers(runtime: Runtime) -> None:
    """`Dispatcher.commit` commits two layers with the same results as direct calls of the backend."""
    samples = [gated_delta_call([3, 2], phase="verify", seed=seed).with_trees() for seed in (1, 2)]
    plan = runtime.plan(
        Layout.from_kinds("tiny", ["gated_delta"] * 2), device="cpu", dtype="float32", phases=("verify",)
    )
    dispatcher = Dispatcher(runtime.bind(plan), ["gated_delta"])
    calls = [sample.made for sample in samples]
    batch = samples[0].batch
    assert isinstance(batch, VerifyBatch)
    for layer_id, call in enumerate(calls):
        dispatcher.add(layer_id, call.layer)
    accepted = torch.tensor([2, -1])
    expected = []
    for sample in samples:
        alone = sample.clone()
        backend = TorchGatedDelta()
        call = alone.made
        planned: Any = backend.plan("verify", batch)
        backend.commit(call, batch, planned, backend.run(call, batch, planned), accepted)
        expected.append((alone.out, alone.state))
    before = [call.layer.state.clone() for call in calls]
    with dispatcher.running([Part(phase="verify", rows=slice(0, 5), states=batch)]):
        for call in calls:
            dispatcher.dispatch(call)
    for call, state in zip(calls, before, strict=True):
        assert same_bits(call.layer.state, state)
    dispatcher.commit(accepted)
    for call, (out, state) in zip(calls, expected, strict=True):
        assert same_bits(call.out, out)
        assert same_bits(call.layer.state, state)
    changed = [call.layer.state.clone() for call in calls]
    dispatcher.commit(accepted)  # a second commit changes nothing
    assert all(same_bits(call.layer.state, state) for call, state in zip(calls, changed, strict=True))


def test_only_a_verification_returns_a_record(runtime: Runtime) -> None:
    class Forgets(TorchGatedDelta):
        def run(self, call: Any, batch: Any, plan: Any) -> Any:
            super().run(call, batch, plan)

    class Returns(TorchGatedDelta):
        def run(self, call: Any, batch: Any, plan: Any) -> Any:
            super().run(call, batch, plan)
            return call.out

    layout = Layout.from_kinds("tiny", ["gated_delta"])
    for cls, phase in ((Forgets, "verify"), (Returns, "decode")):
        runtime.register(cls.__name__.lower(), cls, op="gated_delta", phases=(phase,))
        plan = runtime.plan(
            layout,
            device="cpu",
            dtype="float32",
            phases=(phase,),
            preferences={"gated_delta": cls.__name__.lower()},
        )
        dispatcher = Dispatcher(runtime.bind(plan), ["gated_delta"])
        sample = gated_delta_call([1, 1], phase=phase)  # type: ignore[arg-type]
        call = sample.made
        dispatcher.add(0, call.layer)
        part = Part(phase=phase, rows=slice(0, 2), states=sample.batch)  # type: ignore[arg-type]
        if phase == "verify":
            with (
                pytest.raises(DispatchError, match="run returned None in verify"),
                dispatcher.running([part]),
            ):
                dispatcher.dispatch(call)
            continue
        with dispatcher.running([part]):
            dispatcher.dispatch(call)
        state = call.layer.state.clone()
        dispatcher.commit(torch.zeros(2, dtype=torch.int64))
        assert same_bits(call.layer.state, state)


class Seen(TorchGatedDelta):
    """Records how gates and slots of its last call are stored."""

    seen: Any = None

    def run(self, call: Any, batch: Any, plan: Any) -> Any:
        self.seen = call.layer.gate, batch.null_slot, batch.read_slots.dtype
        return super().run(call, batch, plan)


class SeenToo(Seen):
    pass


ENGINE, PLAIN = ("softplus", 0, torch.int32), (None, -1, torch.int64)
"""The values that `Seen` records for an engine's call, and for the same call adapted to a backend without
features."""


@pytest.mark.parametrize("bare", ["prefill", "decode"])
def test_each_registration_of_a_name_is_adapted_by_its_own_features(runtime: Runtime, bare: str) -> None:
    """Of two backends with one name, the first serves both phases, and the second overrides it in decode."""
    features = "raw_gates", "null_slot", "index_views"
    for index, (phases, cls) in enumerate(((("prefill", "decode"), Seen), (("decode",), SeenToo))):
        claimed = () if (bare == "prefill") == (index == 0) else features
        runtime.register(
            "acme", cls, op="gated_delta", phases=phases, features=claimed, priority=9, override=index == 1
        )
    bound = bound_of(runtime)
    dispatcher = Dispatcher(bound, ["gated_delta"], {"gated_delta": features})
    call = engine_call()
    dispatcher.add(0, call.layer)
    for phase in ("prefill", "decode"):
        with dispatcher.running([Part(phase=phase, rows=slice(0, 1), states=engine_batch())]):
            dispatcher.dispatch(call)
        assert bound.backend("gated_delta", phase, 0).seen == (PLAIN if phase == bare else ENGINE), phase


def test_backends_of_another_plan_are_adapted_by_their_own_features(runtime: Runtime) -> None:
    """A captured step can be routed to backends that the dispatcher's own plan does not have."""
    features = "raw_gates", "null_slot", "index_views"
    runtime.register("acme", Seen, op="gated_delta", features=features, priority=9)
    runtime.register("bare", SeenToo, op="gated_delta", features=(), priority=1)
    dispatcher = Dispatcher(bound_of(runtime), ["gated_delta"], {"gated_delta": features})
    other = bound_of(runtime, gated_delta="bare")
    call = engine_call()
    dispatcher.add(0, call.layer)
    parts = [Part(phase="decode", rows=slice(0, 1), states=engine_batch())]
    with dispatcher.running(dispatcher.prepare(parts, bound=other)):
        dispatcher.dispatch(call)
    assert other.backend("gated_delta", "decode", 0).seen == PLAIN


def bound_of(runtime: Runtime, **preferences: str) -> BoundPlan:
    layout = Layout.from_kinds("tiny", ["gated_delta"])
    return runtime.bind(runtime.plan(layout, device="cpu", dtype="float32", preferences=preferences))


def engine_batch() -> StateBatch:
    slots = torch.tensor([3], dtype=torch.int32)
    return dataclasses.replace(states(1), read_slots=slots, write_slots=slots, null_slot=0)


def engine_call() -> GatedDeltaCall:
    gates = torch.zeros(HEADS)
    return call_of(half(gate="softplus", A_log=gates, dt_bias=gates, beta_scale=1.0), 1)
