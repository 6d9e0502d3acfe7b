"""Kernels are translated to Triton's IR. This checks types within kernels, which the interpreter doesn't."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")

SCRIPT = """
import dataclasses, random
from functools import partial
import torch
from switchrail.ops.samples.engine import FORMS
from switchrail.params import SamplingParams
from switchrail.testing.inputs import (
    attention_call, gated_delta_call, kda_call, lightning_call, mamba2_call, mla_call, short_conv_call,
)
from switchrail.ops.batch import DeferredBatch, VerifyBatch
from switchrail_kernels.attention.triton import TritonAttention
from switchrail_kernels.mla.triton import TritonMla
from switchrail_kernels.delta import scan
from switchrail_kernels.elementwise.add_rms_norm import add_rms_norm
from switchrail_kernels.elementwise.decode_rows import decode_rows
from switchrail_kernels.elementwise.gated_rms_norm import gated_rms_norm
from switchrail_kernels.elementwise.qk_norm_rope import qk_norm_rope
from switchrail_kernels.elementwise.rms_norm import rms_norm
from switchrail_kernels.elementwise.rotary import rotary
from switchrail_kernels.elementwise.silu_and_mul import sigmoid_gate, silu_and_mul
from switchrail_kernels.elementwise.verify_rows import accept_rows, verify_rows
from switchrail_kernels.experts.forward import experts
from switchrail_kernels.gated_delta.inputs import gated_delta_inputs
from switchrail_kernels.gated_delta.triton import TritonGatedDelta
from switchrail_kernels.kda.triton import TritonKda
from switchrail_kernels.launch import Launcher
from switchrail_kernels.lightning.triton import TritonLightning
from switchrail_kernels.mamba2.triton import TritonMamba2
from switchrail_kernels.products.forward import products
from switchrail_kernels.sampling.choose import choose_tokens
from switchrail_kernels.short_conv.triton import TritonShortConv
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.experimental.gluon._runtime import GluonASTSource

TARGET = GPUTarget("cuda", 90, 32)
BACKEND = make_backend(TARGET)
TYPES = {
    torch.float32: "*fp32", torch.float16: "*fp16", torch.bfloat16: "*bf16",
    torch.int32: "*i32", torch.int64: "*i64", torch.bool: "*i1", torch.uint8: "*u8", torch.float64: "*fp64",
}
compiled = []
translated = set()


def launch(self, grid, tensors, numbers, constants, **options):
    types = [TYPES[tensor.dtype] for tensor in tensors]
    types += ["fp32" if isinstance(number, float) else "i32" for number in numbers]
    constants = (*constants, True) if self._early else constants
    types += ["constexpr"] * len(constants)
    compiled.append(self._kernel.__name__)
    known = repr((self._kernel.fn, types, constants, sorted(options.items())))
    if known in translated:
        return
    translated.add(known)
    names = self._kernel.arg_names
    source = (GluonASTSource if self._kernel.is_gluon() else ASTSource)(
        self._kernel,
        dict(zip(names, types, strict=True)),
        dict(zip(names[-len(constants):], constants, strict=True)),
    )
    context = ir.context()
    ir.load_dialects(context)
    BACKEND.load_dialects(context)
    parsed = BACKEND.parse_options({**options, "sanitize_overflow": False})  # it adds code, and no types
    functions = BACKEND.get_codegen_implementation(parsed)
    source.make_ir(TARGET, parsed, functions, BACKEND.get_module_map(), context)


Launcher.__call__ = launch
BF16 = {"dtype": torch.bfloat16}
for backend, make in ((TritonGatedDelta, gated_delta_call), (TritonKda, kda_call)):
    raw = {"raw": "softplus", "beta_scale": 2.0, "heads": 1, "key_size": 16, "value_size": 16, **BF16}
    make([40, 3], **raw).with_checkpoints(24).run(backend())
    make([1], phase="decode", **raw).run(backend())
    for kind in ("softplus", "sigmoid"):
        call = make([3], phase="verify", **{**raw, "raw": kind})
        call.run(backend()).commit(torch.tensor([1]), call.state)
        for most in (4, 40):
            fields = {one.name: getattr(call.batch, one.name) for one in dataclasses.fields(VerifyBatch)}
            none, rows = torch.tensor([-1]), torch.zeros(1, most, dtype=torch.bool)
            batch = DeferredBatch(
                **fields, pending_records=none, pending_rows=rows, records=none + 1, record_count=2
            )
            backend().run(call.made, batch, backend().plan("verify", batch))
scan.compute_capability = lambda device: (9, 0)
wide = {"key_size": 128, "value_size": 128, "strided": False, **BF16}
for backend, make in ((TritonGatedDelta, gated_delta_call), (TritonKda, kda_call)):
    make([8192, 40], **wide).with_checkpoints(64).run(backend())
scan.multiprocessors = lambda device: 3
gated_delta_call([40] * 20, **wide).run(TritonGatedDelta())
for backend, make in (
    (TritonLightning, lightning_call), (TritonMamba2, mamba2_call), (TritonShortConv, short_conv_call)
):
    make([40, 3], **BF16).with_checkpoints(24).run(backend())
    make([1], phase="decode", **BF16).run(backend())
    call = make([3], phase="verify", **BF16)
    call.run(backend()).commit(torch.tensor([1]), call.state)
for backend, make in (
    (TritonGatedDelta, gated_delta_call), (TritonKda, kda_call), (TritonLightning, lightning_call),
    (TritonMamba2, mamba2_call), (TritonShortConv, short_conv_call),
):
    for phase, length in (("prefill", 40), ("decode", 1), ("verify", 3)):
        call = make([length], phase=phase, **BF16)
        forms = ["strided_pool", "transposed_state"]
        if phase == "verify":
            forms = ["device_parents", "row_states", *forms]
        for form in forms:
            call = FORMS[form](call, True)
        call.run(backend())
for backend, make in ((TritonAttention, attention_call), (TritonMla, mla_call)):
    for page in (16, 64):
        for phase, lengths in (("prefill", [40, 3]), ("decode", [1, 1]), ("verify", [3, 2])):
            pasts = [length + 70 for length in lengths]
            call = make(lengths, phase=phase, page=page, kv_lengths=pasts, lse=True, **BF16)
            call.run(backend())
            forms = ["kv_bounds", "strided_pool", "index_views"]
            for form in ["device_parents", *forms] if phase == "verify" else forms:
                call = FORMS[form](call, True)
            call.run(backend())
x, weight = torch.zeros(3, 64, **BF16), torch.zeros(64, **BF16)
rms_norm(x, weight, eps=1e-6, weight_offset=1.0)
add_rms_norm(x, x, weight, eps=1e-6, weight_offset=1.0)
gated_rms_norm(x, x, weight, eps=1e-6)
silu_and_mul(x, x)
choose_tokens(x, [SamplingParams(temperature=1.0, top_p=0.5)] * 3, [random.Random(0)] * 3)
choose_tokens(x, [SamplingParams()] * 3, [random.Random(0)] * 3)
sigmoid_gate(x, x)
decode_rows(
    *(torch.zeros(size, dtype=torch.int64) for size in ((3, 3), 9)), torch.zeros(9, 5, dtype=torch.int32),
    page_size=16,
    out=(
        torch.zeros(3, dtype=torch.int64), torch.zeros(3, 4, dtype=torch.int32),
        torch.zeros(3, dtype=torch.int64), *(torch.zeros(n, dtype=torch.int32) for n in (3, 3, 1)),
    ),
)
wide, narrow = (partial(torch.zeros, dtype=dtype) for dtype in (torch.int64, torch.int32))
for pending in (False, True):
    tables = (wide(9), torch.zeros(9, 2, dtype=torch.bool))
    taken = wide(3), torch.zeros(3, 2, dtype=torch.bool), wide(3)
    verify_rows(
        wide(3, 3), wide(2, 3, 2), wide(9), narrow(9, 5), page_size=16,
        pending=(*tables, *taken) if pending else None,
        out=(wide(6), wide(6), narrow(3, 4), wide(6), narrow(3), narrow(6), narrow(1)),
    )
    accept_rows(
        wide(6), wide(6), wide(3, 2), wide(3, 2), wide(3), wide(9), are_trees=False,
        pending=(*tables, wide(3)) if pending else None, out=(wide(3), wide(3, 2), wide(3, 3)),
    )
products(x[:2], torch.zeros(40, 64, **BF16))
heads, angles = torch.zeros(1, 3, 2, 64, **BF16), torch.zeros(1, 3, 32, **BF16)
kept = {"v": heads, "cache": (heads, heads, torch.zeros(3, dtype=torch.int64))}
for given in ({}, kept):
    qk_norm_rope(heads, heads, weight, weight, angles, angles, eps=1e-6, weight_offset=1.0, **given)
rotary(torch.zeros(1, 3, dtype=torch.int64), torch.zeros(32), scaling=1.0, dtype=torch.bfloat16)
for rows in (2, 3):
    gated_delta_inputs(x[:rows], torch.zeros(40, 64, **BF16), weight[:4], weight[:4], channels=16)
for rows, size in ((1, 9), (40, 9), (1100, 9)):
    experts(
        torch.zeros(rows, 64, **BF16), torch.zeros(rows, size, **BF16), torch.zeros(size, 64, 64, **BF16),
        torch.zeros(size, 64, 32, **BF16), top_k=2, normalize=True, shared=1,
        rows=torch.zeros(1, dtype=torch.int32),
    )
assert {"_scan", "_scan_short"} <= set(compiled)
print(len(compiled))
"""


def test_kernels_with_all_options_have_types_that_agree():
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout) == 151, "another number of kernels was launched"
