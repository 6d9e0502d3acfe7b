import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from switchrail.errors import ContractError
from switchrail.ops.attention.torch import TorchAttention
from switchrail.ops.pages import BLOCK
from switchrail.testing.compare import BOUNDS, measure, verify
from switchrail.testing.inputs import attention_call, run_reference
from switchrail.testing.steps import run_in_steps

from tests.ops.strategies import CACHED, DTYPES

FEATURES = [
    {},
    {"window": 16},
    {"window": 1000},
    {"window": 1, "sinks": True},
    {"soft_cap": 5.0, "window": 33, "sinks": True, "lse": True},
]


BACKEND = TorchAttention


@settings(max_examples=250, derandomize=True)
@given(
    sequences=CACHED,
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 4),
    head_size=st.integers(1, 24),
    dtype=st.sampled_from(DTYPES),
    arguments=st.fixed_dictionaries(
        {
            "page": st.integers(1, 33),
            "strided": st.booleans(),
            "window": st.one_of(st.none(), st.integers(1, 40)),
            "soft_cap": st.sampled_from([None, 2.0]),
            "sinks": st.booleans(),
            "lse": st.booleans(),
            "seed": st.integers(0, 2**16),
        }
    ),
    padded=st.booleans(),
    data=st.data(),
)
def test_any_prefill(sequences, kv_heads, group, head_size, dtype, arguments, padded, data):
    padding = data.draw(st.sets(st.sampled_from(range(len(sequences))))) if sequences and padded else ()
    if dtype in (torch.float16, torch.bfloat16):
        head_size += 7  # torch rounds the probabilities; in a short row, all sums may cancel
    call = attention_call(
        [length for length, _ in sequences],
        kv_lengths=[length + past for length, past in sequences],
        heads=kv_heads * group,
        kv_heads=kv_heads,
        head_size=head_size,
        dtype=dtype,
        padding=padding,
        **arguments,
    )
    verify(TorchAttention(), call)


HEADS = [(1, 1), (8, 2), (5, 5), (16, 1)]
OF_MANY_LENGTHS = [
    pytest.param(dtype, HEADS[(i + j + (norm > 1)) % 4], norm, features, id=f"{dtype}-{norm}-{features}")
    for i, dtype in enumerate(DTYPES)
    for norm in (1.0, 6.0)
    for j, features in enumerate(FEATURES)
]
"""Each combination of values of two of the parameters dtype, heads, norm and features is in a case."""


@pytest.mark.parametrize(("dtype", "heads", "norm", "features"), OF_MANY_LENGTHS)
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


@pytest.mark.parametrize(
    ("dtype", "features"),
    [
        *((torch.float32, one) for one in FEATURES),
        *zip(
            (torch.bfloat16, torch.float64, torch.float16, torch.bfloat16, torch.float16),
            FEATURES,
            strict=True,
        ),
    ],
    ids=str,
)
def test_long_sequences_and_long_pasts(backend, dtype, features):
    lengths = [700, BLOCK + 1, 2, 1]
    call = attention_call(
        lengths, kv_lengths=[700, 1500, 900, 2000], heads=2, kv_heads=1, dtype=dtype, page=64, **features
    )
    verify(backend, call)


@pytest.mark.parametrize("window", [None, 16, 1500])
def test_a_sequence_with_cached_tokens_is_one_call_where_torch_needs_no_mask(backend, window, monkeypatch):
    call = attention_call([2 * BLOCK, 5], kv_lengths=[1500, 5], heads=4, kv_heads=2, window=window)
    counts = []
    for flash in (False, True):
        monkeypatch.setattr("switchrail.ops.attention.torch._has_flash", lambda *tensors, found=flash: found)
        verify(backend, call)
        parts = backend.plan("prefill", call.batch).parts(16, window=window, longer=flash)
        counts.append([len(many.blocks) for many in parts.many])
    assert counts == [[2, 1], [2 if window == 16 else 1, 1]]


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
    with pytest.raises(ContractError, match=r"page_table: got 2 pages of 16 tokens.*longest sequence, 50"):
        dataclasses.replace(call, batch=batch).run(backend)


def test_drafts_without_a_tree_are_a_chain(backend):
    call = attention_call(
        [3, 1, 5], kv_lengths=[40, 41, 5], phase="verify", window=20, lse=True, padding=(1,)
    )
    verify(backend, call)


def test_trees_with_a_window_are_refused(backend):
    call = attention_call([3, 4], phase="verify").with_trees()
    windowed = dataclasses.replace(call, options={**call.options, "window": 3})
    with pytest.raises(ContractError, match="window: got 3 with trees"):
        windowed.run(backend)
