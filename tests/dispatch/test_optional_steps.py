"""Tests of the optional steps in `switchrail.ops.steps`: methods that the dispatcher calls on backends that
declare them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from switchrail import Layout, Runtime
from switchrail.dispatch import Dispatcher, Part
from switchrail.errors import ArgumentError, DispatchError
from switchrail.ops import MlaBackend, MlaCall, MlaLayer, PagedBatch
from switchrail.ops.batch import sequences
from switchrail.ops.delegate import Delegate

PAGE = 16
LAYERS = 2


class Planned(MlaBackend):
    """Has one plan at a time, as a library's wrapper does, and refuses calls with another number of rows."""

    def __init__(self, config: object = None) -> None:
        super().__init__(config)
        self.rows = -1
        self.noted: list[Any] = []

    def plan(self, phase: Any, batch: Any, bounds: Any = None) -> Any:
        return batch.seqlens

    def note(self, batch: Any, *flags: bool) -> None:
        self.rows = sum(batch.seqlens)
        self.noted.append((self.rows, *flags))

    def run(self, call: MlaCall, batch: Any, plan: Any) -> None:
        if self.rows >= 0:
            assert len(call.q_nope) == self.rows, "the plan is stale"


class WithFlag(Planned):
    def plan_chunked_prefix(self, batch: Any, ragged: bool) -> None:
        self.note(batch, ragged)


class WithBatch(Planned):
    def plan_chunked_prefix(self, batch: Any) -> None:
        self.note(batch)


class Nested(Delegate):
    """A wrapper that contains another wrapper."""

    op = "mla"
    kind: type[Planned] = WithFlag

    def __init__(self, config: object = None) -> None:
        self.inner = self.kind()
        super().__init__({"a": Around(self.inner), "b": Planned()}, lambda phase, batch: "a")

    @property
    def noted(self) -> list[Any]:
        return self.inner.noted


class NestedWithBatch(Nested):
    kind = WithBatch


class NestedWithout(Nested):
    kind = Planned


class Around(Delegate):
    op = "mla"

    def __init__(self, inner: Any) -> None:
        super().__init__({"only": inner}, lambda phase, batch: "only")


def layers() -> list[MlaLayer]:
    cache = torch.zeros(1, PAGE, 8)
    return [
        MlaLayer(kv_cache=cache, w_k=torch.zeros(1, 2, 6), w_v=torch.zeros(1, 2, 6), scale=1.0) for _ in "12"
    ]


def part(phase: Any, lengths: tuple[int, ...], past: int = 0) -> Part:
    kv = tuple(length + past for length in lengths)
    pages = PagedBatch(
        **sequences(lengths, "cpu"),
        page_table=torch.zeros(len(lengths), -(-max(kv) // PAGE), dtype=torch.int32),
        kv_lens=torch.tensor(kv, dtype=torch.int32),
        kv_seqlens=kv,
    )
    return Part(phase=phase, rows=slice(0, sum(lengths)), pages=pages)


Make = Callable[..., tuple[Dispatcher, list[MlaLayer]]]


@pytest.fixture
def make() -> Make:
    def make(cls: type[Any], *features: str, **flags: bool) -> tuple[Dispatcher, list[MlaLayer]]:
        runtime = Runtime()
        runtime.register("own", cls, op="mla", phases=("prefill", "verify"), features=features, priority=5)
        plan = runtime.plan(
            Layout.from_kinds("model", ["mla"] * LAYERS), device="cpu", dtype="float32",
            phases=("prefill", "verify"),
        )  # fmt: skip
        dispatcher, made = Dispatcher(runtime.bind(plan), flags=flags), layers()
        for index, layer in enumerate(made):
            dispatcher.add(index, layer)
        return dispatcher, made

    return make


def run(dispatcher: Dispatcher, made: list[MlaLayer], step: Part) -> None:
    rows = step.rows.stop
    with dispatcher.running([step]):
        for layer in made:
            shapes = (2, 2, 2)
            dispatcher.dispatch(MlaCall(layer, *(torch.zeros(rows, 1, size) for size in shapes)))


def backend_of(dispatcher: Dispatcher) -> Any:
    return dispatcher.bound.backend("mla", "prefill", 0)


@pytest.mark.parametrize("ragged", [True, False])
@pytest.mark.parametrize("chunked", [True, False])
@pytest.mark.parametrize("cls", [WithFlag, WithBatch, Planned, Nested, NestedWithBatch, NestedWithout])
def test_each_step_plans_its_own_rows(make: Make, cls: type[Any], ragged: bool, chunked: bool) -> None:
    """Steps of 800, 8,218 and again 800 rows run one after the other; none runs on the plan of another."""
    kind = cls.kind if issubclass(cls, Nested) else cls
    features = ("plan_chunked_prefix",) if kind is not Planned else ()
    dispatcher, made = make(cls, *features, ragged=ragged, chunked=chunked)
    steps = ((800,), (8000, 218), (800,))
    for lengths in steps:
        run(dispatcher, made, part("prefill", lengths, past=100))
    rows = [sum(lengths) for lengths in steps]
    known = {
        WithFlag: [(count, ragged) for count in rows],
        WithBatch: [(count,) for count in rows],
        Planned: [],
    }
    # If `ragged` is off, a method that doesn't take this flag is not called.
    is_called = chunked and (ragged or kind is not WithBatch)
    assert backend_of(dispatcher).noted == (known[kind] if is_called else [])


def test_an_unknown_flag_is_refused(make: Make) -> None:
    with pytest.raises(
        ArgumentError, match="no optional step has a flag 'raged'; nearest: ragged; valid: ragged, c"
    ):
        make(WithFlag, "plan_chunked_prefix", raged=False)


def test_a_step_that_is_not_declared_is_not_run(make: Make) -> None:
    class Inheriting(WithBatch):
        plan_chunked_prefix: Any = None

    dispatcher, made = make(Inheriting)
    run(dispatcher, made, part("prefill", (3,)))
    assert backend_of(dispatcher).noted == []


def test_the_verify_step_gets_each_batch_after_it_was_planned(make: Make) -> None:
    class Masks(Planned):
        def fill_verify_buffers(self, plan: Any, batch: Any) -> None:
            self.noted.append((plan, batch.seqlens))

        def refresh(self, plan: Any, batch: Any) -> None:
            self.noted.append("refreshed")

    dispatcher, _ = make(Masks, "fill_verify_buffers")
    prepared = dispatcher.prepare([part("verify", (3, 1))])
    backend = backend_of(dispatcher)
    assert backend.noted == [((3, 1), (3, 1))]
    dispatcher.refresh(prepared, [part("verify", (3, 1), past=9)])
    assert backend.noted[1:] == ["refreshed", ((3, 1), (3, 1))]
    dispatcher.prepare([part("prefill", (3, 1))])
    assert len(backend.noted) == 3


def test_a_failing_step_names_the_backend(make: Make) -> None:
    class Failing(Planned):
        def plan_chunked_prefix(self, batch: Any) -> None:
            raise RuntimeError("no room")

    dispatcher, _ = make(Failing, "plan_chunked_prefix")
    with pytest.raises(RuntimeError, match="no room") as caught:
        dispatcher.prepare([part("prefill", (3,))])
    assert caught.value.__notes__ == ["backend own failed in planning mla prefill"]


def test_steps_before_any_plan(make: Make) -> None:
    class Graphed(Planned):
        def init_graph_state(self, bounds: Any) -> None:
            self.noted.append(bounds)

        def graph_fill_value(self) -> int:
            return 1

    dispatcher, _ = make(Graphed, "init_graph_state", "graph_fill_value")
    routes = [dispatcher.bound.at(phase, (1,), (1,)) for phase in ("prefill", "verify")]
    dispatcher.once("init_graph_state", routes, ["mla"], bounds="largest")
    assert backend_of(dispatcher).noted == ["largest"]
    assert dispatcher.once("graph_fill_value", routes, ["mla"]) == 1
    assert dispatcher.once("graph_fill_value", routes, []) is None
    assert dispatcher.once("fill_verify_buffers", routes, ["mla"]) is None


def test_the_log_names_the_steps_of_a_backend(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "switchrail.dispatch")
    dispatcher, made = make(WithBatch, "plan_chunked_prefix")
    for _ in range(2):
        run(dispatcher, made, part("prefill", (3,)))
    assert caplog.messages == ["first use of mla prefill: own", "plan_chunked_prefix of mla prefill: own"]


def test_agreement_is_over_all_backends_of_a_model() -> None:
    from switchrail.ops.steps import agreed

    assert agreed("graph_fill_value", {"a": 1, "b": None, "c": 1}) == 1
    with pytest.raises(DispatchError, match="a returned 1, c returned 0"):
        agreed("graph_fill_value", {"a": 1, "b": None, "c": 0})
