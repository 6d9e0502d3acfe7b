"""Calls that are made again: nothing that is remembered leads to other launches, or past the contract.

Kernels are noted instead of launched, and so is what the driver is asked to launch; so no GPU is needed."""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import random
import struct
from types import SimpleNamespace

import pytest
import torch
from switchrail.errors import ArgumentError, ContractError
from switchrail.testing.compare import same_bits
from switchrail.testing.inputs import (
    attention_call,
    gated_delta_call,
    kda_call,
    lightning_call,
    mamba2_call,
    mla_call,
    short_conv_call,
)
from switchrail_kernels import launch, replay
from switchrail_kernels.attention.triton import TritonAttention
from switchrail_kernels.gated_delta.triton import TritonGatedDelta
from switchrail_kernels.kda.triton import TritonKda
from switchrail_kernels.lightning.triton import TritonLightning
from switchrail_kernels.mamba2.triton import TritonMamba2
from switchrail_kernels.mla.triton import TritonMla
from switchrail_kernels.short_conv.triton import TritonShortConv

PAGED = {"attention": (attention_call, TritonAttention), "mla": (mla_call, TritonMla)}
RECURRENT = {
    "gated_delta": (gated_delta_call, TritonGatedDelta),
    "kda": (kda_call, TritonKda),
    "lightning": (lightning_call, TritonLightning),
    "mamba2": (mamba2_call, TritonMamba2),
    "short_conv": (short_conv_call, TritonShortConv),
}
OPS = {**PAGED, **RECURRENT}
SCRATCH = -2

EACH = pytest.mark.parametrize("op", OPS)
PHASES = pytest.mark.parametrize("phase", ["prefill", "decode"])

LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    *[ctypes.c_uint] * 7,
    ctypes.c_void_p,
    ctypes.POINTER(ctypes.POINTER(ctypes.c_uint64)),
    ctypes.c_void_p,
)
DEVICE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int))


def first_device(device):
    device[0] = 0
    return 0


class Binary(replay.Binary):
    """What stands for a compiled kernel: a number by what it would be compiled for."""

    known: dict[object, int] = {}  # noqa: RUF012

    def __init__(self, key, tensors, numbers, constants):
        self.function = self.known.setdefault(key, len(self.known) + 1)
        self.threads, self.shared, self.is_plain = 128, 1024, True
        kinds = ["fp32" if type(n) is float else "constexpr" if n == 1 else "i64" for n in numbers]
        self._types = (*["*i8"] * len(tensors), *kinds, *["constexpr"] * len(constants))


class Gpu:
    """Notes the launches: `slow` those of Triton, `fast` those that are repeated."""

    def __init__(self, monkeypatch):
        self.slow, self.fast = [], []
        self.calls = [item for item in gc.get_objects() if type(item) is replay.Calls]
        assert len(self.calls) >= len(OPS)
        self._functions = LAUNCH(self.launch), DEVICE(first_device)
        names = ("cuLaunchKernel", "cuCtxGetDevice")
        addresses = [ctypes.cast(function, ctypes.c_void_p).value for function in self._functions]
        monkeypatch.setattr(replay, "_driver", lambda name: addresses[names.index(name)])
        hooks = SimpleNamespace(calls=[])
        knobs = SimpleNamespace(runtime=SimpleNamespace(launch_enter_hook=hooks, launch_exit_hook=hooks))
        monkeypatch.setattr(replay, "knobs", knobs)
        gpu = self

        def note(self, index, grid, tensors, numbers, constants, num_warps, num_stages, options):
            kinds = [*map(launch._specialization, numbers), *[t.dtype for t in tensors]]
            aligned = [t.data_ptr() % 16 == 0 for t in tensors]
            key = (id(self), num_warps, num_stages, *options.items(), *constants, *kinds, *aligned)
            binary = Binary(key, tensors, numbers, constants)
            places = replay.recording().places(tensors)
            addresses = [
                None if p[0] == SCRATCH else t.data_ptr() for p, t in zip(places, tensors, strict=True)
            ]
            offsets = [offset for place, offset in places if place == SCRATCH]
            bits = [
                n if isinstance(n, int) else struct.unpack("<I", struct.pack("<f", n))[0] for n in numbers
            ]
            bits = [bit for bit, n in zip(bits, numbers, strict=True) if type(n) is float or n != 1]
            shape = (*grid, 128, 1, 1, 1024)
            gpu.slow.append((binary.function, shape, [*addresses, *bits], offsets))
            return binary

        monkeypatch.setattr(launch.Launcher, "_launch", note)
        for calls in self.calls:
            monkeypatch.setattr(calls, "again", replay._nothing_yet)
            monkeypatch.setattr(calls, "_table", None)

    def launch(self, function, *rest):
        *shape, _, parameters, _ = rest
        self.fast.append((function, tuple(shape), parameters))
        self.values.append([parameters[i][0] for i in range(self.counts[len(self.values)])])
        return 0

    def run(self, backend, call, plan):
        """What one call launches, through what is remembered."""
        self.slow.clear(), self.fast.clear()
        self.values: list[list[int]] = []
        call.bind(backend, plan)()
        return list(self.slow)

    def expect(self, backend, call, plan):
        """What it launches where nothing is."""
        kept = [(calls, calls.again) for calls in self.calls]
        for calls in self.calls:
            calls.again = replay._nothing_yet
        expected = self.run(backend, call, plan)
        for calls, again in kept:
            calls.again = again if calls._table is None else calls._table.again
        self.counts = [len(values) for _, _, values, _ in expected]
        return expected


@pytest.fixture
def gpu(monkeypatch):
    pytest.importorskip("triton")
    return Gpu(monkeypatch)


def make(op, phase, lengths, past=(0, 307, 14)):
    caches = {"kv_lengths": [n + more for n, more in zip(lengths, past, strict=True)]} if op in PAGED else {}
    return OPS[op][0](lengths, phase=phase, **caches)


@EACH
@PHASES
def test_launches_are_those_of_a_call_that_nothing_is_known_of(gpu, op, phase):
    """Over batches of few shapes, so that calls find what others left."""
    chance = random.Random(0)
    backend = OPS[op][1]()
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
        assert expected
        assert not gpu.run(backend, call, plan)
        assert [launched[:2] for launched in gpu.fast] == [launched[:2] for launched in expected]
        bases = set()
        for values, (_, _, wanted, offsets) in zip(gpu.values, expected, strict=True):
            scratch = [value for value, want in zip(values, wanted, strict=True) if want is None]
            bases |= {value - offset for value, offset in zip(scratch, offsets, strict=True)}
            assert [value for value, want in zip(values, wanted, strict=True) if want is not None] == [
                want & 0xFFFFFFFFFFFFFFFF for want in wanted if want is not None
            ]
        assert len(bases) <= 1


@EACH
@PHASES
def test_a_wrong_call_is_refused_where_a_right_one_is_remembered(gpu, op, phase):
    backend = OPS[op][1]()
    call = make(op, phase, [1] * 3 if phase == "decode" else [70, 3, 9])
    gpu.expect(backend, call, backend.plan(phase, call.batch))
    assert not gpu.run(backend, call, backend.plan(phase, call.batch))
    tried = 0
    for name, tensor in call.tensors.items():
        if tensor is None:
            continue
        for wrong in (tensor.to(torch.int16), tensor[None], tensor.to("meta"), [tensor], None):
            if wrong is None and call.contract.tensors[name].optional:
                continue
            broken = dataclasses.replace(call.clone(), batch=call.batch)
            out = broken.out.clone()
            broken.tensors[name] = wrong
            plan = backend.plan(phase, broken.batch)
            with pytest.raises(ContractError):
                gpu.run(backend, broken, plan)
            assert not gpu.fast
            if name != "out":
                assert same_bits(broken.out, out)
            tried += 1
    assert tried > len(call.contract.positional)


@pytest.mark.parametrize("op", RECURRENT)
def test_a_prefill_without_a_plan_is_not_taken_for_a_decode(gpu, op):
    backend = OPS[op][1]()
    decoded = make(op, "decode", [1] * 3)
    gpu.expect(backend, decoded, None)
    assert not gpu.run(backend, decoded, None)
    call = make(op, "prefill", [1] * 3)
    gpu.fast.clear()
    for phase in ("prefill", "verify"):
        with pytest.raises(ArgumentError, match="plan"):
            dataclasses.replace(call, phase=phase).bind(backend, None)()
    assert not gpu.fast


@pytest.mark.parametrize("op", PAGED)
@PHASES
def test_a_page_table_without_room_is_refused_where_its_shape_is_remembered(gpu, op, phase):
    backend = OPS[op][1]()
    call = make(op, phase, [1] * 3 if phase == "decode" else [70, 3, 9])
    gpu.expect(backend, call, backend.plan(phase, call.batch))
    assert not gpu.run(backend, call, backend.plan(phase, call.batch))
    room = call.batch.page_table.shape[1] * call.tensors[call.contract.positional[-1]].shape[1]
    batch = dataclasses.replace(call.batch, kv_seqlens=(room + 1, *call.batch.kv_seqlens[1:]))
    with pytest.raises(ContractError, match="page_table"):
        gpu.run(backend, dataclasses.replace(call, batch=batch), backend.plan(phase, batch))
    assert not gpu.fast
