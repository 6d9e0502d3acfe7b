import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from switchrail.errors import ContractError
from switchrail.ops.attention.torch import TorchAttention
from switchrail.ops.batch import PagedBatch
from switchrail.ops.pages import BLOCK
from switchrail.testing.compare import BOUNDS, measure, verify
from switchrail.testing.inputs import attention_call, run_reference
from switchrail.testing.steps import run_in_steps

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


FEATURES = [
    {},
    {"window": 16},
    {"window": 1000},
    {"window": 1, "sinks": True},
    {"soft_cap": 5.0, "window": 33, "sinks": True, "lse": True},
]


@pytest.fixture(scope="module")
def backend():
    return TorchAttention()


@settings(max_examples=250, deadline=None, derandomize=True)
@given(
    sequences=st.lists(
        st.tuples(st.one_of(st.integers(0, 2), st.integers(0, 70)), st.integers(0, 100)), max_size=6
    ),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 4),
    head_size=st.integers(1, 24),
    page=st.integers(1, 33),
    dtype=st.sampled_from(DTYPES),
    strided=st.booleans(),
    padded=st.booleans(),
    window=st.one_of(st.none(), st.integers(1, 40)),
    soft_cap=st.sampled_from([None, 2.0]),
    sinks=st.booleans(),
    lse=st.booleans(),
    seed=st.integers(0, 2**16),
    data=st.data(),
)
def test_any_prefill(
    sequences,
    kv_heads,
    group,
    head_size,
    page,
    dtype,
    strided,
    padded,
    window,
    soft_cap,
    sinks,
    lse,
    seed,
    data,
):
    padding = data.draw(st.sets(st.sampled_from(range(len(sequences))))) if sequences and padded else ()
    if dtype in (torch.float16, torch.bfloat16):
        head_size += 7  # torch rounds the probabilities: what a few numbers may cancel to has no digits left
    call = attention_call(
        [length for length, _ in sequences],
        kv_lengths=[length + past for length, past in sequences],
        heads=kv_heads * group,
        kv_heads=kv_heads,
        head_size=head_size,
        page=page,
        dtype=dtype,
        strided=strided,
        padding=padding,
        window=window,
        soft_cap=soft_cap,
        sinks=sinks,
        lse=lse,
        seed=seed,
    )
    verify(TorchAttention(), call)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("heads", [(1, 1), (8, 2), (5, 5), (16, 1)], ids=str)
@pytest.mark.parametrize("norm", [1.0, 6.0])
@pytest.mark.parametrize("features", FEATURES, ids=str)
def test_decode_of_many_lengths(backend, dtype, heads, norm, features):
    call = attention_call(
        [1] * 40,
        kv_lengths=[1, 2, 15, 16, 17, *range(30, 730, 20)],
        phase="decode",
        heads=heads[0],
        kv_heads=heads[1],
        dtype=dtype,
        padding=(0, 11),
        norm=norm,
        **features,
    )
    verify(backend, call)


def test_decode_gathers_about_one_length_at_once(backend):
    call = attention_call([1] * 40, kv_lengths=[*range(10, 810, 20)], phase="decode")
    groups = backend.plan("decode", call.batch).parts(16).single
    assert 1 < len(groups) < 20
    assert sum(len(group.rows) for group in groups) == 40
    assert sum(len(group.tokens) for group in groups) < 1.25 * sum(call.batch.kv_seqlens)
    groups = backend.plan("decode", call.batch).parts(16, window=20).single
    assert len(groups) == 1
    assert len(groups[0].tokens) == 40 * 20


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("features", FEATURES, ids=str)
def test_long_sequences_and_long_pasts(backend, dtype, features):
    lengths = [700, BLOCK + 1, 2, 1]
    call = attention_call(
        lengths, kv_lengths=[700, 1500, 900, 2000], heads=2, kv_heads=1, dtype=dtype, page=64, **features
    )
    verify(backend, call)


@pytest.mark.parametrize("window", [None, 16, 1500])
def test_after_a_past_a_sequence_is_one_call_where_torch_needs_no_mask(backend, window, monkeypatch):
    call = attention_call([2 * BLOCK, 5], kv_lengths=[1500, 5], heads=4, kv_heads=2, window=window)
    counts = []
    for flash in (False, True):
        monkeypatch.setattr("switchrail.ops.attention.torch._has_flash", lambda *tensors, found=flash: found)
        verify(backend, call)
        parts = backend.plan("prefill", call.batch).parts(16, window=window, longer=flash)
        counts.append([len(many.blocks) for many in parts.many])
    assert counts == [[2, 1], [2 if window == 16 else 1, 1]]


def test_chunks_of_any_size_equal_one_pass(backend):
    call = attention_call([130, 1, 77], kv_lengths=[140, 1, 77], seed=5)
    expected = run_reference(call)
    schedules = [
        [[64, 1, 0], [64, 0, 64], [2, 0, 13]],
        [[7, 0, 7]] * 11 + [[53, 1, 0]],
        [[0, 0, 1]] * 70 + [[130, 1, 7]],
    ]
    for schedule in schedules:
        actual = run_in_steps(backend, call, schedule)
        assert measure(actual.out, expected.out).within(BOUNDS[torch.float32])


@pytest.mark.parametrize("features", FEATURES, ids=str)
def test_decoding_step_by_step_equals_prefill(backend, features):
    call = attention_call([40] * 5, kv_lengths=[40, 41, 100, 57, 63], seed=6, **features)
    expected = run_reference(call)
    actual = run_in_steps(backend, call, [[1] * 5] * 40, phase="decode")
    for name, output in actual.outputs.items():
        assert measure(output, expected.outputs[name]).within(BOUNDS[torch.float32])


def test_fewer_cached_tokens_than_rows(backend):
    call = attention_call([3, 5])
    batch = dataclasses.replace(call.batch, kv_seqlens=(3, 4))
    with pytest.raises(ContractError, match=r"kv_seqlens: got 4 for sequence 1 of 5 rows"):
        backend.plan("prefill", batch)


def test_a_page_table_that_is_too_narrow(backend):
    call = attention_call([3, 50])
    batch = dataclasses.replace(call.batch, page_table=call.batch.page_table[:, :2].contiguous())
    with pytest.raises(ContractError, match=r"page_table: got 2 pages of 16 tokens.*longest, 50 tokens"):
        dataclasses.replace(call, batch=batch).run(backend)


def test_drafts_are_a_chain_as_prefill_has_it(backend):
    call = attention_call(
        [3, 1, 5], kv_lengths=[40, 41, 5], phase="verify", window=20, lse=True, padding=(1,)
    )
    verify(backend, call)


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
    call = attention_call(
        [length for length, _ in sequences],
        kv_lengths=[length + past for length, past in sequences],
        phase="verify",
        dtype=dtype,
        lse=lse,
        padding=padding,
        seed=seed,
    )
    verify(TorchAttention(), call.with_trees(seed))


def test_trees_of_many_rows(backend):
    call = attention_call([300, 2], kv_lengths=[900, 700], phase="verify", soft_cap=2.0, seed=1)
    verify(backend, call.with_trees())


def test_a_row_of_a_tree_is_that_of_the_chain_that_leads_to_it(backend):
    call = attention_call([6], kv_lengths=[30], phase="verify", seed=2).with_trees(seed=4)
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
    for name in ("k_cache", "v_cache"):
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
    call = attention_call([3, 4], phase="verify").with_trees()
    with pytest.raises(ContractError, match="got trees; asked is none: this backend lacks the feature trees"):
        call.contract.check_batch("verify", call.batch)
    with pytest.raises(ContractError, match="got trees in prefill; asked is trees in verify only"):
        dataclasses.replace(call, phase="prefill").run(backend)
    windowed = dataclasses.replace(call, options={**call.options, "window": 3})
    with pytest.raises(ContractError, match="window: got 3 with trees"):
        windowed.run(backend)
