"""What the backend in the CuTe DSL hands its kernel, with a stand-in that reads the addresses.

The kernel itself runs in the conformance suite, where there is a GPU.
"""

from __future__ import annotations

import ctypes
import importlib
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from switchrail.errors import ContractError
from switchrail.ops.gates import activate_beta, activate_gate
from switchrail.testing.compare import Error, verify
from switchrail.testing.inputs import gated_delta_call

FLOATS = {"Float32": torch.float32, "Float16": torch.float16, "BFloat16": torch.bfloat16}
KINDS = (None, "softplus", "sigmoid")


def make_type(name, dtype):
    class Number:
        torch = dtype
        width = dtype.itemsize * 8

        def __init__(self, value):
            self.value = value

    Number.__name__ = name
    return Number


def view(address, dtype, shape, strides):
    """Memory as a tensor, which may be written."""
    numbers = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    memory = (ctypes.c_char * (numbers * dtype.itemsize)).from_address(address)
    return torch.frombuffer(memory, dtype=dtype).as_strided(shape, strides)


def compile_step(step, addresses, strides, sequences, heads, value_heads, *numbers, options):
    assert (len(addresses), len(strides), options) == (11, 10, "--enable-tvm-ffi")
    assert step.key_size == step.lanes * step.held
    assert step.value_size % (4 * step.passes * step.rows) == 0

    def run(addresses, strides, sequences, heads, value_heads, scale, lower, beta_scale, stream):
        q, k, v, g, beta, a_log, bias, state, out, reads, writes = addresses
        pairs = [strides[i : i + 2] for i in range(0, 10, 2)]
        size, width = step.key_size, step.value_size
        q = view(q, step.io.torch, (sequences, heads, size), (*pairs[0], 1)).float()
        k = view(k, step.io.torch, (sequences, heads, size), (*pairs[1], 1)).float()
        v = view(v, step.io.torch, (sequences, value_heads, width), (*pairs[2], 1)).float()
        g = view(g, step.gate.torch, (sequences, value_heads), pairs[3])
        beta = view(beta, step.beta.torch, (sequences, value_heads), pairs[4])
        if step.l2norm:
            q, k = (x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6) for x in (q, k))
        group = value_heads // heads
        q, k = q.repeat_interleave(group, 1), k.repeat_interleave(group, 1)
        a_log = view(a_log, torch.float32, (value_heads,), (1,)) if step.kind else None
        bias = None if step.bias is None else view(bias, step.bias.torch, (value_heads,), (1,))
        decay = activate_gate(g, KINDS[step.kind], a_log, bias, lower, torch.float32).exp()
        weight = activate_beta(beta, beta_scale if step.raw_beta else None, torch.float32)
        places = [view(x, torch.int64, (sequences,), (1,)).tolist() for x in (reads, writes)]
        head = width * size
        shape = (max(map(max, places)) + 1, value_heads, width, size)
        pool = view(state, step.state.torch, shape, (value_heads * head, head, size, 1))
        out = view(out, step.io.torch, (sequences, value_heads, width), (value_heads * width, width, 1))
        for n, (read, write) in enumerate(zip(*places, strict=True)):
            if read < 0:
                out[n] = 0
                continue
            own = pool[read].float() * decay[n, :, None, None]
            written = weight[n, :, None] * (v[n] - (own @ k[n, :, :, None])[..., 0])
            own += written[:, :, None] * k[n, :, None, :]
            out[n] = scale * (own @ q[n, :, :, None])[..., 0]
            pool[write] = own

    return run


@pytest.fixture
def backend(monkeypatch):
    if torch.cuda.is_available():
        pytest.skip("the suite runs the kernel itself where there is a GPU")
    cute = SimpleNamespace(jit=lambda f: f, kernel=lambda f: f, compile=compile_step)
    integers = dict.fromkeys(("Int32", "Int64"), int)
    types = {name: make_type(name, dtype) for name, dtype in FLOATS.items()}
    cutlass = SimpleNamespace(cute=cute, Constexpr=object, **integers, **types)
    driver = SimpleNamespace(CUstream=int)
    names = {"cutlass": cutlass, "cuda": ModuleType("cuda"), "cuda.bindings": SimpleNamespace(driver=driver)}
    for name, module in {**names, "cuda.bindings.driver": driver}.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda index: SimpleNamespace(cuda_stream=0))
    paths = [f"switchrail_kernels.gated_delta.{name}" for name in ("step_cute", "cutedsl")]
    for path in paths:
        monkeypatch.delitem(sys.modules, path, raising=False)
    yield importlib.import_module(paths[-1]).CuteGatedDelta()
    for path in paths:
        sys.modules.pop(path, None)


@pytest.mark.parametrize("sizes", [(64, 64), (128, 128), (256, 64), (64, 256)])
@pytest.mark.parametrize(
    "options",
    [
        {"in_place": False},
        {"qk_l2norm": False, "gate": "mixed"},
        {"raw": "softplus", "beta_scale": 1.0},
        {"raw": "sigmoid", "beta_scale": 2.0, "strided": False},
    ],
)
def test_addresses_and_strides(backend, sizes, options):
    call = gated_delta_call(
        [1] * 4,
        phase="decode",
        heads=2,
        value_heads=4,
        key_size=sizes[0],
        value_size=sizes[1],
        padding=(1,),
        dtype=torch.float32,
        **options,
    )
    verify(backend, call)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_dtypes(backend, dtype):
    call = gated_delta_call(
        [1] * 3, phase="decode", key_size=64, value_size=64, dtype=dtype, state_dtype=torch.bfloat16
    )
    verify(backend, call, bound=Error(1e-2, 4e-2))


def test_states_that_a_lane_cannot_read_at_once_are_refused(backend):
    call = gated_delta_call([1], phase="decode", key_size=64, value_size=64, dtype=torch.float32)
    state = call.state
    call.tensors["state"] = torch.empty(state.numel() + 1)[1:].view(state.shape).copy_(state)
    with pytest.raises(ContractError, match="state: got rows that do not begin at multiples of 16 bytes"):
        call.run(backend)


def test_nothing_to_do(backend):
    verify(backend, gated_delta_call([], phase="decode", key_size=64, value_size=64, dtype=torch.float32))
