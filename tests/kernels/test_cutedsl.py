"""The kernel in the CuTe DSL, run as Python on warps of 32 lanes that are numpy arrays.

The tests check the kernel's results for every size and dtype. Only the conformance suite on a GPU checks that
the kernel compiles and works on hardware.
"""

from __future__ import annotations

import ctypes
import importlib
import itertools
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from switchrail.errors import ArgumentError, ContractError
from switchrail.ops.batch import Bounds
from switchrail.testing.compare import Error, verify
from switchrail.testing.inputs import gated_delta_call

SIZES = (64, 128, 256)


class Lanes(np.ndarray):
    """A number for each lane of a warp. `==` is true, so code for one lane runs for all lanes of a row, which
    write the same result to one address."""

    def __eq__(self, other):
        return True

    __hash__ = None


class Type:
    """A dtype of the DSL: `dtype` is torch's dtype in memory, and `number` is numpy's dtype in registers."""

    def __init__(self, dtype, number):
        self.dtype, self.number, self.width = dtype, number, dtype.itemsize * 8

    def __call__(self, value):
        if self.dtype.is_floating_point:
            value = torch.as_tensor(np.asarray(value), dtype=self.dtype).double().numpy()
        return np.asarray(value).astype(self.number)[()]


TYPES = {
    "Float32": Type(torch.float32, np.float32),
    "Float16": Type(torch.float16, np.float32),
    "BFloat16": Type(torch.bfloat16, np.float32),
    "Int32": Type(torch.int32, np.int32),
    "Int64": Type(torch.int64, np.int64),
}


class Memory:
    """`size` numbers starting at an address, or at each lane's address."""

    def __init__(self, pointer, size):
        self.dtype, self.address, align = pointer
        assert not np.any(np.asarray(self.address) % align), f"an address is not a multiple of {align}"
        self.size = size

    def _bytes(self):
        """The bytes from the lowest to the highest number, and the places [lanes, bytes] of each lane's."""
        size = self.dtype.width // 8 * self.size
        addresses = np.array(self.address, dtype=np.int64, ndmin=1)
        start = int(addresses.min())
        memory = (ctypes.c_uint8 * (int(addresses.max()) - start + size)).from_address(start)
        return np.frombuffer(memory, np.uint8), (addresses - start)[:, None] + np.arange(size)

    def read(self):
        memory, places = self._bytes()
        numbers = torch.from_numpy(memory[places]).view(self.dtype.dtype).T
        numbers = numbers.double() if numbers.is_floating_point() else numbers
        return numbers.numpy().astype(self.dtype.number)

    def write(self, values):
        memory, places = self._bytes()
        numbers = torch.empty(len(places), self.size, dtype=self.dtype.dtype).copy_(torch.tensor(values.T))
        memory[places] = numbers.view(torch.uint8).numpy()

    def __getitem__(self, index):
        numbers = self.read()[index]
        return numbers if np.ndim(self.address) else numbers[0]

    def __setitem__(self, index, value):
        self.write(np.broadcast_to(value, (1, np.size(self.address))))


class Registers:
    """Several numbers per lane. A single index counts the first axis innermost."""

    def __init__(self, shape, dtype):
        shape = shape if isinstance(shape, tuple) else (shape,)
        self.numbers, self.dtype = np.zeros((*shape, 32), dtype.number), dtype

    def _at(self, index):
        if not isinstance(index, tuple):
            index = np.unravel_index(index, self.numbers.shape[:-1], order="F")
        return tuple(slice(None) if i is None else i for i in index)

    def __getitem__(self, index):
        return self.numbers[self._at(index)]

    def __setitem__(self, index, value):
        self.numbers[self._at(index)] = self.dtype(value)


def copy(source, target):
    if isinstance(source, Memory):
        target[:] = source.read()
    else:
        target.write(source)


class Warp:
    """The warp that is running."""

    def lane_idx(self):
        return np.arange(32).view(Lanes)

    def warp_idx(self):
        return self.number

    def block_idx(self):
        return self.block

    def shuffle_sync_bfly(self, value, *, offset):
        return value[np.arange(32) ^ offset]

    def kernel(self, function):
        def bind(*arguments):
            def launch(*, grid, block, stream):
                assert block[0] % 32 == 0
                assert block[1:] == (1, 1)
                for *self.block, self.number in itertools.product(*map(range, (*grid, block[0] // 32))):
                    function(*arguments)

            return SimpleNamespace(launch=launch)

        return bind


def make_modules():
    warp = Warp()
    cute = SimpleNamespace(
        jit=lambda function: function,
        kernel=warp.kernel,
        compile=lambda step, *arguments, options: step,
        arch=warp,
        AddressSpace=SimpleNamespace(gmem=None),
        make_ptr=lambda dtype, address, space, *, assumed_align: (dtype, address, assumed_align),
        make_layout=lambda size: size,
        make_tensor=Memory,
        make_rmem_tensor=Registers,
        autovec_copy=copy,
        exp=np.exp,
        log=np.log,
        rsqrt=lambda x: np.float32(1) / np.sqrt(x),
    )
    cutlass = SimpleNamespace(
        cute=cute,
        Constexpr=object,
        **TYPES,
        max=np.maximum,
        const_expr=lambda value: value,
        range_constexpr=range,
    )
    driver = SimpleNamespace(CUstream=int)
    return {
        "cutlass": cutlass,
        "cuda": ModuleType("cuda"),
        "cuda.bindings": SimpleNamespace(driver=driver),
        "cuda.bindings.driver": driver,
    }


@pytest.fixture
def backend(monkeypatch):
    if torch.cuda.is_available():
        pytest.skip("the suite runs the compiled kernel where there is a GPU")
    for name, module in make_modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda index: SimpleNamespace(cuda_stream=0))
    paths = [f"switchrail_kernels.gated_delta.{name}" for name in ("step_cute", "cutedsl")]
    for path in paths:
        monkeypatch.delitem(sys.modules, path, raising=False)
    yield importlib.import_module(paths[-1]).CuteGatedDelta()
    for path in paths:
        sys.modules.pop(path, None)


def make_call(count=2, key_size=64, value_size=64, dtype=torch.float32, **options):
    return gated_delta_call(
        [1] * count, phase="decode", key_size=key_size, value_size=value_size, dtype=dtype, **options
    )


@pytest.mark.parametrize(("key_size", "value_size"), list(itertools.product(SIZES, SIZES)))
def test_sizes(backend, key_size, value_size):
    verify(backend, make_call(1, key_size, value_size, heads=1, value_heads=1))


@pytest.mark.parametrize(("key_size", "value_size"), [(64, 64), (64, 256), (128, 128), (256, 64)])
def test_states_in_bfloat16(backend, key_size, value_size):
    call = make_call(1, key_size, value_size, state_dtype=torch.bfloat16, heads=1, value_heads=1)
    verify(backend, call, bound=Error(4e-3, 8e-3))


@pytest.mark.parametrize(
    "options",
    [
        {"in_place": False, "padding": (1,), "count": 3},
        {"qk_l2norm": False, "gate": "mixed"},
        {"zero_keys": True, "gate": "near_zero"},
        {"raw": "softplus", "beta_scale": 1.0},
        {"raw": "sigmoid", "beta_scale": 2.0, "strided": False},
        {"heads": 2, "value_heads": 6},
    ],
)
def test_options(backend, options):
    verify(backend, make_call(**options))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_dtypes(backend, dtype):
    verify(backend, make_call(dtype=dtype, raw="softplus", beta_scale=1.0))


def test_states_that_a_lane_cannot_read_at_once_are_refused(backend):
    call = make_call()
    state = call.state
    call.tensors["state"] = torch.empty(state.numel() + 1)[1:].view(state.shape).copy_(state)
    with pytest.raises(
        ContractError, match="state: got rows at addresses that are not multiples of 16 bytes"
    ):
        call.run(backend)


@pytest.mark.parametrize("phase", ["prefill", "verify"])
def test_other_phases_are_refused(backend, phase):
    call = gated_delta_call([1, 2, 1], phase=phase, key_size=64, value_size=64)
    for plan in (None, object()):
        with pytest.raises(ArgumentError, match="plan: got"):
            call.bind(backend, plan)()
    assert call.out.isnan().all()


def test_a_captured_decode_has_nothing_to_refresh(backend):
    call = make_call()
    backend.refresh(backend.plan("decode", call.batch, Bounds(sequences=2, rows=2, tokens=9)), call.batch)
    with pytest.raises(ArgumentError, match="plan: got object"):
        backend.refresh(object(), call.batch)


def test_nothing_to_do(backend):
    verify(backend, make_call(0))
