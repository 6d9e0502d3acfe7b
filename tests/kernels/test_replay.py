"""The table of recorded launches, with a stand-in for the CUDA driver, on CPU tensors."""

from __future__ import annotations

import ctypes
import gc
import struct
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

pytest.importorskip("triton")

from switchrail.ops.delta_call import DeltaLayer
from switchrail_kernels import replay
from switchrail_kernels.replay import Calls as Recorder
from switchrail_kernels.replay import _native, calls_of, recording, scratch

from .driver import DEVICE, LAUNCH, NAMES

FUNCTION = 0xABC0
CONSTANT, SCRATCH, KEPT = -1, -2, -3


class Driver:
    """Stands in for the CUDA driver, and records launches."""

    def __init__(self) -> None:
        self.launched: list[tuple[Any, ...]] = []
        self.attributes: list[list[tuple[int, int]]] = []
        self.result = 0
        self.device = 0
        self.parameters = 0
        self.hooks = SimpleNamespace(calls=[])
        others = SimpleNamespace(calls=[])
        self.knobs = SimpleNamespace(launch_enter_hook=self.hooks, launch_exit_hook=others)
        self._launch = LAUNCH(self.launch)
        self._current = DEVICE(self.current)
        self.addresses = [ctypes.cast(f, ctypes.c_void_p).value for f in (self._launch, self._current)]
        self.table = _native().Table(torch.Tensor, torch.nn.Parameter, self.knobs, *self.addresses)
        self.calls = self.layer()

    def layer(self, *addresses: int) -> Any:
        """The calls of a layer whose tensors have these addresses."""
        return _native().Calls(self.table, addresses)

    def launch(self, configuration: Any, function: int, parameters: Any, _extra: Any) -> int:
        given = configuration[0]
        values = [parameters[i][0] for i in range(self.parameters)]
        self.launched.append((function, tuple(given.shape), values))
        attributes = [given.attributes[i] for i in range(given.count)]
        self.attributes.append([(one.id, one.value[0]) for one in attributes])
        return self.result

    def current(self, device: Any) -> int:
        device[0] = self.device
        return 0

    def add(self, tensors: tuple[Any, ...], options: tuple[Any, ...], *parameters: tuple[int, int]) -> None:
        self.parameters = len(parameters)
        shape = (FUNCTION, 2, 3, 4, 128, 512, False)
        self.calls.add(tensors, options, ((shape, parameters),), 0, ())


@pytest.fixture
def driver() -> Driver:
    return Driver()


def test_launches_on_the_calls_own_addresses(driver: Driver) -> None:
    x, y = torch.zeros(4, 8), torch.zeros(4, dtype=torch.int64)
    bits = struct.unpack("<I", struct.pack("<f", 0.5))[0]
    driver.add((x, None, y), (1.0, "silu"), (2, 0), (0, 0), (CONSTANT, 7), (CONSTANT, bits))
    other, slots = torch.zeros(4, 8), torch.zeros(4, dtype=torch.int64)
    assert driver.calls.again((other, None, slots), (1.0, "silu"))
    shape = (2, 3, 4, 128, 1, 1, 512)
    assert driver.launched == [(FUNCTION, shape, [slots.data_ptr(), other.data_ptr(), 7, bits])]


def test_a_kernel_whose_programs_begin_early(driver: Driver) -> None:
    x = torch.zeros(16)
    driver.parameters = 1
    launches = tuple(((FUNCTION, 1, 1, 1, 32, 0, early), ((0, 0),)) for early in (False, True))
    driver.calls.add((x,), (), launches, 0, ())
    assert driver.calls.again((x,), ())
    assert driver.attributes == [[], [(6, 1)]]  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION


def different() -> dict[str, tuple[tuple[Any, ...], tuple[Any, ...]]]:
    """Calls that each differ in one property from the recorded call."""
    x, slots = torch.zeros(4, 8), torch.zeros(4, dtype=torch.int64)
    return {
        "shape": ((torch.zeros(5, 8), None, slots), (1.0, True)),
        "rank": ((torch.zeros(32), None, slots), (1.0, True)),
        "strides": ((torch.zeros(4, 16)[:, :8], None, slots), (1.0, True)),
        "dtype": ((x.bfloat16(), None, slots), (1.0, True)),
        "same bytes": ((x.int(), None, slots), (1.0, True)),
        "device": ((x.to("meta"), None, slots), (1.0, True)),
        "given": ((x, x.clone(), slots), (1.0, True)),
        "not given": ((x, None, None), (1.0, True)),
        "fewer": ((x, None), (1.0, True)),
        "no tensor": ((x, None, [0, 1, 2, 3]), (1.0, True)),
        "no alignment": ((torch.zeros(33)[1:].view(4, 8), None, slots), (1.0, True)),
        "sparse": ((x.to_sparse(), None, slots), (1.0, True)),
        "option": ((x, None, slots), (2.0, True)),
        "type of an option": ((x, None, slots), (1, True)),
        "bool and int": ((x, None, slots), (1.0, 1)),
        "option that isn't": ((x, None, slots), (1.0, None)),
        "option without a hash": ((x, None, slots), (1.0, [])),
        "fewer options": ((x, None, slots), (1.0,)),
    }


@pytest.mark.parametrize("name", different())
def test_calls_that_differ_are_not_repeated(driver: Driver, name: str) -> None:
    driver.add((torch.zeros(4, 8), None, torch.zeros(4, dtype=torch.int64)), (1.0, True), (0, 0))
    assert not driver.calls.again(*different()[name])
    assert driver.launched == []


def test_tensors_of_other_alignment_have_their_own_record(driver: Driver) -> None:
    aligned, other = torch.zeros(4, dtype=torch.int64), torch.zeros(5, dtype=torch.int64)[1:]
    driver.add((aligned,), (), (CONSTANT, 1))
    driver.add((other,), (), (CONSTANT, 2))
    for tensor in (other, aligned, other):
        assert driver.calls.again((tensor,), ())
    assert [values for _, _, values in driver.launched] == [[2], [1], [2]]


def test_subclasses_of_tensors_are_not_repeated_but_parameters_are(driver: Driver) -> None:
    class Subclass(torch.Tensor):
        pass

    x = torch.zeros(4, 8)
    driver.add((x,), (), (0, 0))
    with FakeTensorMode():
        fake = torch.zeros(4, 8)
    for other in (fake, x.as_subclass(Subclass)):
        assert not driver.calls.again((other,), ())
    assert driver.launched == []
    assert driver.calls.again((torch.nn.Parameter(x),), ())


def test_two_arguments_that_are_one_object(driver: Driver) -> None:
    slots = torch.zeros(4, dtype=torch.int64)
    driver.add((slots, slots), (), (0, 0), (0, 0))
    assert not driver.calls.again((slots, slots.clone()), ())
    assert driver.calls.again((slots, slots), ())
    assert len(driver.launched) == 1


def test_scratch_is_each_calls_own(driver: Driver) -> None:
    x = torch.zeros(16)
    driver.parameters = 3
    parameters = ((SCRATCH, 0), (SCRATCH, 256), (0, 0))
    driver.calls.add((x,), (), (((FUNCTION, 1, 1, 1, 32, 0, False), parameters),), 1024, ())
    assert driver.calls.again((x,), ())
    first, second, mine = driver.launched[0][2]
    assert second - first == 256
    assert mine == x.data_ptr()
    assert not first <= mine < first + 1024


def test_a_call_without_memory_for_scratch_is_not_repeated(driver: Driver) -> None:
    x = torch.zeros(16)
    driver.calls.add((x,), (), (((FUNCTION, 1, 1, 1, 32, 0, False), ()),), 2**62, ())
    assert not driver.calls.again((x,), ())
    assert driver.launched == []


def test_launches_in_order(driver: Driver) -> None:
    x = torch.zeros(16)
    driver.parameters = 1
    launches = tuple(((FUNCTION + i, 1, 1, 1, 32, 0, False), ((CONSTANT, i),)) for i in range(3))
    driver.calls.add((x,), (), launches, 0, ())
    assert driver.calls.again((x,), ())
    assert [(function, values) for function, _, values in driver.launched] == [
        (FUNCTION + i, [i]) for i in range(3)
    ]


def test_another_device_is_current(driver: Driver) -> None:
    x = torch.zeros(16)
    driver.add((x,), (), (0, 0))
    driver.device = 1
    assert not driver.calls.again((x,), ())


def test_a_profilers_hooks_see_every_launch(driver: Driver) -> None:
    x = torch.zeros(16)
    driver.add((x,), (), (0, 0))
    driver.hooks.calls.append(print)
    assert not driver.calls.again((x,), ())
    driver.hooks.calls.clear()
    assert driver.calls.again((x,), ())


def test_a_launch_that_fails(driver: Driver) -> None:
    x = torch.zeros(16)
    driver.add((x,), (), (0, 0))
    driver.result = 700
    with pytest.raises(RuntimeError, match="CUDA error 700"):
        driver.calls.again((x,), ())


@pytest.mark.parametrize(
    ("launches", "error"),
    [
        ([], TypeError),
        (("x",), TypeError),
        ((((FUNCTION, 1, 1), ()),), TypeError),
        ((((FUNCTION, 1, 1, 1, 32, 0, False), ((1, 0),)),), ValueError),
        ((((FUNCTION, 1, 1, 1, 32, 0, False), ((KEPT, 0),)),), ValueError),
        ((((FUNCTION, 1, 1, 1, 32, 0, False), ((-4, 0),)),), ValueError),
        ((((FUNCTION, 1, 1, 1, 32, 0, False), (0,)),), TypeError),
        ((((FUNCTION, 1, 1, 1, 32, 0, False), ((CONSTANT, 0),) * 129),), ValueError),
    ],
)
def test_a_launch_that_cant_be_read_is_not_added(driver: Driver, launches: Any, error: Any) -> None:
    with pytest.raises(error):
        driver.calls.add((torch.zeros(16),), (), launches, 0, ())
    assert len(driver.table) == 0


@pytest.mark.parametrize("tensors", [(torch.zeros(16),) * 33, (torch.zeros((1,) * 60),) * 5, (None,), (1,)])
def test_tensors_that_cant_be_described_are_not_added(driver: Driver, tensors: Any) -> None:
    assert not driver.calls.add(tensors, (), (), 0, ())
    assert len(driver.table) == 0
    assert not driver.calls.again(tensors, ())


@pytest.mark.parametrize("options", [(torch.float32,), ([],), ((1, 2),), (object(),)])
def test_options_of_other_types_are_refused(driver: Driver, options: Any) -> None:
    with pytest.raises(TypeError, match="None, bool, int, float or str"):
        driver.calls.add((torch.zeros(16),), options, (), 0, ())


def test_the_table_does_not_grow_without_end(driver: Driver) -> None:
    x = torch.zeros(16)
    for i in range(1025):
        driver.add((x,), (i,), (CONSTANT, i))
    assert len(driver.table) == 1
    assert not driver.calls.again((x,), (1023,))
    assert driver.calls.again((x,), (1024,))


def test_recorded_kernels_stay_loaded(driver: Driver) -> None:
    class Kernel:
        pass

    kernel, gone = Kernel(), threading.Event()
    weakref.finalize(kernel, gone.set)
    x = torch.zeros(16)
    driver.calls.add((x,), (), (), 0, (kernel,))
    del kernel
    assert not gone.is_set()
    del driver.calls, driver.table
    assert gone.is_set()


def make_layer(**options: Any) -> DeltaLayer:
    return DeltaLayer(**{"state": torch.zeros(8), "scale": 1.0, "qk_l2norm": True, **options})


def make_calls(layer: DeltaLayer | None = None) -> Recorder:
    return calls_of(make_layer() if layer is None else layer, object())


def test_a_layers_own_tensors_have_the_layers_addresses(driver: Driver) -> None:
    x = torch.zeros(4)
    driver.parameters = 4
    first, second = driver.layer(100, 2**64 - 2), driver.layer(300, 400)
    launch = ((FUNCTION, 1, 1, 1, 32, 0, False), ((KEPT, 1), (0, 0), (KEPT, 0), (CONSTANT, 5)))
    assert first.add((x,), (), (launch,), 0, ())
    for _ in range(2):
        assert second.again((x,), ())
        assert first.again((x,), ())
    here = x.data_ptr()
    wanted = [[400, here, 300, 5], [2**64 - 2, here, 100, 5]]
    assert [values for _, _, values in driver.launched] == [*wanted, *wanted]


def test_a_record_never_serves_a_layer_of_another_number_of_tensors(driver: Driver) -> None:
    x = torch.zeros(4)
    driver.parameters = 1
    layers = [driver.layer(*range(1, count + 1)) for count in range(4)]
    for count, layer in enumerate(layers):
        assert not layer.again((x,), ())
        assert layer.add((x,), (), (((FUNCTION, 1, 1, 1, 32, 0, False), ((CONSTANT, count),)),), 0, ())
    for layer in layers:
        assert layer.again((x,), ())
    assert [values for _, _, values in driver.launched] == [[0], [1], [2], [3]]
    wrong = (((FUNCTION, 1, 1, 1, 32, 0, False), ((KEPT, 2),)),)
    with pytest.raises(ValueError, match="does not have"):
        layers[2].add((x,), (1,), wrong, 0, ())
    assert layers[3].add((x,), (1,), wrong, 0, ())


@pytest.mark.parametrize("addresses", [(-1,), (2**64,), ("x",), (1.0,)])
def test_invalid_addresses_are_refused(driver: Driver, addresses: Any) -> None:
    with pytest.raises((TypeError, OverflowError)):
        driver.layer(*addresses)


def test_a_layers_calls_keep_the_table_and_the_table_no_layer(driver: Driver) -> None:
    x = torch.zeros(4)
    driver.parameters = 1
    driver.add((x,), (), (0, 0))
    layer = driver.layer()
    del driver.calls, driver.table
    assert layer.again((x,), ())


def test_a_recording_belongs_to_its_thread() -> None:
    layer = make_layer()
    calls = make_calls(layer)
    x = torch.zeros(4)
    with calls.record(layer, (x, None), ()) as call:
        assert recording() is call
        part = scratch((3,), torch.float32, x.device)
        assert call.sources((part, x)) == [(SCRATCH, 0), (0, 0)]
        assert call.sources((scratch((3,), torch.float32, x.device),)) == [(SCRATCH, 256)]
        with pytest.raises(KeyError):
            call.sources((x.clone(),))
        seen: list[object] = []
        thread = threading.Thread(target=lambda: seen.append(recording()))
        thread.start()
        thread.join()
        assert seen == [None]
        with pytest.raises(RuntimeError), calls.record(layer, (x,), ()):
            pass
    assert recording() is None
    assert not calls.again((x, None), ())


@pytest.mark.parametrize(
    ("method", "event"), [("__enter__", "return"), ("__exit__", "call"), ("__exit__", "return")]
)
def test_an_interrupted_recording_is_ignored(method: str, event: str) -> None:
    """A recording left behind by an interrupt is ignored.

    A signal's exception can be raised before the first line of `__exit__`.
    """
    code = getattr(replay.Recording, method).__code__

    def interrupt(frame: FrameType, found: str, _: object) -> Any:
        if frame.f_code is code:
            if found == event:
                sys.settrace(None)
                raise KeyboardInterrupt
            return interrupt
        return None

    def launch() -> None:
        sys.settrace(interrupt)
        with calls.record(layer, (x,), ()):
            pass

    layer = make_layer()
    calls = make_calls(layer)
    x = torch.zeros(4)
    with pytest.raises(KeyboardInterrupt) as caught:  # the traceback keeps the frames
        launch()
    assert recording() is None
    with pytest.raises(KeyboardInterrupt):
        launch()
    with calls.record(layer, (x,), ()) as call:
        assert recording() is call
    assert recording() is None
    assert caught.tb


def test_a_failed_call_is_not_recorded() -> None:
    layer = make_layer()
    calls = make_calls(layer)
    tensors = (torch.zeros(4),)
    with pytest.raises(ValueError, match="in a launch"), calls.record(layer, tensors, ()):
        raise ValueError("in a launch")
    assert recording() is None


class Plain:
    """A kernel with one address as its parameter."""

    is_plain, function, threads, shared, early = True, FUNCTION, 32, 0, False

    def parameters(self, places: list[tuple[int, int]], values: tuple[float, ...]) -> Any:
        return tuple(places)


@pytest.fixture
def gpu(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> Driver:
    """Makes recorded calls use the stand-in driver."""
    monkeypatch.setattr(replay, "_driver", lambda name: driver.addresses[NAMES.index(name)])
    monkeypatch.setattr(replay, "knobs", SimpleNamespace(runtime=driver.knobs))
    monkeypatch.setattr(replay, "_tables", weakref.WeakValueDictionary())
    driver.parameters = 1
    return driver


def record(layer: DeltaLayer, owner: object, given: torch.Tensor, *tensors: torch.Tensor | None) -> None:
    """Record a call on `tensors` with one launch of a kernel on `given`."""
    with calls_of(layer, owner).record(layer, tensors, ()) as call:
        call.add((1, 1, 1), Plain(), call.sources((given,)), ())  # type: ignore[arg-type]


def test_a_tensor_of_the_layer_that_the_call_passes_is_the_calls(gpu: Driver) -> None:
    rates = torch.zeros(4)
    layer = make_layer(A_log=rates)
    x = torch.zeros(4)
    with make_calls().record(layer, (x, rates), ()) as call:
        assert call.sources((layer.state, x)) == [(KEPT, 0), (0, 0)]
        assert call.sources((rates,)) == [(1, 0)]
        with pytest.raises(KeyError):
            call.sources((make_layer().state,))
    with make_calls().record(layer, (x,), ()) as call:
        assert call.sources((rates,)) == [(KEPT, 1)]


def test_a_call_that_brings_a_tensor_of_its_layers_is_not_repeated(gpu: Driver) -> None:
    """If it were repeated, another call's tensor would be used in both places."""
    layer, owner = make_layer(A_log=torch.zeros(4)), object()
    assert layer.A_log is not None
    record(layer, owner, layer.A_log, layer.A_log)
    assert not calls_of(layer, owner).again((torch.zeros(4),), ())
    assert not calls_of(layer, owner).again((layer.A_log,), ())
    record(layer, owner, layer.A_log, torch.zeros(4))
    assert calls_of(layer, owner).again((layer.A_log,), ())
    assert gpu.launched[0][2] == [layer.A_log.data_ptr()]


def test_layers_of_one_kind_share_the_records_of_an_owner(gpu: Driver) -> None:
    x, owner = torch.zeros(4), object()
    layers = [make_layer() for _ in range(3)]
    early = calls_of(layers[2], owner)  # before anything is recorded
    record(layers[0], owner, layers[0].state, x)
    for layer in layers[:2]:
        assert calls_of(layer, owner).again((x,), ())
        assert not calls_of(layer, object()).again((x,), ())
    assert [values for _, _, values in gpu.launched] == [[layer.state.data_ptr()] for layer in layers[:2]]
    assert not early.again((x,), ())  # not repeated, which costs one slow launch
    record(layers[2], owner, layers[2].state, x)
    assert early.again((x,), ())
    assert gpu.launched[-1][2] == [layers[2].state.data_ptr()]
    assert len(replay._tables) == 3  # of `owner` and of the two other owners


def unlike() -> dict[str, DeltaLayer]:
    """Layers that each differ in one property from the layer of `test_layers_that_differ_share_nothing`."""
    rates = torch.zeros(8)
    room = torch.zeros(17)
    return {
        "option": make_layer(scale=2.0),
        "type of an option": make_layer(scale=1),
        "bool and int": make_layer(qk_l2norm=1),
        "option that isn't None": make_layer(lower_bound=0.0),
        "text": make_layer(gate="softplus"),
        "shape": make_layer(state=torch.zeros(9)),
        "rank": make_layer(state=torch.zeros(8, 1)),
        "strides": make_layer(state=torch.zeros(16)[::2]),
        "dtype": make_layer(state=torch.zeros(8, dtype=torch.int32)),
        "device": make_layer(state=torch.zeros(8, device="meta")),
        "alignment": make_layer(state=room[1:9] if room.data_ptr() % 16 == 0 else room[:8]),
        "given": make_layer(A_log=rates),
        "two given": make_layer(A_log=rates, dt_bias=torch.zeros(8)),
        "one object": make_layer(A_log=rates, dt_bias=rates),
        "another object": make_layer(state=rates, dt_bias=rates),
        "in another place": make_layer(dt_bias=rates),
        "another class": type("Other", (DeltaLayer,), {})(state=rates, scale=1.0, qk_l2norm=True),
        "sparse": make_layer(state=torch.zeros(8).to_sparse()),
        "no tensor": make_layer(state=[0.0] * 8),
        "no plain option": make_layer(scale=(1.0,)),
    }


@pytest.mark.parametrize("name", unlike())
def test_layers_that_differ_share_nothing(gpu: Driver, name: str) -> None:
    x, owner = torch.zeros(4), object()
    layers = {"": make_layer(), **unlike()}
    record(layers[""], owner, x, x)
    assert not calls_of(layers[name], owner).again((x,), ())
    record(layers[name], owner, x, x)
    for other in layers.keys() - {"", name}:
        assert not calls_of(layers[other], owner).again((x,), ())


def test_zeros_of_either_sign_are_not_one_option(gpu: Driver) -> None:
    x, owner = torch.zeros(4), object()
    layers = [make_layer(lower_bound=bound) for bound in (0.0, -0.0)]
    record(layers[0], owner, x, x)
    assert not calls_of(layers[1], owner).again((x,), ())


@pytest.mark.parametrize("name", ["sparse", "no tensor", "no plain option", "fake"])
def test_a_layer_that_cant_be_told_from_others_is_not_repeated(gpu: Driver, name: str) -> None:
    x, owner = torch.zeros(4), object()
    with FakeTensorMode():
        fake = make_layer()
    layer = {**unlike(), "fake": fake}[name]
    record(layer, owner, x, x)
    assert not calls_of(layer, owner).again((x,), ())


def test_parameters_of_a_class_of_their_own_are_tensors_like_others(gpu: Driver) -> None:
    class Weight(torch.nn.Parameter):
        pass

    x, owner = torch.zeros(4), object()
    layers = [make_layer(state=make(torch.zeros(8))) for make in (Weight, torch.nn.Parameter, torch.Tensor)]
    record(layers[0], owner, layers[0].state, x)
    assert all(calls_of(layer, owner).again((x,), ()) for layer in layers)
    assert [values for _, _, values in gpu.launched] == [[layer.state.data_ptr()] for layer in layers]


@pytest.mark.usefixtures("small_heap")
def test_records_are_freed_with_the_last_layer_of_their_kind(gpu: Driver) -> None:
    class Kernel(Plain):
        pass

    x, owner = torch.zeros(4), object()
    layers = [make_layer() for _ in range(3)]
    kernel, gone = Kernel(), threading.Event()
    weakref.finalize(kernel, gone.set)
    with calls_of(layers[0], owner).record(layers[0], (x,), ()) as call:
        call.add((1, 1, 1), kernel, call.sources((x,)), ())  # type: ignore[arg-type]
    del kernel, call
    gc.collect()
    gc.disable()
    try:
        while layers:
            assert calls_of(layers[-1], owner).again((x,), ())
            state = weakref.ref(layers[-1].state)
            assert not gone.is_set()
            layers.pop()
            assert state() is None
        assert gone.is_set()
        assert not replay._tables
    finally:
        gc.enable()


def test_each_layer_and_each_owner_has_calls_of_its_own() -> None:
    layer, other = make_layer(), make_layer()
    owners = (object(), object())
    tables = [calls_of(each, owner) for each in (layer, other) for owner in owners]
    assert len(set(map(id, tables))) == 4
    assert [calls_of(each, owner) for each in (layer, other) for owner in owners] == tables


def test_threads_that_ask_for_a_layers_calls_at_once_get_the_same() -> None:
    for _ in range(50):
        layer, owner = make_layer(), object()
        barrier = threading.Barrier(4)

        def ask(layer: Any = layer, owner: object = owner, barrier: Any = barrier) -> Recorder:
            barrier.wait()
            return calls_of(layer, owner)

        with ThreadPoolExecutor(4) as pool:
            found = [pool.submit(ask) for _ in range(4)]
        assert len({id(future.result()) for future in found}) == 1


def test_works_without_the_table_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise OSError("no compiler")

    monkeypatch.setattr(replay, "_build", fail)
    _native.cache_clear()
    calls = make_calls()
    tensors = (torch.zeros(4),)
    try:
        with pytest.warns(RuntimeWarning, match="no compiler"):
            calls.remember(tensors, (), (), 0, ())
        calls.remember(tensors, (), (), 0, ())  # it warns once
        assert not calls.again(tensors, ())
    finally:
        _native.cache_clear()
