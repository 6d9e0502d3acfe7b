import dataclasses

import numpy as np
import pytest
import torch
from switchrail.testing.compare import Error, same_bits, verify
from switchrail.testing.inputs import mla_call, run_reference
from switchrail_kernels.mla import expansion, plan
from switchrail_kernels.mla import triton as kernels
from switchrail_kernels.mla.triton import TritonMla

LAYER = plan.Layer(heads=4, plain=16, rotated=8, latent=32, value=16, tile=32)
"""The sizes of a float32 layer of `mla_call`."""


@pytest.fixture
def backend():
    return TritonMla()


@pytest.fixture
def expands(monkeypatch):
    """Expand sequences with four rows or more, 128 keys at a time."""

    def some(self, batch):
        return (np.asarray(batch.seqlens) >= 4) & (np.asarray(batch.kv_seqlens) > 0)

    monkeypatch.setattr(plan.Layer, "expands", some)
    monkeypatch.setattr(expansion, "MOST_BYTES", 1)


def without(call, *names):
    return dataclasses.replace(call, tensors={n: None if n in names else t for n, t in call.tensors.items()})


@pytest.mark.parametrize(("page", "absorbed"), [(1, True), (5, False), (64, True)])
def test_pages_and_earlier_tokens(backend, device, dtype, page, absorbed):
    options = {"page": page, "absorbed": absorbed, "dtype": dtype, "device": device}
    verify(backend, mla_call([1, 0, 3, 40], kv_lengths=[100, 0, 3, 70], **options))
    verify(backend, mla_call([1] * 4, kv_lengths=[100, 64, 3, 70], phase="decode", **options))


@pytest.mark.parametrize("phase", ["prefill", "decode", "verify"])
@pytest.mark.parametrize("heads", [1, 70])
def test_heads_and_padding(backend, device, phase, heads):
    lengths = [1] * 3 if phase == "decode" else [5, 3, 2]
    call = mla_call(
        lengths, kv_lengths=[70, 9, 40], phase=phase, heads=heads, lse=True, padding=(1,), device=device
    )
    verify(backend, call)


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("missing", ["w_k", "w_v"])
def test_one_of_the_weights(backend, device, phase, missing):
    sizes = {"nope_size": 32, "value_size": 32, "latent_size": 32}
    lengths = [1] * 2 if phase == "decode" else [150, 2]
    call = mla_call(lengths, kv_lengths=[160, 40], phase=phase, device=device, **sizes)
    verify(backend, without(call, missing))


@pytest.mark.parametrize(
    ("latent", "rope", "nope", "value"), [(48, 24, 24, 40), (16, 1, 5, 3), (130, 16, 16, 8)]
)
def test_sizes_that_are_padded(backend, device, expands, latent, rope, nope, value):
    sizes = {"latent_size": latent, "rope_size": rope, "nope_size": nope, "value_size": value}
    options = {"dtype": torch.float16, "device": device}
    verify(backend, mla_call([3, 6], kv_lengths=[30, 40], **options, **sizes))
    verify(backend, mla_call([1] * 2, kv_lengths=[3, 40], phase="decode", **options, **sizes))


@pytest.mark.parametrize("phase", ["decode", "verify"])
@pytest.mark.parametrize("kv", [128, 129, 1500])
def test_long_caches_are_cut_into_pieces(backend, device, phase, kv):
    lengths = [1, 1, 1] if phase == "decode" else [3, 2, 1]
    call = mla_call(
        lengths, kv_lengths=[kv, 3, 9], padding=(2,), phase=phase, heads=2, lse=True, device=device
    )
    verify(backend, call)
    if phase == "verify":
        verify(backend, call.with_trees())


@pytest.mark.parametrize("heads", [4, 20])
def test_a_tree_over_several_tiles(backend, device, heads):
    call = mla_call([3, 40], kv_lengths=[9, 45], phase="verify", heads=heads, device=device)
    verify(backend, call.with_trees(seed=2))


def test_how_a_cache_is_cut():
    def cut(tiles, programs, longest):
        return plan.CacheSplit.of(tiles, programs, longest, torch.device("cpu"))  # plans as for an H200

    assert cut(32, 2, 8192) == plan.CacheSplit(2, 2)
    assert cut(32, 2, 100) == plan.CacheSplit(2, 1)
    assert cut(1, 2, 8192) == plan.CacheSplit(64, 64)
    assert cut(48, 2, 8192) == plan.CacheSplit(4, 4)
    assert cut(500, 2, 8192) == plan.CacheSplit(1, 1)
    assert cut(500, 2, 40000) == plan.CacheSplit(1, 3)
    keys = np.array([1, 128, 129, 8192, 40000])
    assert cut(32, 2, 40000).pieces(keys).tolist() == [1, 1, 2, 2, 4]


@pytest.mark.parametrize("lse", [True, False])
def test_many_rows_are_expanded_round_by_round(backend, device, dtype, expands, lse):
    lengths, kv = [40, 2, 29, 5, 4], [200, 2, 29, 270, 41]
    call = mla_call(lengths, kv_lengths=kv, padding=(2,), page=5, lse=lse, dtype=dtype, device=device)
    assert len(backend.plan("prefill", call.batch).expansion(LAYER, plan.SPAN, 5).rounds) == 4
    verify(backend, call)


def test_rounds_fit_a_grid(backend, monkeypatch, device, expands):
    monkeypatch.setattr(expansion, "MOST_BYTES", 2**60)
    call = mla_call([5], heads=1, device=device)
    planned = backend.plan("prefill", call.batch)
    call.bind(backend, planned)()
    ((_, capacity, _),) = planned.expansions
    assert capacity == plan.SPAN * 2**15


def test_sequences_that_are_expanded_by_default(backend, device, dtype):
    call = mla_call([200, 3, 2, 9], kv_lengths=[210, 9, 9, 0], padding=(3,), dtype=dtype, device=device)
    assert LAYER.expands(call.batch).tolist() == [True, False, False, False]
    verify(backend, call)


@pytest.mark.parametrize(
    ("rows", "keys", "heads", "count", "expands"),
    [  # as measured on an H200
        *[(32, 512, 128, 1, False), (96, 512, 128, 1, True), (128, 2048, 128, 1, True)],
        *[(64, 8192, 128, 1, False), (96, 8192, 128, 1, False), (256, 8192, 128, 1, True)],
        *[(64, 64, 128, 1, True), (64, 64, 128, 32, False), (64, 2048, 128, 8, False)],
        *[(128, 2048, 16, 1, False), (256, 8192, 16, 1, False), (256, 2048, 128, 8, True)],
        *[(80, 512, 128, 1, True), (200, 512, 16, 1, True), (144, 16384, 128, 1, False)],
    ],
)
def test_sequences_that_gain_are_expanded(rows, keys, heads, count, expands):
    batch = mla_call([rows] * count, kv_lengths=[keys] * count, heads=1).batch
    layer = plan.Layer(heads=heads, plain=128, rotated=64, latent=512, value=128, tile=128)
    assert layer.expands(batch).tolist() == [expands] * count


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_large_and_negative_logits(backend, device, expands, phase):
    lengths = [1] if phase == "decode" else [9]
    call = mla_call(lengths, kv_lengths=[300], phase=phase, norm=10.0, device=device)
    verify(backend, call)
    verify(backend, dataclasses.replace(call, options={"scale": -call.options["scale"]}))


def test_tiles_for_little_shared_memory(backend, device, monkeypatch):
    monkeypatch.setattr(kernels, "has_large_shared_memory", lambda device: False)
    kernels._shape.cache_clear()
    verify(backend, mla_call([3, 9], heads=20, dtype=torch.float16, device=device))
    kernels._shape.cache_clear()


def test_nothing_to_do(backend, device):
    for phase, lengths in (("prefill", [0, 0]), ("prefill", []), ("decode", []), ("verify", [])):
        mla_call(lengths, phase=phase, device=device).run(backend)


DEEPSEEK = {"nope_size": 128, "rope_size": 64, "latent_size": 512, "value_size": 128, "page": 64}


@pytest.mark.gpu
@pytest.mark.parametrize(("heads", "absorbed"), [(16, True), (16, False), (70, True), (128, True)])
def test_deepseek_sizes(backend, device, dtype, heads, absorbed):
    sizes = {**DEEPSEEK, "heads": heads, "absorbed": absorbed, "lse": True, "dtype": dtype, "device": device}
    verify(backend, mla_call([1, 0, 6, 9], kv_lengths=[1, 0, 155, 9], **sizes))
    verify(backend, mla_call([1] * 3, kv_lengths=[1, 64, 700], phase="decode", **sizes))
    drafted = mla_call([4, 1, 3], kv_lengths=[9, 129, 500], phase="verify", **sizes)
    verify(backend, drafted)
    verify(backend, drafted.with_trees())


@pytest.mark.gpu
@pytest.mark.parametrize("room", [expansion.MOST_BYTES, 1])
def test_deepseek_prompts(backend, device, dtype, monkeypatch, room):
    monkeypatch.setattr(expansion, "MOST_BYTES", room)
    sizes = {**DEEPSEEK, "heads": 2, "lse": True, "dtype": dtype, "device": device}
    verify(backend, mla_call([170, 0, 7, 130], kv_lengths=[170, 0, 155, 300], **sizes))


@pytest.mark.gpu
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_pages_beyond_2_to_the_31_elements(backend, device, phase):
    lengths = [1, 1] if phase == "decode" else [3, 140]
    call = mla_call(
        lengths, kv_lengths=[30, 400], phase=phase, dtype=torch.bfloat16, device=device, heads=16, **DEEPSEEK
    )
    small = call.clone()
    small.run(backend)
    cache = call.tensors["kv_cache"]
    pages = 2**31 // cache[0].numel() + 100
    offset = pages - cache.shape[0]
    far = torch.full((pages, *cache.shape[1:]), torch.nan, dtype=torch.bfloat16, device=device)
    far[offset:] = cache
    batch = dataclasses.replace(call.batch, page_table=call.batch.page_table + offset)
    large = dataclasses.replace(call, tensors={**call.clone().tensors, "kv_cache": far}, batch=batch)
    large.run(backend)
    assert same_bits(large.out, small.out)


@pytest.mark.parametrize("phase", ["prefill", "verify"])
def test_queries_that_are_multiplied_on_the_way_keep_their_digits(backend, device, phase):
    call = mla_call(
        [40, 9, 17], kv_lengths=[40, 25, 33], phase=phase, dtype=torch.float16, norm=8.0, device=device
    )
    # with one more rounding, the errors would be 8.1e-4 and 7.4e-3
    verify(backend, call, bound=Error(1e-3, 2e-3))


@pytest.mark.parametrize("ragged", [True, False])
@pytest.mark.parametrize("chunked", [True, False])
@pytest.mark.parametrize("table", [torch.int32, torch.int64])  # int64 tables are adapted
def test_options_of_a_prefill_limit_which_sequences_are_expanded(
    backend, device, expands, ragged, chunked, table
):
    call = mla_call([9, 6, 5], kv_lengths=[9, 40, 5], device=device)
    batch = dataclasses.replace(call.batch, page_table=call.batch.page_table.to(table))
    plan = backend.plan("prefill", batch)
    backend.optional_steps()["plan_chunked_prefix"](plan=plan, batch=batch, ragged=ragged, chunked=chunked)
    dataclasses.replace(call, batch=batch).bind(backend, plan)()
    torch.testing.assert_close(call.out, run_reference(call).out.float(), rtol=1e-4, atol=1e-5)
    (found,) = getattr(plan, "plan", plan).expanded.values()
    assert found.tolist() == [ragged, ragged and chunked, ragged]
