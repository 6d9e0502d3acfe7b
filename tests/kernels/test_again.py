"""Repeated calls reuse launches that earlier calls recorded.

The reuse must not change what is launched, or skip checks of the contract. Stand-ins for the launches of
Triton and of the driver note each launch and run no kernel, so no GPU is needed.
"""

from __future__ import annotations

import copy
import ctypes
import dataclasses
import gc
import importlib
import math
import random
import struct
import weakref
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from switchrail.errors import ArgumentError, ContractError
from switchrail.testing import inputs
from switchrail.testing.compare import same_bits
from switchrail_kernels import BACKENDS, launch, replay

from .driver import DEVICE, LAUNCH, NAMES

PAGED = {"attention": inputs.attention_call, "mla": inputs.mla_call}
RECURRENT = {
    "gated_delta": inputs.gated_delta_call,
    "gated_delta raw": partial(inputs.gated_delta_call, raw="softplus", beta_scale=2.0),
    "kda": inputs.kda_call,
    "lightning": inputs.lightning_call,
    "mamba2": inputs.mamba2_call,
    "short_conv": inputs.short_conv_call,
}
OPS = {**PAGED, **RECURRENT}
SCRATCH = -2

EACH = pytest.mark.parametrize("op", OPS)
PHASES = pytest.mark.parametrize("phase", ["prefill", "decode"])


def first_device(device):
    device[0] = 0
    return 0


class Binary(replay.Binary):
    """Stands in for a compiled kernel. `function` is a number that identifies its specialization."""

    known: dict[object, int] = {}  # noqa: RUF012

    def __init__(self, key, tensors, numbers, constants):
        self.function = self.known.setdefault(key, len(self.known) + 1)
        self.threads, self.shared, self.early, self.is_plain = 128, 1024, False, True
        kinds = ["fp32" if type(n) is float else "constexpr" if n == 1 else "i64" for n in numbers]
        self._types = (*["*i8"] * len(tensors), *kinds, *["constexpr"] * len(constants))


class Gpu:
    """Notes launches: `slow` are Triton's, `fast` are those that are repeated from a record.

    By default, all calls of a backend use one layer: that of the backend's first call.
    """

    def __init__(self, monkeypatch):
        self.slow, self.fast = [], []
        self.layers, self.counts = {}, {}
        monkeypatch.setattr(replay, "_tables", weakref.WeakValueDictionary())
        self._functions = LAUNCH(self.launch), DEVICE(first_device)
        addresses = [ctypes.cast(function, ctypes.c_void_p).value for function in self._functions]
        monkeypatch.setattr(replay, "_driver", lambda name: addresses[NAMES.index(name)])
        hooks = SimpleNamespace(calls=[])
        knobs = SimpleNamespace(runtime=SimpleNamespace(launch_enter_hook=hooks, launch_exit_hook=hooks))
        monkeypatch.setattr(replay, "knobs", knobs)
        gpu = self

        def note(self, index, grid, tensors, numbers, constants, num_warps, num_stages, options):
            kinds = [*map(launch._specialization, numbers), *[t.dtype for t in tensors]]
            aligned = [t.data_ptr() % 16 == 0 for t in tensors]
            key = (id(self), num_warps, num_stages, *options.items(), *constants, *kinds, *aligned)
            binary = Binary(key, tensors, numbers, constants)
            places = replay.recording().sources(tensors)
            addresses = [
                None if p[0] == SCRATCH else t.data_ptr() for p, t in zip(places, tensors, strict=True)
            ]
            offsets = [offset for place, offset in places if place == SCRATCH]
            bits = [
                n if isinstance(n, int) else struct.unpack("<I", struct.pack("<f", n))[0] for n in numbers
            ]
            bits = [bit for bit, n in zip(bits, numbers, strict=True) if type(n) is float or n != 1]
            gpu.counts[binary.function] = len(addresses) + len(bits)
            shape = (*grid, 128, 1, 1, 1024)
            gpu.slow.append((binary.function, shape, [*addresses, *bits], offsets))
            return binary

        monkeypatch.setattr(launch.Launcher, "_launch", note)

    def launch(self, configuration, function, parameters, _extra):
        self.fast.append((function, tuple(configuration[0].shape), parameters))
        self.values.append([parameters[i][0] for i in range(self.counts[function])])
        return 0

    def layer(self, backend, call):
        """The layer of the backend's first call, which is this call if there was none before."""
        return self.layers.setdefault(backend, call.made.layer)

    def run(self, backend, call, plan, layer=None):
        """Run one call, and return its launches, except those repeated from a record."""
        self.slow.clear(), self.fast.clear()
        self.values: list[list[int]] = []
        layer = self.layer(backend, call) if layer is None else layer
        backend.run(call.made._replace(layer=layer), call.batch, plan)
        return list(self.slow)

    def expect(self, backend, call, plan, layer=None):
        """Run the call without records and once more with them; return the launches of the first run."""
        layer = self.layer(backend, call) if layer is None else layer
        known, replay._tables = replay._tables, weakref.WeakValueDictionary()
        expected = self.run(backend, call, plan, dataclasses.replace(layer))
        replay._tables = known
        self.run(backend, call, plan, layer)
        return expected

    def check(self, expected):
        """Check that exactly these launches were repeated."""
        assert expected
        assert not self.slow
        assert [launched[:2] for launched in self.fast] == [launched[:2] for launched in expected]
        bases = set()
        for values, (_, _, wanted, offsets) in zip(self.values, expected, strict=True):
            scratch = [value for value, want in zip(values, wanted, strict=True) if want is None]
            bases |= {value - offset for value, offset in zip(scratch, offsets, strict=True)}
            assert [value for value, want in zip(values, wanted, strict=True) if want is not None] == [
                want & 0xFFFFFFFFFFFFFFFF for want in wanted if want is not None
            ]
        assert len(bases) <= 1


@pytest.fixture
def gpu(monkeypatch):
    pytest.importorskip("triton")
    return Gpu(monkeypatch)


def make_backend(op):
    op = op.split()[0]
    return getattr(importlib.import_module(f"switchrail_kernels.{op}.triton"), BACKENDS[op, "triton"][0])()


def make(op, phase, lengths, past=(0, 307, 14)):
    caches = {"kv_lengths": [n + more for n, more in zip(lengths, past, strict=True)]} if op in PAGED else {}
    return OPS[op](lengths, phase=phase, **caches)


@EACH
@PHASES
def test_a_repeated_call_launches_the_same_as_one_without_records(gpu, op, phase):
    """The batches have only a few different shapes, so calls also match records of other calls."""
    chance = random.Random(0)
    backend = make_backend(op)
    for i in range(24):
        if phase == "decode":
            lengths = [1] * chance.choice([1, 2, 3])
        else:
            rows = 4096 if i % 4 == 0 else 128
            cut = rows // chance.choice([1, 2, 4, 128])
            lengths = chance.sample([cut, rows - cut], 2)
        past = [chance.choice([0, 5, 700]) for _ in lengths]
        call = make(op, phase, lengths, past)
        plan = backend.plan(phase, call.batch)
        expected = gpu.expect(backend, call, plan)
        assert not gpu.run(backend, call, plan)
        gpu.check(expected)


def usual(op, phase):
    """A call of three sequences."""
    return make(op, phase, [1] * 3 if phase == "decode" else [70, 3, 9])


def recorded(gpu, op, phase):
    """A backend with a call that has been recorded and repeated."""
    backend, call = make_backend(op), usual(op, phase)
    gpu.expect(backend, call, backend.plan(phase, call.batch))
    assert not gpu.run(backend, call, backend.plan(phase, call.batch))
    return backend, call


@EACH
@PHASES
def test_a_wrong_call_is_refused_although_a_right_one_is_recorded(gpu, op, phase):
    backend, call = recorded(gpu, op, phase)
    tried = 0
    layer = gpu.layers[backend]
    for name, tensor in call.tensors.items():
        if tensor is None:
            continue
        spec = call.contract.tensors[name]
        for wrong in (tensor.to(torch.int16), tensor[None], tensor.to("meta"), [tensor], None):
            if wrong is None and (spec.optional or name == "dt_bias"):
                continue
            broken = dataclasses.replace(call.clone(), batch=call.batch)
            out = broken.out.clone()
            broken.tensors[name] = wrong
            plan = backend.plan(phase, broken.batch)
            other = dataclasses.replace(layer, **{name: wrong}) if hasattr(layer, name) else layer
            with pytest.raises(ContractError):
                gpu.run(backend, broken, plan, other)
            assert not gpu.fast
            if name != "out":
                assert same_bits(broken.out, out)
            tried += 1
    assert tried > len(call.tensors)


@pytest.mark.parametrize("op", RECURRENT)
def test_a_prefill_without_a_plan_is_not_run_as_a_decode(gpu, op):
    backend = make_backend(op)
    decoded = make(op, "decode", [1] * 3)
    plan = backend.plan("decode", decoded.batch)
    gpu.expect(backend, decoded, plan)
    assert not gpu.run(backend, decoded, plan)
    for phase in ("prefill", "verify", "decode"):
        with pytest.raises(ArgumentError, match="plan"):
            gpu.run(backend, make(op, phase, [1] * 3), None)
        assert not gpu.fast
        assert not gpu.slow
    for phase in ("prefill", "verify"):
        for lengths in ([1, 2], [1, 1, 2], [3]):
            for other in (None, plan):
                with pytest.raises(ArgumentError, match="plan"):
                    gpu.run(backend, make(op, phase, lengths), other)
                assert not gpu.fast
                assert not gpu.slow


@pytest.mark.parametrize("op", RECURRENT)
@pytest.mark.parametrize("recorded", [False, True])
def test_single_tokens_are_only_run_as_a_decode_in_a_decode(gpu, op, recorded):
    """A prefill of single tokens is not mistaken for a decode.

    A decode's plan is refused for calls of other phases: as a decode, a verify call would overwrite the
    state, and a prefill would not write its checkpoints.
    """
    backend = make_backend(op)
    decoded = make(op, "decode", [1] * 3)
    plan = backend.plan("decode", decoded.batch)
    if recorded:
        gpu.expect(backend, decoded, plan)
        assert not gpu.run(backend, decoded, plan)
    for call in (make(op, "verify", [1] * 3), make(op, "prefill", [1] * 3).with_checkpoints(1)):
        for layer in (gpu.layer(backend, call), None):
            with pytest.raises(ArgumentError, match="plan: got Decode"):
                gpu.run(backend, call, plan, layer)
            assert not gpu.fast
            assert not gpu.slow


@pytest.mark.parametrize("op", PAGED)
@PHASES
def test_a_page_table_without_room_is_refused_although_its_shape_is_recorded(gpu, op, phase):
    backend, call = recorded(gpu, op, phase)
    cache = call.tensors["v_cache" if op == "attention" else "kv_cache"]
    room = call.batch.page_table.shape[1] * cache.shape[1]
    batch = dataclasses.replace(call.batch, kv_seqlens=(room + 1, *call.batch.kv_seqlens[1:]))
    with pytest.raises(ContractError, match="page_table"):
        gpu.run(backend, dataclasses.replace(call, batch=batch), backend.plan(phase, batch))
    assert not gpu.fast


def own_tensors(layer):
    values = [getattr(layer, field.name) for field in dataclasses.fields(layer)]
    return [value for value in values if isinstance(value, torch.Tensor)]


def tables(layer):
    """The records of a layer's calls."""
    return [kept for kept in layer.kept.values() if type(kept) is replay.Calls]


@EACH
@PHASES
def test_a_layers_own_tensors_are_not_looked_at_again(gpu, op, phase):
    backend, call = make_backend(op), usual(op, phase)
    plan = backend.plan(phase, call.batch)
    expected = gpu.expect(backend, call, plan)
    layer = gpu.layers[backend]
    own = {id(tensor) for tensor in own_tensors(layer)}
    assert own
    seen = []

    def spy(again, tensors, options):
        seen.extend(tensors)
        return again(tensors, options)

    assert tables(layer)
    for calls in tables(layer):
        calls.again = partial(spy, calls.again)
    gpu.run(backend, call, plan)
    gpu.check(expected)
    assert seen
    assert not own & {id(tensor) for tensor in seen}


def copies(layer, count):
    """Copies of a layer, whose tensors have other addresses."""
    memo = {}
    for _ in range(count):
        memo.clear()  # fields of one copy share a memo, so a tensor in two fields stays one tensor
        own = {
            field.name: copy.deepcopy(getattr(layer, field.name), memo)
            for field in dataclasses.fields(layer)
            if field.init
        }
        yield dataclasses.replace(layer, **own)


@EACH
@PHASES
def test_layers_of_one_kind_share_their_records_and_launch_on_their_own_addresses(gpu, op, phase):
    """Layers of one kind share records, but each launches with its own addresses.

    For each of two batches, a random layer is called first, and then all layers.
    """
    chance = random.Random(1)
    backend = make_backend(op)
    made = [
        make(op, phase, [1] * n if phase == "decode" else [70, 3, 9][:n], (0, 307, 14)[:n]) for n in (2, 3)
    ]
    layers = list(copies(made[0].made.layer, 5))
    calls, expected = [], {}
    for call in made:
        plan = backend.plan(phase, call.batch)
        calls.append((call, plan))
        first = chance.randrange(5)
        assert gpu.run(backend, call, plan, layers[first])
        for i, layer in enumerate(layers):
            assert not gpu.run(backend, call, plan, layer)
            assert gpu.fast
            expected[i, len(calls) - 1] = gpu.expect(backend, call, plan, layer)
    assert len({str(launches) for launches in expected.values()}) == len(expected) == 10
    for i, j in chance.choices(list(expected), k=40):
        gpu.run(backend, *calls[j], layers[i])
        gpu.check(expected[i, j])


def moved(tensor):
    """A copy of a tensor with the same shape and strides, one element after an aligned address."""
    size = 1 + sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    room = tensor.new_empty(size + 16)
    start = next(i for i in range(16) if room[i:].data_ptr() % 16 == 0) + 1
    return room.as_strided(tensor.shape, tensor.stride(), start).copy_(tensor)


def spread(tensor):
    """A copy of a tensor with the same shape and twice the stride along the first axis."""
    return torch.stack([tensor, tensor], dim=1)[:, 0]


def changes(layer):
    """Changes to a layer, each of one property, as {field: value}."""
    values = {field.name: getattr(layer, field.name) for field in dataclasses.fields(layer) if field.init}
    others = {
        bool: lambda value: [not value],
        float: lambda value: [0.5 if math.isinf(value) else value + 0.5, -value],
        int: lambda value: [value + 1],
        str: lambda value: [None],
    }
    own = {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}
    for name, value in values.items():
        if name not in own:
            for other in others.get(type(value), lambda value: [0.5, 7])(value):
                yield {name: other}
            continue
        yield {name: None}
        yield {name: moved(value)}
        yield {name: spread(value)}
        yield {name: torch.cat([value, value])}
        for dtype in (torch.float32, torch.bfloat16):
            if value.dtype != dtype:
                yield {name: value.to(dtype)}
        for same, other in own.items():
            if same > name and other.shape == value.shape:
                yield {same: value}


@EACH
@PHASES
def test_layers_that_differ_in_any_property_never_share_a_record(gpu, op, phase):
    """Layers that differ in an option or in a tensor's property never share records, in any order of
    calls."""
    backend, call = make_backend(op), usual(op, phase)
    plan = backend.plan(phase, call.batch)
    first = call.made.layer
    launches = gpu.expect(backend, call, plan, first)
    tried = set()
    for change in changes(first):
        other = dataclasses.replace(first, **change)
        try:
            assert gpu.run(backend, call, plan, other)
        except ContractError:
            assert not gpu.fast
            continue
        assert not gpu.fast
        tried |= change.keys()
        mine = gpu.expect(backend, call, plan, other)
        [again] = copies(first, 1)
        gpu.run(backend, call, plan, again)
        assert not gpu.slow
        for layer, wanted in ((first, launches), (other, mine), (first, launches), (other, mine)):
            gpu.run(backend, call, plan, layer)
            gpu.check(wanted)
        known, replay._tables = replay._tables, weakref.WeakValueDictionary()
        [other_first, then] = dataclasses.replace(other), dataclasses.replace(first)
        assert gpu.run(backend, call, plan, other_first)
        assert gpu.run(backend, call, plan, then)
        assert not gpu.fast
        replay._tables = known
    assert len(tried) > 1


@EACH
@PHASES
def test_a_record_serves_all_instances_of_a_backend_and_no_other_class(gpu, op, phase):
    call = make(op, phase, [1] * 3 if phase == "decode" else [70, 3, 9])
    layer = call.made.layer
    backend = make_backend(op)
    plan = backend.plan(phase, call.batch)
    expected = gpu.expect(backend, call, plan, layer)
    gpu.run(make_backend(op), call, plan, layer)
    gpu.check(expected)
    derived = type("Derived", (type(backend),), {})()
    assert gpu.run(derived, call, derived.plan(phase, call.batch), layer)
    assert not gpu.fast


@EACH
@PHASES
def test_a_layer_keeps_no_backend_alive(gpu, op, phase):
    backend, call = make_backend(op), usual(op, phase)
    layer = call.made.layer
    gpu.expect(backend, call, backend.plan(phase, call.batch), layer)
    gone = weakref.ref(backend)
    del backend
    assert gone() is None


@pytest.mark.usefixtures("small_heap")
@EACH
@PHASES
def test_a_dropped_layer_frees_its_tensors_and_the_last_of_a_kind_frees_the_records(gpu, op, phase):
    backend, call = make_backend(op), usual(op, phase)
    plan = backend.plan(phase, call.batch)
    layers = list(copies(call.made.layer, 3))
    for layer in layers:
        gpu.expect(backend, call, plan, layer)
        assert not gpu.run(backend, call, plan, layer)
    del layer
    assert len(replay._tables) == 1
    gc.collect()
    gc.disable()
    try:
        while layers:
            kept = [weakref.ref(item) for item in (*own_tensors(layers[-1]), *tables(layers[-1]))]
            assert len(kept) > len(own_tensors(layers[-1])) > 0
            layers.pop()
            assert not [item for item in kept if item() is not None]
            assert len(replay._tables) == (1 if layers else 0)
            if layers:
                assert not gpu.run(backend, call, plan, layers[-1])
    finally:
        gc.enable()
