"""The adapters to FlashInfer, with stand-ins for the library that compute in plain torch.

The tests check how the adapters convert a call: tables, slots, gates, norms, padding. On a GPU, the
conformance suite checks the adapters with the library itself.
"""

from __future__ import annotations

import dataclasses
import gc
import importlib
import math
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from switchrail.errors import ArgumentError, ContractError
from switchrail.ops.batch import Bounds, PagedBatch, sequences
from switchrail.ops.mla import prefix
from switchrail.ops.mla.contract import MlaCall
from switchrail.testing.compare import Error, verify
from switchrail.testing.inputs import (
    GENERATORS,
    attention_call,
    gated_delta_call,
    kda_call,
    mla_call,
    run_reference,
)

DELTA = {"heads": 1, "value_heads": 2, "key_size": 32, "value_size": 32}
DECODE = {"phase": "decode", "dtype": torch.float32, **DELTA}
GATES = ["decaying", "near_zero", "one", "mixed"]


def is_host(*tensors):
    return all(t.device.type == "cpu" and t.dtype == torch.int32 and t.is_contiguous() for t in tensors)


class Paged:
    """The base of the wrappers: a workspace, and one plan at a time."""

    made = 0

    def __init__(self, workspace):
        assert workspace.dtype == torch.uint8
        self.room = len(workspace)
        type(self).made += 1

    def plan_tables(self, rows, starts, pages, keys, page):
        assert is_host(rows, starts, pages, keys)
        assert (rows.diff() > 0).all(), "the library can't take an empty sequence"
        assert (keys >= rows.diff()).all(), "the library can't take a sequence with fewer keys than rows"
        assert torch.equal(starts.diff(), (keys + page - 1) // page)
        assert len(pages) == starts[-1]
        self.rows, self.starts, self.pages, self.keys = rows.tolist(), starts.tolist(), pages.long(), keys

    def attend(self, queries, tokens, values, scale):
        """Yield the rows, the result and the log-sum-exp of each sequence. `tokens` and `values` return the
        keys and values of pages."""
        for n, count in enumerate(self.keys.tolist()):
            rows = slice(self.rows[n], self.rows[n + 1])
            pages = self.pages[self.starts[n] : self.starts[n + 1]]
            k, v = tokens(pages)[:count], values(pages)[:count]
            q = queries[rows]
            group = q.shape[1] // k.shape[1]
            logits = torch.einsum("thd,shd->hts", q, k.repeat_interleave(group, 1)) * scale
            hidden = torch.arange(count)[None] > (count - len(q) + torch.arange(len(q)))[:, None]
            logits = logits.masked_fill(hidden, -math.inf)
            # Masked positions of the cache may hold anything.
            v = torch.where(hidden.all(0)[:, None, None], 0, v.repeat_interleave(group, 1))
            yield rows, torch.einsum("hts,shd->thd", logits.softmax(-1), v), logits.logsumexp(-1).T


class PrefillWrapper(Paged):
    def __init__(self, workspace, kv_layout, *, backend):
        super().__init__(workspace)
        assert kv_layout == "NHD"
        self.backend = backend

    def plan(
        self,
        rows,
        starts,
        pages,
        last,
        heads,
        kv_heads,
        head_size,
        page,
        *,
        causal,
        sm_scale,
        q_data_type,
        disable_split_kv,
        max_token_per_sequence,
    ):
        assert causal
        assert sm_scale > 0
        assert max_token_per_sequence == rows.diff().max()
        assert ((last > 0) & (last <= page)).all()
        if self.backend == "fa2" and not disable_split_kv:
            packed = int(rows[-1]) // (len(rows) - 1) * (heads // kv_heads)
            tile = 128 if packed > 64 and head_size < 256 else 64 if packed > 16 else 16
            assert 2 * 132 // kv_heads * heads * tile * (head_size + 1) * 4 <= self.room
        self.split = not disable_split_kv
        self.plan_tables(rows, starts, pages, (starts.diff() - 1) * page + last, page)
        self.sizes = (heads, kv_heads, head_size, page, q_data_type)
        self.scale = sm_scale

    def run(self, q, caches, *, out, lse, return_lse):
        k, v = caches
        assert self.sizes == (q.shape[1], k.shape[2], q.shape[2], k.shape[1], q.dtype)
        assert return_lse == (lse is not None)
        keys, values = (lambda pages, c=c: c[pages].flatten(0, 1) for c in (k, v))
        for rows, result, total in self.attend(q, keys, values, self.scale):
            out[rows] = result
            if lse is not None:
                lse[rows] = total / math.log(2)


class MlaWrapper(Paged):
    def __init__(self, workspace, *, backend):
        super().__init__(workspace)
        assert backend == "fa3"

    def plan(self, rows, starts, pages, keys, heads, latent, rope, page, causal, scale, dtype, kv_dtype):
        assert causal
        assert scale > 0
        self.plan_tables(rows, starts, pages, keys, page)
        packed = rows.diff() * heads
        assert (-(-packed // (64 if packed.float().mean() <= 64 else 128))).sum() + 132 <= 16384
        self.sizes, self.scale = (heads, latent, rope, page, dtype, kv_dtype), scale

    def run(self, q_nope, q_rope, latents, rotated, *, out, lse, return_lse, return_lse_base_on_e):
        heads, latent = q_nope.shape[1:]
        assert self.sizes == (
            *(heads, latent, q_rope.shape[2], latents.shape[1]),
            *(q_nope.dtype, latents.dtype),
        )
        assert out.shape == q_nope.shape
        assert return_lse_base_on_e
        queries = torch.cat([q_nope, q_rope], -1)
        keys = lambda pages: torch.cat([latents, rotated], -1)[pages].flatten(0, 1)[:, None]  # noqa: E731
        values = lambda pages: latents[pages].flatten(0, 1)[:, None]  # noqa: E731
        for rows, result, total in self.attend(queries, keys, values, self.scale):
            out[rows] = result
            if return_lse:
                lse[rows] = total


class RaggedWrapper(Paged):
    """Attention to packed keys. As in the library, a run is refused if its number of rows was not planned."""

    computes = True

    def __init__(self, workspace, kv_layout, *, backend):
        super().__init__(workspace)
        assert (kv_layout, backend) == ("NHD", "fa3")
        self.planned_rows = 0

    def plan(
        self,
        qo_indptr,
        kv_indptr,
        num_qo_heads,
        num_kv_heads,
        head_dim_qk,
        head_dim_vo,
        *,
        causal,
        sm_scale,
        q_data_type,
    ):
        assert is_host(qo_indptr, kv_indptr)
        assert (qo_indptr.diff() > 0).all(), "the library can't take an empty sequence"
        assert (kv_indptr.diff() > 0).all(), "the library can't take a sequence without keys"
        assert not causal or (kv_indptr.diff() >= qo_indptr.diff()).all()
        assert sm_scale > 0
        assert num_qo_heads == num_kv_heads
        self.planned_rows, self.planned_keys = int(qo_indptr[-1]), int(kv_indptr[-1])
        self.starts, self.scale, self.causal = (qo_indptr.tolist(), kv_indptr.tolist()), sm_scale, causal
        self.sizes = (num_qo_heads, head_dim_qk, head_dim_vo, q_data_type)

    def run(self, q, k, v, *, out, lse, return_lse):
        if len(q) != self.planned_rows:
            raise ValueError(f"q.shape[0] ({len(q)}) does not match qo_indptr[-1] ({self.planned_rows}).")
        assert len(k) == len(v) == self.planned_keys
        assert self.sizes == (q.shape[1], q.shape[2], v.shape[2], q.dtype)
        assert all(x.is_contiguous() for x in (q, k, v, out, lse))
        assert return_lse
        if not self.computes:
            out.zero_()
            lse.zero_()
            return
        for low, high, first, end in zip(*(x[i:] for x in self.starts for i in (0, 1)), strict=False):
            logits = torch.einsum("thd,shd->hts", q[low:high], k[first:end]) * self.scale
            if self.causal:
                last = torch.arange(high - low)[:, None] + (end - first) - (high - low)
                logits = logits.masked_fill(torch.arange(end - first) > last, -math.inf)
            out[low:high] = torch.einsum("hts,shd->thd", logits.softmax(-1), v[first:end])
            lse[low:high] = logits.logsumexp(-1).T / math.log(2)


def step(q, k, v, decay, beta, state, scale):
    """Runs one token, and updates the state [HV, V, K] in place.

    q and k: [H, K]; v: [HV, V]; decay: [HV] or [HV, K]; beta: [HV].
    """
    group = v.shape[0] // k.shape[0]
    q, k = q.repeat_interleave(group, 0), k.repeat_interleave(group, 0)
    state *= decay.reshape(decay.shape[0], 1, -1)
    state += (beta[:, None] * (v - (state @ k[:, :, None])[..., 0]))[:, :, None] * k[:, None, :]
    return scale * (state @ q[:, :, None])[..., 0]


def chunk_gated_delta_rule(
    q, k, v, g, beta, scale, initial_state, *, output_final_state, cu_seqlens, output, output_state
):
    for tensor in (q, k, v, g, beta, initial_state, output, output_state):
        assert tensor.is_contiguous()
    assert g.dtype == beta.dtype == initial_state.dtype == torch.float32
    assert ((g >= 0) & (g <= 1))[: cu_seqlens[-1]].all(), "the library wants decays, not their logs"
    assert output_final_state
    assert cu_seqlens.dtype == torch.int64
    assert (cu_seqlens.diff() > 0).all(), "the library hangs on an empty sequence"
    for n, (first, end) in enumerate(zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist(), strict=True)):
        state = initial_state[n].clone()
        for t in range(first, end):
            output[t] = step(q[t].float(), k[t].float(), v[t].float(), g[t], beta[t], state, scale)
        # The last block of 64 rows reads into the next sequence, with weights of zero.
        last = end - (end - first - 1) % 64 - 1
        leak = 0 * (k[end : last + 64].float().sum() + v[end : last + 64].float().sum())
        output[last:end] += leak
        output_state[n] = state + leak


def gated_delta_rule_decode(
    q,
    k,
    v,
    state,
    A_log,
    a,
    dt_bias,
    b,
    scale,
    output,
    *,
    use_qk_l2norm,
    initial_state,
    initial_state_indices,
    output_state_indices,
):
    rows = len(q)
    assert rows & (rows - 1) == 0, (
        "the number of sequences must be padded to a power of 2: the library compiles anew for each number"
    )
    assert state is None
    assert not use_qk_l2norm
    assert initial_state.dtype == torch.float32
    assert initial_state_indices.dtype == output_state_indices.dtype == torch.int32
    reads, writes = initial_state_indices.tolist(), output_state_indices.tolist()
    for n, (read, write) in enumerate(zip(reads, writes, strict=True)):
        if read < 0:
            output[n] = 0
            continue
        raw = a[n, 0] + dt_bias
        decay = torch.exp(-A_log.exp() * torch.where(raw > 20, raw, torch.log(1 + raw.exp())))
        own = initial_state[read].clone()
        output[n, 0] = step(
            q[n, 0].float(), k[n, 0].float(), v[n, 0].float(), decay, b[n, 0].sigmoid(), own, scale
        )
        initial_state[write] = own


def recurrent_kda(
    q,
    k,
    v,
    g,
    beta,
    *,
    scale,
    initial_state,
    use_qk_l2norm_in_kernel,
    cu_seqlens,
    ssm_state_indices,
    output,
):
    for tensor in (q, k, v, g, beta, output):
        assert tensor.is_contiguous()
        assert tensor.dtype == q.dtype
        assert len(tensor) == 1
    assert ssm_state_indices.dtype == torch.int32
    assert torch.equal(cu_seqlens, torch.arange(q.shape[1] + 1, dtype=torch.int32))
    output.zero_()
    for n, slot in enumerate(ssm_state_indices.tolist()):
        if slot >= 0:
            queries, keys = q[0, n].float(), k[0, n].float()
            if use_qk_l2norm_in_kernel:
                queries, keys = (
                    x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6) for x in (queries, keys)
                )
            own = initial_state[slot].float()
            output[0, n] = step(
                queries, keys, v[0, n].float(), g[0, n].float().exp(), beta[0, n].float(), own, scale
            )
            initial_state[slot] = own


@pytest.fixture
def make(monkeypatch):
    """Import an op's adapter with the stand-ins, and construct it."""
    if torch.cuda.is_available():
        pytest.skip("the suite runs FlashInfer itself where there is a GPU")
    contents = {
        "flashinfer": {
            "BatchPrefillWithPagedKVCacheWrapper": PrefillWrapper,
            "BatchPrefillWithRaggedKVCacheWrapper": RaggedWrapper,
            "chunk_gated_delta_rule": chunk_gated_delta_rule,
            "recurrent_kda": recurrent_kda,
        },
        "flashinfer.mla": {"BatchMLAPagedAttentionWrapper": MlaWrapper},
        "flashinfer.gdn_decode": {"gated_delta_rule_decode_pretranspose": gated_delta_rule_decode},
    }
    for path, attributes in contents.items():
        module = ModuleType(path)
        vars(module).update(attributes)
        monkeypatch.setitem(sys.modules, path, module)
    cute = SimpleNamespace(arch=SimpleNamespace(fma_packed_f32x2=None))
    monkeypatch.setitem(sys.modules, "cutlass", SimpleNamespace(cute=cute))
    imported = []

    def build(op, name):
        path = f"switchrail_kernels.{op}.flashinfer"
        imported.append(path)
        return getattr(importlib.import_module(path), name)()

    yield build
    for path in imported:
        sys.modules.pop(path, None)


RAGGED = {"lengths": [5, 0, 1, 33, 2], "kv_lengths": [5, 3, 40, 33, 17], "padding": (1, 4)}


@pytest.mark.parametrize("page", [1, 7, 16])
@pytest.mark.parametrize("phase", ["prefill", "decode", "verify"])
def test_attention(make, phase, page):
    lengths = [1] * 5 if phase == "decode" else RAGGED["lengths"]
    kv_lengths = [max(kv, length) for kv, length in zip(RAGGED["kv_lengths"], lengths, strict=True)]
    call = attention_call(
        lengths, phase=phase, kv_lengths=kv_lengths, padding=RAGGED["padding"], page=page, lse=True
    )
    verify(make("attention", "FlashInferAttention"), call)


@pytest.mark.parametrize(
    ("lengths", "heads", "head_size", "split"),
    [([1], 16, 256, True), ([1, 1], 32, 256, False), ([1, 9], 8, 256, True), ([9], 32, 128, False)],
)
def test_caches_are_cut_where_the_parts_have_room(make, lengths, heads, head_size, split):
    backend = make("attention", "FlashInferAttention")
    call = attention_call(
        lengths, phase="verify", heads=heads, kv_heads=1, head_size=head_size, dtype=torch.float32
    )
    plan = backend.plan("verify", call.batch)
    call.bind(backend, plan)()
    (wrapper,) = plan._planned.values()
    assert wrapper.split == split


def test_more_rows_than_a_latent_plan_has_room_for_are_refused(make, monkeypatch):
    backend = make("mla", "FlashInferMla")
    monkeypatch.setattr(sys.modules[type(backend).__module__], "MOST", 137)
    call = mla_call([20, 1], heads=32, dtype=torch.float32)
    verify(backend, mla_call([19], heads=32, dtype=torch.float32))
    with pytest.raises(
        ContractError, match=r"got up to 138 work items .* expected at most 137 for this backend"
    ):
        call.run(backend)
    assert call.out.isnan().all()


@pytest.mark.parametrize("phase", ["prefill", "decode", "verify"])
@pytest.mark.parametrize("absorbed", [True, False])
def test_latent_attention(make, phase, absorbed):
    lengths = [1] * 5 if phase == "decode" else RAGGED["lengths"]
    kv_lengths = [max(kv, length) for kv, length in zip(RAGGED["kv_lengths"], lengths, strict=True)]
    call = mla_call(
        lengths,
        phase=phase,
        kv_lengths=kv_lengths,
        padding=RAGGED["padding"],
        absorbed=absorbed,
        lse=True,
        dtype=torch.float32,
    )
    verify(make("mla", "FlashInferMla"), call)


EXPANDED = {"nope_size": 128, "rope_size": 64, "value_size": 128, "heads": 2}


@pytest.mark.parametrize("capacity", [8192, 30, 7])
@pytest.mark.parametrize("scale", [0.1, -0.1])
def test_an_expanded_prefill(make, monkeypatch, capacity, scale):
    """A prefill in one piece, or with its prefix in chunks, has the results of the reference."""
    backend = make("mla", "FlashInferMla")
    call = mla_call(
        RAGGED["lengths"],
        kv_lengths=[5, 3, 40, 80, 17],
        padding=(1, 4),
        lse=True,
        dtype=torch.float32,
        **EXPANDED,
    )
    call.options["scale"] = scale
    monkeypatch.setattr(prefix, "CHUNK", capacity)
    plan = backend.plan("prefill", call.batch)
    backend.plan_chunked_prefix(plan, call.batch, ragged=True, chunked=True)
    assert bool(plan.prefix.chunks) == (capacity < 8192)
    call.bind(backend, plan)()
    expected = run_reference(call)
    torch.testing.assert_close(call.out, expected.out.float(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(call.made.lse, expected.made.lse.float(), rtol=1e-4, atol=1e-5)
    assert {type(wrapper) for wrapper in plan._planned.values()} == {RaggedWrapper}


@pytest.mark.parametrize("ragged", [True, False])
@pytest.mark.parametrize("chunked", [True, False])
def test_rows_planned_for_a_prefill_are_those_of_its_step(make, monkeypatch, ragged, chunked):
    """Steps of 800, 8,218 and again 800 rows run one after the other; none runs on the plan of another."""
    monkeypatch.setattr(RaggedWrapper, "computes", False)
    backend = make("mla", "FlashInferMla")
    planned = []
    for wrapper in (RaggedWrapper, MlaWrapper):
        monkeypatch.setattr(wrapper, "plan", _noting(wrapper.plan, planned))
    monkeypatch.setattr(MlaWrapper, "run", lambda *_, **__: None)
    monkeypatch.setattr(sys.modules[type(backend).__module__], "project", lambda *_, **__: None)
    call = mla_call([1], heads=1, latent_size=16, nope_size=128, rope_size=64, value_size=128)
    page, layer = 16, call.made.layer
    for lengths, past in (((800,), 0), ((8000, 218), 100), ((800,), 0)):
        total = sum(lengths)
        kv = tuple(length + past for length in lengths)
        batch = PagedBatch(
            **sequences(lengths, "cpu"),
            page_table=torch.zeros(len(lengths), -(-max(kv) // page), dtype=torch.int32),
            kv_lens=torch.tensor(kv, dtype=torch.int32),
            kv_seqlens=kv,
        )
        plan = backend.plan("prefill", batch)
        backend.optional_steps()["plan_chunked_prefix"](
            plan=plan, batch=batch, ragged=ragged, chunked=chunked
        )
        rows = [torch.zeros(total, 1, size, dtype=layer.kv_cache.dtype) for size in (128, 64, 128)]
        for _ in range(2):  # layers
            backend.run(MlaCall(layer, *rows), batch, plan)
        expanded = ragged and (chunked or not past)
        kind = RaggedWrapper if expanded else MlaWrapper
        assert [(each, rows) for each, rows, _ in planned] == [(kind, total)] * (
            2 if expanded and past else 1
        )
        if expanded and past:
            assert [keys for *_, keys in planned] == [total, past * len(lengths)]
        planned.clear()


def _noting(plan, planned):
    def noted(self, rows, starts, *args, **options):
        planned.append((type(self), int(rows[-1]), int(starts[-1])))
        plan(self, rows, starts, *args, **options)

    return noted


@pytest.mark.parametrize(("op", "generate"), [("attention", attention_call), ("mla", mla_call)])
def test_a_negative_scale_and_addresses_that_the_library_cannot_read(make, op, generate):
    backend = make(op, {"attention": "FlashInferAttention", "mla": "FlashInferMla"}[op])
    call = generate([5, 3], dtype=torch.float32)
    call.options["scale"] = -0.3
    for name in ("q", "q_nope", "q_rope", "out"):
        tensor = call.tensors.get(name)
        if tensor is not None:
            memory = torch.full((tensor.numel() + 1,), torch.nan)
            call.tensors[name] = memory[1:].view(tensor.shape).copy_(tensor)
    verify(backend, call)
    name = {"attention": "v_cache", "mla": "kv_cache"}[op]
    cache = call.tensors[name]
    call.tensors[name] = torch.empty(cache.numel() + 1)[1:].view(cache.shape).copy_(cache)
    with pytest.raises(
        ContractError, match=f"{name}: got rows at addresses that are not multiples of 16 bytes"
    ):
        call.run(backend)


@pytest.mark.usefixtures("small_heap")
def test_one_plan_serves_layers_of_other_shapes_and_its_wrappers_the_next_plan(make, monkeypatch):
    backend = make("attention", "FlashInferAttention")
    monkeypatch.setattr(PrefillWrapper, "made", 0)
    call = attention_call([5, 3], kv_lengths=[9, 12], page=4, dtype=torch.float32)
    layers = [call.clone(), dataclasses.replace(call, options={"scale": 0.3}), call.clone(), call.clone()]
    layers[2].tensors["q"] = call.tensors["q"].repeat_interleave(2, 1)
    layers[2].tensors["out"] = call.out.repeat_interleave(2, 1)
    for name in ("k_cache", "v_cache"):
        layers[3].tensors[name] = torch.randn_like(call.tensors[name].repeat_interleave(2, 1))
    for _ in range(3):
        plan = backend.plan("prefill", call.batch)
        for layer in (*layers, layers[0]):
            copy = layer.clone()
            copy.bind(backend, plan)()
            torch.testing.assert_close(copy.out, run_reference(layer).out.float(), rtol=1e-4, atol=1e-5)
        del plan
        gc.collect()
    assert PrefillWrapper.made == len(layers)


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("in_place", [True, False])
def test_gated_delta_prefill(make, gate, in_place):
    call = gated_delta_call(
        [70, 0, 1, 30, 5],
        gate=gate,
        padding=(3,),
        in_place=in_place,
        beta_max=2.0,
        dtype=torch.float32,
        **DELTA,
    )
    verify(make("gated_delta", "FlashInferGatedDelta"), call)


@pytest.mark.parametrize("qk_l2norm", [True, False])
@pytest.mark.parametrize("name", ["k", "v"])
def test_a_sequence_of_nan_affects_no_other(make, name, qk_l2norm):
    backend = make("gated_delta", "FlashInferGatedDelta")
    call = gated_delta_call([70, 5, 30], qk_l2norm=qk_l2norm, in_place=False, dtype=torch.float32, **DELTA)
    clean, dirty = call.clone(), call.clone()
    dirty.tensors[name][70:75, 0, 3] = torch.nan
    for each in (clean, dirty):
        each.run(backend)
    others = torch.tensor([*range(70), *range(75, 105)])
    assert torch.equal(clean.out[others], dirty.out[others])
    assert dirty.out[70:75, 0].isnan().all()
    slots = call.batch.write_slots
    assert torch.equal(clean.state[slots[[0, 2]]], dirty.state[slots[[0, 2]]])
    assert dirty.state[slots[1], 0].isnan().all()


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize(
    "options",
    [
        {"in_place": False},
        {"qk_l2norm": False},
        {"zero_keys": True},
        {"raw": "softplus", "beta_scale": 1.0},
        {"raw": "sigmoid", "beta_scale": 2.0},
    ],
)
def test_gated_delta_decode(make, gate, options):
    call = gated_delta_call([1] * 5, gate=gate, padding=(1,), beta_max=2.0, **DECODE, **options)
    verify(make("gated_delta", "FlashInferGatedDelta"), call)


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_gated_delta_states_in_bfloat16(make, phase):
    call = gated_delta_call(
        [1] * 3,
        phase=phase,
        padding=(0,),
        initial="all",
        state_dtype=torch.bfloat16,
        dtype=torch.float16,
        **DELTA,
    )
    verify(make("gated_delta", "FlashInferGatedDelta"), call, bound=Error(5e-3, 2e-2))


@pytest.mark.parametrize("qk_l2norm", [True, False])
def test_weights_of_gated_delta_decode(make, qk_l2norm):
    backend = make("gated_delta", "FlashInferGatedDelta")
    options = {"raw": "softplus", "qk_l2norm": qk_l2norm, "dtype": torch.float32, **DELTA}
    verify(backend, gated_delta_call([1] * 3, phase="decode", beta_scale=4.0, **options))
    call = gated_delta_call([1] * 3, phase="decode", beta_scale=4.5, **options)
    with pytest.raises(ContractError, match=r"beta_scale: got 4.5, expected at most 4.0 for this backend"):
        call.run(backend)


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("options", [{"in_place": False}, {"qk_l2norm": False}, {"raw": "softplus"}])
def test_kda_decode(make, gate, options):
    call = kda_call([1] * 4, gate=gate, padding=(2,), state_dtype=torch.bfloat16, **DECODE, **options)
    verify(make("kda", "FlashInferKda"), call, bound=Error(4e-3, 8e-3))


NAMES = {"attention": "Attention", "mla": "Mla", "gated_delta": "GatedDelta", "kda": "Kda"}


@pytest.mark.parametrize("op", NAMES)
def test_a_plan_of_another_backend_is_refused(make, op):
    backend = make(op, f"FlashInfer{NAMES[op]}")
    call = GENERATORS[op]([1], phase="decode")
    with pytest.raises(ArgumentError, match="plan: got object, expected the result of the backend's `plan`"):
        call.bind(backend, object())()
    assert call.out.isnan().all()


@pytest.mark.parametrize("op", NAMES)
def test_a_plan_for_other_lengths_is_refused(make, op):
    backend = make(op, f"FlashInfer{NAMES[op]}")
    decode = GENERATORS[op]([1] * 3, phase="decode")
    plan = backend.plan("decode", decode.batch)
    for phase in ("prefill", "verify"):
        call = GENERATORS[op]([2, 1, 3], phase=phase)
        for wrong in (plan, None):
            with pytest.raises(ArgumentError, match="plan: got"):
                call.bind(backend, wrong)()
        assert call.out.isnan().all()


def test_a_prefill_of_single_tokens_is_not_a_decode(make):
    """A prefill of single tokens differs from a decode: a sequence may start from a zero state."""
    backend = make("gated_delta", "FlashInferGatedDelta")
    verify(backend, gated_delta_call([1] * 3, initial="none", dtype=torch.float32, **DELTA))


@pytest.mark.parametrize("op", ["attention", "mla"])
def test_a_plan_that_the_library_makes_on_the_host_is_not_refreshed_so_not_captured(make, op):
    backend = make(op, f"FlashInfer{NAMES[op]}")
    call = GENERATORS[op]([1, 1], phase="decode", dtype=torch.float32)
    plan = backend.plan("decode", call.batch, Bounds(sequences=2, rows=2, tokens=9))
    with pytest.raises(NotImplementedError):
        backend.refresh(plan, call.batch)
    call.bind(backend, plan)()
    torch.testing.assert_close(call.out, run_reference(call).out.float(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("op", NAMES)
def test_nothing_to_do(make, op):
    backend = make(op, f"FlashInfer{NAMES[op]}")
    generate = GENERATORS[op]
    verify(backend, generate([], phase="decode", dtype=torch.float32))
    if op != "kda":
        verify(backend, generate([0, 0], dtype=torch.float32))
    if op in ("attention", "mla"):
        verify(backend, generate([3, 1], padding=(0, 1), lse=True, dtype=torch.float32))
