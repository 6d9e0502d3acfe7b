"""Tests of the optional steps of backends, and of wrappers, which forward these steps to their parts."""

from __future__ import annotations

import sys
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import switchrail
from switchrail.adapters import Served
from switchrail.errors import ArgumentError, BackendImportError, DispatchError
from switchrail.ops import MlaBackend, MlaCall
from switchrail.ops.adapter import Adapter
from switchrail.ops.backend import Backend
from switchrail.ops.delegate import Delegate, Wrapper
from switchrail.ops.mla import prefix
from switchrail.ops.mla.torch import TorchMla
from switchrail.ops.steps import STEPS, declared, own_steps
from switchrail.testing.compare import verify
from switchrail.testing.inputs import mla_call

ARGUMENTS: dict[str, Any] = {
    "plan": "plan",
    "batch": "batch",
    "bounds": "bounds",
    "ragged": True,
    "chunked": True,
}
CLAIMS: dict[str, Any] = {"op": "mla", "phases": ("prefill", "decode"), "priority": 5}


class Noting(MlaBackend):
    """Records its calls."""

    def __init__(self, config: object = None) -> None:
        super().__init__(config)
        self.noted: list[tuple[Any, ...]] = []

    def plan(self, phase: Any, batch: Any, bounds: Any = None) -> Any:
        return "own plan"

    def run(self, call: MlaCall, batch: Any, plan: Any) -> None:
        self.noted.append(("run", len(call.out), plan))
        call.out.zero_()


class WithFlag(Noting):
    """Its step takes the batch and the flag `ragged`, as in SGLang."""

    def plan_chunked_prefix(self, batch: Any, ragged: bool) -> None:
        self.noted.append((batch, ragged))


class WithBatch(Noting):
    """Its step takes only the batch."""

    def plan_chunked_prefix(self, batch: Any) -> None:
        self.noted.append((batch,))


class WithAll(Noting):
    """Has every step, with all arguments."""


def _noting_step(name: str) -> Any:
    def method(self: Noting, **arguments: Any) -> Any:
        self.noted.append((name, arguments))
        return 1 if name == "graph_fill_value" else None

    return method


for _name in STEPS:
    setattr(WithAll, _name, _noting_step(_name))


class First(Delegate):
    """Runs all batches on its first part."""

    op = "mla"

    def __init__(self, *parts: Any) -> None:
        super().__init__({str(i): part for i, part in enumerate(parts)}, lambda phase, batch: "0")


def arguments_of(name: str, **changes: Any) -> dict[str, Any]:
    return {argument: {**ARGUMENTS, **changes}[argument] for argument in STEPS[name].arguments}


def run_step(backend: Any, **changes: Any) -> None:
    batch = mla_call([2]).batch
    plan = backend.plan("prefill", batch)
    flags = {"ragged": True, "chunked": True, **changes}
    backend.optional_steps()["plan_chunked_prefix"](plan=plan, batch=batch, **flags)


def wrapped(backend: Any) -> list[Any]:
    """The backend in each kind of wrapper, and in wrappers inside wrappers."""
    features = sorted(STEPS)
    return [
        Adapter(backend, features),
        First(backend),
        First(First(backend)),
        Adapter(First(backend, Noting()), features),
        First(Adapter(backend, features), Noting()),
    ]


def test_every_wrapper_of_ours_is_tested() -> None:
    def below(cls: type[Any]) -> set[type[Any]]:
        return {cls, *(one for child in cls.__subclasses__() for one in below(child))}

    ours = {cls for cls in below(Wrapper) if cls.__module__.startswith("switchrail")}
    assert ours >= {Wrapper, Delegate, Adapter}
    assert {cls.optional_steps for cls in ours} == {Wrapper.optional_steps}
    for cls in below(Backend):
        if cls.__module__.startswith("switchrail") and not issubclass(cls, Wrapper):
            assert cls.optional_steps is Backend.optional_steps, "a wrapper must derive from Wrapper"


@pytest.mark.parametrize("name", STEPS)
def test_a_wrapper_forwards_every_step_of_the_interface(name: str) -> None:
    for kind in range(len(wrapped(WithAll()))):
        backend = WithAll()
        wrapper = wrapped(backend)[kind]
        assert wrapper.optional_steps().keys() == STEPS.keys()
        batch = mla_call([2]).batch
        own = {"plan": wrapper.plan("prefill", batch), "batch": batch}
        result = wrapper.optional_steps()[name](**arguments_of(name, **own))
        ((noted, arguments),) = backend.noted
        assert (noted, arguments) == (name, arguments_of(name, plan="own plan", batch=batch))
        assert result == (1 if name == "graph_fill_value" else None)


def test_steps_take_any_of_their_arguments() -> None:
    for cls, on in ((WithFlag, {"ragged": True}), (WithBatch, {})):
        for kind in range(5):
            backend = cls()
            wrapper = wrapped(backend)[kind]
            run_step(wrapper)
            (noted,) = backend.noted
            assert noted[1:] == tuple(on.values())
            assert noted[0].seqlens == (2,)


def test_a_step_that_does_not_know_a_flag_is_not_called_where_it_is_off() -> None:
    flagged, plain = WithFlag(), WithBatch()
    for backend in (flagged, plain):
        run_step(First(backend), ragged=False)
        run_step(First(backend), chunked=False)
    assert [noted[1:] for noted in flagged.noted] == [(False,)]
    assert plain.noted == []


def test_a_part_without_a_step_is_passed_over() -> None:
    assert own_steps(Noting()) == {}
    assert First(Noting()).optional_steps() == {}
    backend = WithBatch()
    wrapper = First(Noting(), backend)  # the first part plans, the second has the step
    run_step(wrapper)
    assert backend.noted == []


class Fill(Noting):
    def __init__(self, value: int) -> None:
        super().__init__()
        self.value = value

    def graph_fill_value(self) -> int:
        return self.value


def test_fill_values_of_parts_agree() -> None:
    assert First(Fill(1), Noting(), First(Fill(1))).optional_steps()["graph_fill_value"]() == 1
    wrapper = First(Fill(1), First(Noting(), Fill(0)))
    with pytest.raises(
        DispatchError, match="graph_fill_value: 0 returned 1, 1 returned 0; all backends must"
    ):
        wrapper.optional_steps()["graph_fill_value"]()


def test_a_delegate_runs_on_the_part_that_planned() -> None:
    class Split(Delegate):
        op = "mla"

        def __init__(self, config: object = None) -> None:
            parts = {"short": TorchMla(), "long": TorchMla()}
            super().__init__(parts, lambda phase, batch: "long" if max(batch.kv_seqlens) > 20 else "short")

    for lengths, part in (((30, 2), "long"), ((3, 2), "short")):
        call = mla_call(lengths)
        backend = Split()
        assert backend.plan("prefill", call.batch).part == part
        verify(backend, call)


def _misnamed(self: Any, batch: Any, raged: bool) -> None: ...


def _positional(self: Any, batch: Any, /) -> None: ...


def _fitting(self: Any, batch: Any) -> None: ...


@pytest.mark.parametrize(
    ("method", "features", "message"),
    [
        (
            _misnamed,
            ("plan_chunked_prefix",),
            "takes 'raged'; nearest: ragged; valid: any of plan, batch, ragged",
        ),
        (
            _positional,
            ("plan_chunked_prefix",),
            "takes 'batch', which can't be passed by name; valid: any of plan, batch",
        ),
        (_fitting, (), "has the method 'plan_chunked_prefix', but its registration has no feature"),
        (None, ("plan_chunked_prefix",), "feature 'plan_chunked_prefix', but the class has no method"),
    ],
)
@pytest.mark.parametrize("by_path", [False, True])
def test_classes_that_do_not_match_are_refused(
    method: Any, features: Any, message: str, by_path: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A class is refused when it is registered, and a class that is given by its path when it is built."""
    cls = type("Vendor", (Noting,), {} if method is None else {"plan_chunked_prefix": method})
    monkeypatch.setitem(sys.modules, "a_vendor", SimpleNamespace(Vendor=cls))
    with switchrail.testing.isolated() as runtime:
        target = "a_vendor:Vendor" if by_path else cls
        registers = partial(runtime.register, "vendor", target, features=features, **CLAIMS)
        if by_path:
            registers()
        with pytest.raises(BackendImportError, match=message):
            runtime.build("mla", "vendor", "prefill") if by_path else registers()


def test_a_misspelt_method_is_suggested() -> None:
    cls = type("Vendor", (Noting,), {"plan_chunk_prefix": _fitting})
    with (
        switchrail.testing.isolated() as runtime,
        pytest.raises(BackendImportError, match="nearest: plan_chunk_prefix"),
    ):
        runtime.register("vendor", cls, features=("plan_chunked_prefix",), **CLAIMS)


def test_a_wrapper_whose_parts_lack_a_declared_step_is_refused_when_it_is_built() -> None:
    class Empty(First):
        def __init__(self, config: object = None) -> None:
            super().__init__(Noting())

    with switchrail.testing.isolated() as runtime:
        runtime.register("empty", Empty, features=("plan_chunked_prefix",), **CLAIMS)
        with pytest.raises(
            BackendImportError, match="'plan_chunked_prefix', but none of its parts has this step"
        ):
            runtime.build("mla", "empty", "prefill")


def test_a_wrapper_that_does_not_declare_a_step_of_its_parts_is_refused_when_it_is_built() -> None:
    class Silent(First):
        def __init__(self, config: object = None) -> None:
            super().__init__(WithAll())

    with switchrail.testing.isolated() as runtime:
        runtime.register("silent", Silent, **CLAIMS)
        with pytest.raises(BackendImportError, match="parts has the step 'plan_chunked_prefix'"):
            runtime.build("mla", "silent", "prefill")


def test_the_core_and_the_interface_have_the_same_steps() -> None:
    with switchrail.testing.isolated() as runtime:
        runtime.register("vendor", WithAll, features=sorted(STEPS), **CLAIMS)
        (registration,) = (one for one in runtime.backends("mla") if one.name == "vendor")
        assert set(declared(registration.capabilities["features"])) == set(STEPS)
    for step in STEPS.values():
        assert set(step.flags) <= set(step.arguments)
        assert step.is_planned == ("plan" in step.arguments)


def pieces(call: Any, **options: Any) -> Any:
    flags = {"ragged": True, "chunked": True, **options}
    return prefix.ChunkedPrefix.of(call.batch, **flags)


LENGTHS, CACHED = (40, 1, 7, 0, 66), (40, 6, 37, 3, 165)


@pytest.mark.parametrize("padding", [(), (2,)])
@pytest.mark.parametrize("capacity", [8192, 64, 16, 7, 1])
def test_a_prefill_in_pieces(
    capacity: int, padding: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prefill in one piece or in chunks of any size agrees with the reference."""
    monkeypatch.setattr(prefix, "CHUNK", capacity)

    class Expanded(TorchMla):
        def plan(self, phase: Any, batch: Any, bounds: Any = None) -> Any:
            plan = super().plan(phase, batch, bounds)
            self.plan_chunked_prefix(plan, batch, ragged=True, chunked=True)
            return plan

    call = mla_call(LENGTHS, kv_lengths=CACHED, padding=padding, lse=True, page=16)
    found = pieces(call)
    prefixes = [
        0 if n in padding else kv - own for n, (own, kv) in enumerate(zip(LENGTHS, CACHED, strict=True))
    ]
    prefixes[3] = 0  # a sequence without new tokens reads no prefix
    if capacity == 8192:
        assert not found.chunks
    else:
        assert sum(found.own.ragged.seqlens_k) == sum(found.own.ragged.seqlens)
        assert [sum(chunk.ragged.seqlens_k) for chunk in found.chunks[:-1]] == [capacity] * (
            len(found.chunks) - 1
        )
        assert sum(sum(chunk.ragged.seqlens_k) for chunk in found.chunks) == sum(prefixes)
    verify(Expanded(), call)
    verify(Expanded(), mla_call((9, 3), lse=True))
    verify(Expanded(), mla_call((3, 1), absorbed=True))


def test_options_of_a_prefill_in_pieces() -> None:
    fresh, cached = mla_call((4, 3)), mla_call((4, 3), kv_lengths=(4, 9))
    assert pieces(fresh, chunked=False) is not None
    assert pieces(cached, chunked=False) is None
    for call in (fresh, cached):
        assert pieces(call, ragged=False) is None
        assert pieces(call) is not None
    assert pieces(mla_call((2,), padding=(0,))) is None


def test_a_plan_of_another_backend_completes_nothing() -> None:
    call = mla_call((2,))
    for plan in (object(), TorchMla().plan("prefill", mla_call((3,)).batch)):
        with pytest.raises(ArgumentError, match="plan: got"):
            TorchMla().plan_chunked_prefix(plan, call.batch, ragged=True, chunked=True)
    with pytest.raises(ArgumentError, match="plan: got str"):
        First(WithAll()).optional_steps()["fill_verify_buffers"](plan="other", batch=call.batch)


def test_the_kit_completes_plans_and_names_the_steps() -> None:
    with switchrail.testing.isolated() as runtime:
        runtime.register("vendor", WithFlag, features=("plan_chunked_prefix",), **CLAIMS)
        served = Served(
            runtime, "mla", {"prefill": (), "decode": ()}, device="cpu", dtype="float32",
            flags={"ragged": False},
        )  # fmt: skip
        planned = served.plan("prefill", mla_call([2]).batch)
        assert isinstance(planned.backend, WithFlag)
        assert [noted[1:] for noted in planned.backend.noted] == [(False,)]
        served.plan("decode", mla_call([1], phase="decode").batch)
        assert len(planned.backend.noted) == 1
        assert served.explain() == "mla prefill: vendor, with plan_chunked_prefix\nmla decode: vendor"
