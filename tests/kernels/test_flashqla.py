"""The adapter to FlashQLA, with a stand-in for the library that runs token by token."""

from __future__ import annotations

import importlib
import math
import sys
from dataclasses import dataclass
from types import ModuleType

import pytest
import torch
from switchrail.errors import ArgumentError
from switchrail.testing.compare import Error, verify
from switchrail.testing.inputs import gated_delta_call

CHUNK = 64
CUT = 128
"""The number of tokens after which the stand-in splits a sequence."""

SIZES = {"heads": 1, "value_heads": 4, "key_size": 32, "value_size": 32}


@dataclass
class Context:
    is_intra: bool
    cu_seqlens: torch.Tensor
    intra_cp_cu_seqlens: torch.Tensor | None = None
    seq_map_c2r: torch.Tensor | None = None


def build_context(cu_seqlens, *, enable_intra, num_v_heads, chunk_size):
    assert enable_intra == (num_v_heads % 4 == 0)
    assert chunk_size == CHUNK
    assert (cu_seqlens.diff() > 0).all(), "the library can't take an empty sequence"
    bounds = cu_seqlens.tolist()
    pieces = [(at, n) for n, first in enumerate(bounds[:-1]) for at in range(first, bounds[n + 1], CUT)]
    if not enable_intra or len(pieces) == len(bounds) - 1:
        return Context(False, cu_seqlens)
    starts, owners = zip(*pieces, strict=True)
    return Context(
        True,
        cu_seqlens,
        torch.tensor([*starts, bounds[-1]], dtype=torch.int32),
        torch.tensor(owners, dtype=torch.int32),
    )


def decays(sums, first, t):
    """The log decay of row t of a sequence that starts at `first`. `sums` has sums from a chunk's start."""
    return sums[0, t] if (t - first) % CHUNK == 0 else sums[0, t] - sums[0, t - 1]


def walk(k, v, g, beta, state):
    """The state [HV, V, K] after one token; k: [H, K], v: [HV, V], g and beta: [HV]."""
    k = k.repeat_interleave(v.shape[0] // k.shape[0], 0)
    state = state * g.exp()[:, None, None]
    return state + (beta[:, None] * (v - (state @ k[:, :, None])[..., 0]))[:, :, None] * k[:, None, :]


def preprocess(context, *, k, v, a, g, beta, initial_state, state_v_first, enable_fwd_cp_cache):
    assert state_v_first
    assert not enable_fwd_cp_cache
    assert initial_state.dtype == torch.float32
    if not context.is_intra:
        return initial_state, None
    states = []
    bounds = context.intra_cp_cu_seqlens.tolist()
    for n, (first, owner) in enumerate(zip(bounds, context.seq_map_c2r.tolist(), strict=False)):
        state = initial_state[owner]
        for t in range(context.cu_seqlens[owner], first):
            decay = decays(g, context.cu_seqlens[owner], t)
            state = walk(k[0, t].float(), v[0, t].float(), decay, beta[0, t], state)
        assert n < len(bounds) - 1
        states.append(state)
    return torch.stack(states), None


def make_kernel(value_heads, heads, key_size, value_size, chunk_size, scale, **options):
    assert chunk_size == CHUNK
    assert options["block_DV"] in (32, 64, 128)

    def kernel(q, k, v, a, g, beta, initial, cut, offsets, owners, whole, out, states, final):
        assert k.shape[2:] == (heads, key_size)
        assert v.shape[2:] == (value_heads, value_size)
        for tensor in (q, k, v, g, beta, initial, final, out):
            assert tensor.is_contiguous()
        assert torch.equal(offsets[1:], (-(-cut.diff() // CHUNK)).cumsum(0))
        ends = whole[1:].tolist()
        for n, (first, end) in enumerate(zip(cut[:-1].tolist(), cut[1:].tolist(), strict=True)):
            state = initial[n]
            for t in range(first, end):
                state = walk(k[0, t].float(), v[0, t].float(), decays(g, first, t), beta[0, t], state)
                queries = q[0, t].float().repeat_interleave(value_heads // heads, 0)
                out[0, t] = scale * (state @ queries[:, :, None])[..., 0]
            if end in ends:
                final[owners[n] if options["is_cp"] else n] = state

    return kernel


@pytest.fixture
def backend(monkeypatch):
    if torch.cuda.is_available():
        pytest.skip("the suite runs FlashQLA itself where there is a GPU")
    package = "flash_qla.ops.gated_delta_rule.chunk"
    contents = {
        package: {"CHUNK_SIZE": CHUNK, "kkt_solve": lambda k, b, cu_seqlens, chunk_size: None},
        f"{package}.cp": {
            "FlashQLACPContext": Context,
            "build_cp_context": build_context,
            "cp_preprocess_fwd": preprocess,
        },
        f"{package}.hopper.fused_fwd": {"tilelang_fused_chunk_gdr_fwd": make_kernel},
        "flash_qla.utils.index": {
            "prepare_varlen_metadata": lambda cu_seqlens, host: cu_seqlens,
            "prepare_chunk_offsets": lambda cu_seqlens, size: (
                torch.nn.functional.pad((-(-cu_seqlens.diff() // size)).cumsum(0), (1, 0)),
                0,
            ),
        },
    }
    for path, attributes in contents.items():
        parts = path.split(".")
        for end in range(1, len(parts) + 1):
            name = ".".join(parts[:end])
            if name not in contents and name not in sys.modules:
                monkeypatch.setitem(sys.modules, name, ModuleType(name))
        module = ModuleType(path)
        vars(module).update(attributes)
        monkeypatch.setitem(sys.modules, path, module)
    name = "switchrail_kernels.gated_delta.flashqla"
    monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module(name).FlashQlaGatedDelta()
    sys.modules.pop(name)


@pytest.mark.parametrize("gate", ["decaying", "near_zero", "one", "mixed"])
def test_ragged_batches_with_empty_and_padded_sequences(backend, gate):
    lengths = [70, 0, 1, 300, 5, 0, 129]
    for in_place in (True, False):
        call = gated_delta_call(
            lengths, gate=gate, padding=(4,), in_place=in_place, dtype=torch.float32, **SIZES
        )
        verify(backend, call)


def test_other_numbers_of_heads_are_not_cut(backend):
    call = gated_delta_call([130, 3], dtype=torch.float32, **{**SIZES, "heads": 2, "value_heads": 6})
    verify(backend, call)


def test_states_in_half_precision_and_without_the_norm(backend):
    call = gated_delta_call(
        [65, 3], dtype=torch.float16, state_dtype=torch.bfloat16, qk_l2norm=False, strided=False, **SIZES
    )
    verify(backend, call, bound=Error(5e-3, 2e-2))


@pytest.mark.parametrize("raw", ["softplus", "sigmoid"])
def test_raw_gates(backend, raw):
    call = gated_delta_call([66, 3], raw=raw, beta_scale=2.0, dtype=torch.float32, **SIZES)
    verify(backend, call)


@pytest.mark.parametrize("lengths", [[], [0], [0, 0]])
def test_nothing_to_do(backend, lengths):
    verify(backend, gated_delta_call(lengths, **SIZES))


def test_a_plan_for_other_lengths_is_refused(backend):
    call = gated_delta_call([70, 3], **SIZES)
    other = gated_delta_call([72, 1], **SIZES)
    for plan in (backend.plan("prefill", other.batch), None):
        with pytest.raises(ArgumentError, match="plan: got"):
            call.bind(backend, plan)()
    assert call.out.isnan().all()


def test_a_plan_serves_several_layers(backend):
    call = gated_delta_call([70, 3], dtype=torch.float32, **SIZES)
    plan = backend.plan("prefill", call.batch)
    for seed in (1, 2):
        layer = gated_delta_call([70, 3], dtype=torch.float32, seed=seed, **SIZES)
        layer.bind(backend, plan)()
        assert math.isfinite(layer.out.sum())
