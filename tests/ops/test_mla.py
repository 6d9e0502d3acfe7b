import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from switchrail.errors import ContractError
from switchrail.ops.batch import PagedBatch
from switchrail.ops.mla.torch import KEYS, TorchMla
from switchrail.testing.compare import BOUNDS, measure, verify
from switchrail.testing.inputs import mla_call, run_reference
from switchrail.testing.steps import run_in_steps

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


@pytest.fixture(scope="module")
def backend():
    return TorchMla()


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    sequences=st.lists(
        st.tuples(st.one_of(st.integers(0, 2), st.integers(0, 70)), st.integers(0, 100)), max_size=6
    ),
    heads=st.integers(1, 5),
    sizes=st.tuples(*[st.integers(1, 24)] * 4),
    page=st.integers(1, 33),
    dtype=st.sampled_from(DTYPES),
    flags=st.tuples(*[st.booleans()] * 4),
    seed=st.integers(0, 2**16),
    data=st.data(),
)
def test_any_prefill(sequences, heads, sizes, page, dtype, flags, seed, data):
    strided, absorbed, lse, padded = flags
    padding = data.draw(st.sets(st.sampled_from(range(len(sequences))))) if sequences and padded else ()
    call = mla_call(
        [length for length, _ in sequences],
        kv_lengths=[length + past for length, past in sequences],
        heads=heads,
        **dict(zip(("nope_size", "rope_size", "latent_size", "value_size"), sizes, strict=True)),
        page=page,
        dtype=dtype,
        strided=strided,
        absorbed=absorbed,
        lse=lse,
        padding=padding,
        seed=seed,
    )
    verify(TorchMla(), call)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("absorbed", [True, False])
@pytest.mark.parametrize("norm", [1.0, 4.0])
def test_decode_of_many_lengths(backend, dtype, absorbed, norm):
    call = mla_call(
        [1] * 40,
        kv_lengths=[1, 2, 15, 16, 17, *range(30, 730, 20)],
        phase="decode",
        dtype=dtype,
        absorbed=absorbed,
        lse=True,
        padding=(0, 11),
        norm=norm,
    )
    verify(backend, call)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("absorbed", [True, False])
def test_a_long_prefix_is_merged_from_pieces(backend, dtype, absorbed):
    call = mla_call(
        [KEYS + 70, 300, 2, 1],
        kv_lengths=[KEYS + 70, 3 * KEYS, KEYS + 1, 2000],
        heads=2,
        page=64,
        dtype=dtype,
        absorbed=absorbed,
        lse=True,
    )
    verify(backend, call)


def test_chunks_of_any_size_equal_one_pass(backend):
    call = mla_call([130, 1, 77], kv_lengths=[140, 1, 77], lse=True, seed=5)
    expected = run_reference(call)
    schedules = [
        [[64, 1, 0], [64, 0, 64], [2, 0, 13]],
        [[7, 0, 7]] * 11 + [[53, 1, 0]],
        [[0, 0, 1]] * 70 + [[130, 1, 7]],
    ]
    for schedule in schedules:
        actual = run_in_steps(backend, call, schedule)
        for name, output in actual.outputs.items():
            assert measure(output, expected.outputs[name]).within(BOUNDS[torch.float32])


@pytest.mark.parametrize("absorbed", [True, False])
def test_decoding_step_by_step_equals_prefill(backend, absorbed):
    call = mla_call([40] * 5, kv_lengths=[40, 41, 100, 57, 63], absorbed=absorbed, lse=True, seed=6)
    expected = run_reference(call)
    actual = run_in_steps(backend, call, [[1] * 5] * 40, phase="decode")
    for name, output in actual.outputs.items():
        assert measure(output, expected.outputs[name]).within(BOUNDS[torch.float32])


def test_absorbing_the_weights_changes_nothing():
    call = mla_call([3, 20], kv_lengths=[9, 20], dtype=torch.float64, strided=False)
    t = call.tensors
    absorbed = mla_call([3, 20], kv_lengths=[9, 20], dtype=torch.float64, strided=False, absorbed=True)
    absorbed.tensors["kv_cache"].copy_(t["kv_cache"])
    absorbed.tensors["q_rope"].copy_(t["q_rope"])
    absorbed.tensors["q_nope"].copy_(torch.einsum("thd,hdr->thr", t["q_nope"], t["w_k"]))
    whole, latent = run_reference(call), run_reference(absorbed)
    expanded = torch.einsum("thr,hvr->thv", latent.out, t["w_v"])
    assert measure(expanded, whole.out).within(BOUNDS[torch.float64])


def test_drafts_are_a_chain_as_prefill_has_it(backend):
    verify(backend, mla_call([3, 1, 5], kv_lengths=[40, 41, 5], phase="verify", lse=True, padding=(1,)))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    sequences=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 60)), max_size=5),
    dtype=st.sampled_from(DTYPES),
    lse=st.booleans(),
    padded=st.booleans(),
    seed=st.integers(0, 2**16),
    data=st.data(),
)
def test_any_trees(sequences, dtype, lse, padded, seed, data):
    padding = data.draw(st.sets(st.sampled_from(range(len(sequences))))) if sequences and padded else ()
    call = mla_call(
        [length for length, _ in sequences],
        kv_lengths=[length + past for length, past in sequences],
        phase="verify",
        dtype=dtype,
        lse=lse,
        padding=padding,
        seed=seed,
    )
    verify(TorchMla(), call.with_trees(seed))


def test_trees_of_many_rows(backend):
    call = mla_call([300, 2], kv_lengths=[900, 700], phase="verify", seed=1)
    verify(backend, call.with_trees())


def test_a_row_of_a_tree_is_that_of_the_chain_that_leads_to_it(backend):
    call = mla_call([6], kv_lengths=[30], phase="verify", seed=2).with_trees(seed=4)
    parents = call.batch.parent_rows
    path = [5]
    while parents[path[-1]] >= 0:
        path.append(parents[path[-1]])
    path.reverse()
    assert 1 < len(path) < 6
    chain = dataclasses.replace(
        call,
        batch=dataclasses.replace(
            call.batch,
            parents=torch.tensor([-1, 0, 1, 2, 3, 4], dtype=torch.int32),
            parent_rows=(-1, 0, 1, 2, 3, 4),
        ),
    )
    verify(backend, chain)
    moved = call.clone()
    page = call.batch.page_table[0].long()
    for name in ("kv_cache",):
        pool = call.tensors[name].flatten(0, 1)
        target = moved.tensors[name].flatten(0, 1)
        for place, row in enumerate(path):
            source, where = 24 + row, 24 + place
            target[page[where // 16] * 16 + where % 16] = pool[page[source // 16] * 16 + source % 16]
    last = len(path)
    tensors = {
        name: t[path] if t is not None and call.contract.tensors[name].axes[0] == "T" else t
        for name, t in moved.tensors.items()
    }
    batch = PagedBatch(
        cu_seqlens=torch.tensor([0, last], dtype=torch.int32),
        seqlens=(last,),
        page_table=call.batch.page_table,
        kv_lens=torch.tensor([24 + last], dtype=torch.int32),
        kv_seqlens=(24 + last,),
    )
    alone = dataclasses.replace(call, tensors=tensors, batch=batch)
    call.run(backend)
    alone.run(backend)
    assert measure(alone.out, call.out[path].double()).within(BOUNDS[torch.float32])


def test_trees_are_for_verification_of_a_backend_that_has_them(backend):
    call = mla_call([3, 4], phase="verify").with_trees()
    with pytest.raises(ContractError, match="got trees; asked is none: this backend lacks the feature trees"):
        call.contract.check_batch("verify", call.batch)
    with pytest.raises(ContractError, match="got trees in prefill; asked is trees in verify only"):
        dataclasses.replace(call, phase="prefill").run(backend)
