"""Tests of both ops with paged caches, `attention` and `mla`."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from switchrail.errors import ContractError
from switchrail.ops.attention.torch import TorchAttention
from switchrail.ops.batch import PagedBatch
from switchrail.ops.mla.torch import TorchMla
from switchrail.testing.compare import BOUNDS, measure, verify
from switchrail.testing.inputs import attention_call, mla_call, run_reference
from switchrail.testing.steps import run_in_steps

from tests.ops.schedules import SCHEDULES
from tests.ops.strategies import DTYPES

OPS = {"attention": (TorchAttention(), attention_call), "mla": (TorchMla(), mla_call)}
POOLS = {"attention": ("k_cache", "v_cache"), "mla": ("kv_cache",)}


@pytest.fixture(scope="module", params=OPS)
def op(request):
    return request.param


@pytest.fixture(scope="module")
def backend(op):
    return OPS[op][0]


@pytest.fixture(scope="module")
def make(op):
    return OPS[op][1]


def test_chunks_of_any_size_equal_one_pass(backend, make):
    call = make([130, 1, 77], kv_lengths=[140, 1, 77], lse=True, seed=5)
    expected = run_reference(call)
    for schedule in SCHEDULES:
        actual = run_in_steps(backend, call, schedule)
        for name, output in actual.outputs.items():
            assert measure(output, expected.outputs[name]).within(BOUNDS[torch.float32])


@settings(max_examples=60, derandomize=True)
@given(
    sequences=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 60)), max_size=5),
    dtype=st.sampled_from(DTYPES),
    lse=st.booleans(),
    padded=st.booleans(),
    seed=st.integers(0, 2**16),
    data=st.data(),
)
def test_any_trees(backend, make, sequences, dtype, lse, padded, seed, data):
    padding = data.draw(st.sets(st.sampled_from(range(len(sequences))))) if sequences and padded else ()
    call = make(
        [length for length, _ in sequences],
        kv_lengths=[length + past for length, past in sequences],
        phase="verify",
        dtype=dtype,
        lse=lse,
        padding=padding,
        seed=seed,
    )
    verify(backend, call.with_trees(seed))


def test_trees_of_many_rows(op, backend, make):
    capped = {"soft_cap": 2.0} if op == "attention" else {}
    call = make([300, 2], kv_lengths=[900, 700], phase="verify", seed=1, **capped)
    verify(backend, call.with_trees())


def test_a_row_of_a_tree_is_that_of_the_chain_that_leads_to_it(op, backend, make):
    call = make([6], kv_lengths=[30], phase="verify", seed=2).with_trees(seed=4)
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
    for name in POOLS[op]:
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


def test_trees_need_the_feature_and_the_phase_verify(backend, make):
    call = make([3, 4], phase="verify").with_trees()
    with pytest.raises(ContractError, match="got trees, expected none: this backend lacks the feature trees"):
        call.contract.check_batch("verify", call.batch)
    with pytest.raises(ContractError, match="got trees in prefill, expected trees in verify only"):
        dataclasses.replace(call, phase="prefill").run(backend)
