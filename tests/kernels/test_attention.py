import dataclasses

import pytest
import torch
from switchrail.errors import ContractError
from switchrail.ops.attention.contract import AttentionCall, AttentionLayer
from switchrail.ops.batch import PagedBatch
from switchrail.testing.compare import BOUNDS, measure, same_bits, verify
from switchrail.testing.inputs import attention_call, run_reference
from switchrail_kernels.attention import triton as kernels
from switchrail_kernels.attention.triton import TritonAttention


@pytest.fixture
def backend():
    return TritonAttention()


def _with_pools_of_one_size(*calls):
    """The calls with caches and page tables of the same shape."""
    pages = max(call.tensors["k_cache"].shape[0] for call in calls)
    width = max(call.batch.page_table.shape[1] for call in calls)
    for call in calls:
        table = call.batch.page_table
        table = torch.nn.functional.pad(table, (0, width - table.shape[1]))
        tensors = dict(call.tensors)
        for name in ("k_cache", "v_cache"):
            old = tensors[name]
            tensors[name] = old.new_full((pages, *old.shape[1:]), torch.nan)
            tensors[name][: old.shape[0]] = old
        batch = dataclasses.replace(call.batch, page_table=table)
        yield dataclasses.replace(call, tensors=tensors, batch=batch)


def _copy(call, into):
    """Copy the elements of a call's tensors into those of another call, as before a graph's replay."""
    for name, tensor in call.tensors.items():
        into.tensors[name].copy_(tensor)
    for name, tensor in call.batch_tensors.items():
        getattr(into.batch, name).copy_(tensor)


@pytest.mark.parametrize("kv", [1, 255, 256, 257, 700, 17000])
def test_decode_cuts_long_caches_into_pieces(backend, device, kv):
    call = attention_call(
        [1, 1, 1], kv_lengths=[kv, 3, 9], padding=(2,), phase="decode", kv_heads=1, heads=2, device=device
    )
    verify(backend, call)


@pytest.mark.parametrize(
    ("lengths", "window", "pieces", "least"),
    [
        ([8192], None, 32, 256),
        ([32768], None, 64, 512),
        ([8192] * 32, None, 4, 2048),
        ([1024] * 128, None, 1, 1024),
        ([1024] * 256, None, 1, 1024),
        ([8192] * 8 + [1] * 8, None, 15, 576),
        ([8192] * 32, 600, 3, 256),
        ([0], None, 1, 256),
    ],
)
def test_decode_cuts_caches_so_that_all_programs_run_at_once(backend, lengths, window, pieces, least):
    count = len(lengths)
    batch = PagedBatch(
        cu_seqlens=torch.arange(count + 1, dtype=torch.int32),
        seqlens=(1,) * count,
        page_table=torch.zeros(count, max(lengths) // 64 + 1, dtype=torch.int32),
        kv_lens=torch.tensor(lengths, dtype=torch.int32),
        kv_seqlens=tuple(lengths),
    )
    q, cache = torch.empty(count, 16, 256, device="meta"), torch.empty(9, 64, 2, 256, device="meta")
    layer = AttentionLayer(k_cache=cache, v_cache=cache, scale=1.0, window=window)
    room = backend.plan("decode", batch).split(AttentionCall(layer, q, q, None), 2)
    assert (room.pieces, room.least) == (pieces, least)
    assert len(room.tensors) == (2 if pieces > 1 else 0)


FEATURES = {"soft_cap": 5.0, "sinks": True, "lse": True}


@pytest.mark.parametrize("window", [None, 600])
def test_a_single_decode_is_merged_of_its_pieces(backend, device, dtype, window):
    sizes = {"heads": 3, "kv_heads": 1, "head_size": 24, "dtype": dtype, "device": device}
    call = attention_call([1], kv_lengths=[700], phase="decode", window=window, **sizes, **FEATURES)
    expected = run_reference(call)
    verify(backend, call, expected=expected)
    plan = backend.plan("decode", call.batch)
    room = plan.split(call.made, 1)
    for tensor in room.tensors:
        tensor.fill_(torch.nan)
    call.bind(backend, plan)()
    assert measure(call.out, expected.out).within(BOUNDS[dtype])
    assert room.tensors[1].isfinite().sum(0).tolist() == [3] * 3


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("cap", [1e-2, 1e8])
def test_caps_of_any_size(backend, device, phase, cap):
    lengths = [1, 1] if phase == "decode" else [3, 40]
    sizes = {"soft_cap": cap, "lse": True, "device": device}
    verify(backend, attention_call(lengths, kv_lengths=[300, 90], phase=phase, **sizes))


@pytest.mark.parametrize("window", [50, 300])
@pytest.mark.parametrize("phase", ["prefill", "decode", "verify"])
def test_windows_with_whole_blocks_between_their_ends(backend, device, dtype, phase, window):
    lengths = [1] * 3 if phase == "decode" else [40, 9, 1]
    sizes = {"window": window, "phase": phase, "dtype": dtype, "device": device, "page": 64}
    features = FEATURES if window == 300 else {}
    verify(backend, attention_call(lengths, kv_lengths=[700, 200, 90], **sizes, **features))


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("window", [2**31, 2**64])
def test_windows_wider_than_32_bits(backend, device, phase, window):
    lengths = [1, 1] if phase == "decode" else [3, 40]
    verify(backend, attention_call(lengths, kv_lengths=[900, 90], phase=phase, window=window, device=device))


@pytest.mark.parametrize("phase", ["prefill", "verify"])
@pytest.mark.parametrize("features", [{}, FEATURES], ids=["plain", "features"])
def test_few_rows_on_a_long_cache_are_cut_into_pieces(backend, device, dtype, phase, features):
    call = attention_call(
        [3, 1, 0, 20, 70],
        kv_lengths=[900, 600, 9, 30, 100],
        padding=(1,),
        phase=phase,
        dtype=dtype,
        device=device,
        **features,
    )
    verify(backend, call)
    work = backend.plan(phase, call.batch).work(16, 2, 2, 16, None)
    assert work.slots > 0
    pieces = work.items[:, 5].tolist()
    assert max(pieces) == 4
    assert 1 in pieces


@pytest.mark.parametrize("lengths", [[1, 7, 0, 70], [40]])
def test_trees_over_several_tiles_and_pieces(backend, device, dtype, lengths):
    kv = [length + past for length, past in zip(lengths, [900, 3, 0, 61], strict=False)]
    call = attention_call(lengths, kv_lengths=kv, phase="verify", dtype=dtype, device=device, lse=True)
    verify(backend, call.with_trees(seed=2))


def test_a_tree_that_is_deeper_than_a_tile(backend, device):
    tree = attention_call([70], kv_lengths=[75], phase="verify", lse=True, device=device).with_trees()
    parents = tuple(range(-1, 69))
    tensor = torch.tensor(parents, dtype=torch.int32, device=device)
    batch = dataclasses.replace(tree.batch, parents=tensor, parent_rows=parents)
    verify(backend, dataclasses.replace(tree, batch=batch))


def test_a_tree_has_no_window(backend, device):
    call = attention_call([5], phase="verify", window=3, device=device).with_trees()
    with pytest.raises(ContractError, match="window: got 3 with trees"):
        call.run(backend)


def test_a_page_table_that_is_too_narrow_is_refused(backend, device):
    for phase in ("prefill", "decode", "verify"):
        call = attention_call([1], kv_lengths=[40], phase=phase, device=device)
        batch = dataclasses.replace(call.batch, page_table=call.batch.page_table[:, :2].contiguous())
        with pytest.raises(ContractError, match=r"page_table: got 2 pages of 16"):
            dataclasses.replace(call, batch=batch).run(backend)


def test_a_negative_scale(backend, device):
    for phase in ("prefill", "decode"):
        for cap in (None, 2.0):
            call = attention_call([1], kv_lengths=[40], phase=phase, soft_cap=cap, device=device)
            verify(backend, dataclasses.replace(call, options={**call.options, "scale": -0.5}))


def test_layers_share_a_plan(backend, device):
    """Layers that split caches differently can share one plan."""
    first = attention_call([1, 1], kv_lengths=[900, 300], phase="decode", device=device)
    plan = backend.plan("decode", first.batch)
    for window in (None, 300, None, 20, 300, None):
        call = dataclasses.replace(first.clone(), options={**first.options, "window": window})
        call.bind(backend, plan)()
        assert measure(call.out, run_reference(call).out).within(BOUNDS[torch.float32])


@pytest.mark.parametrize("phase", ["decode", "verify"])
@pytest.mark.parametrize("window", [None, 400])
def test_a_plan_serves_other_lengths_of_the_caches(backend, device, phase, window):
    """A plan can serve longer or shorter caches than before, and padding, as in a graph's replay."""
    rows = [1] * 4 if phase == "decode" else [5, 1, 9, 2]
    first, second = _with_pools_of_one_size(
        *(
            attention_call(rows, kv_lengths=kv, phase=phase, window=window, padding=padding, device=device)
            for kv, padding in (([600, 30, 700, 5], ()), ([1900, 1400, 9, 0], (3,)))
        )
    )
    plan = backend.plan(phase, first.batch)
    first.bind(backend, plan)()
    _copy(second, first)
    first.bind(backend, plan)()
    assert measure(first.out, run_reference(second).out).within(BOUNDS[torch.float32])


def test_a_result_does_not_depend_on_its_neighbours(backend, device):
    call = attention_call([1, 1, 1], kv_lengths=[900, 300, 5], phase="decode", device=device)
    together = call.clone()
    together.run(backend)
    batch = dataclasses.replace(
        call.batch,
        cu_seqlens=call.batch.cu_seqlens[:2],
        seqlens=(1,),
        page_table=call.batch.page_table[1:2],
        kv_lens=call.batch.kv_lens[1:2],
        kv_seqlens=(300,),
    )
    tensors = {**call.clone().tensors, "q": call.tensors["q"][1:2], "out": torch.empty_like(call.out[1:2])}
    alone = dataclasses.replace(call, batch=batch, tensors=tensors)
    alone.run(backend)
    assert same_bits(alone.out, together.out[1:2])


def test_tiles_for_little_shared_memory(backend, device, monkeypatch):
    monkeypatch.setattr(kernels, "has_large_shared_memory", lambda device: False)
    verify(backend, attention_call([70, 9], head_size=160, dtype=torch.float16, device=device))


QWEN3_NEXT = {"heads": 16, "kv_heads": 2, "head_size": 256, "page": 64}


@pytest.mark.gpu
@pytest.mark.parametrize("page", [16, 64])
def test_qwen3_next_sizes(backend, device, dtype, page):
    sizes = {**QWEN3_NEXT, "page": page, "dtype": dtype, "device": device}
    verify(backend, attention_call([1, 0, 200, 64, 63], kv_lengths=[1, 0, 555, 64, 100], **sizes))
    verify(backend, attention_call([1] * 3, kv_lengths=[1, 700, 3000], phase="decode", **sizes))


@pytest.mark.gpu
@pytest.mark.parametrize("size", [64, 80, 96, 128, 192])
def test_other_head_sizes(backend, device, dtype, size):
    sizes = {"heads": 8, "kv_heads": 2, "head_size": size, "dtype": dtype, "device": device}
    verify(backend, attention_call([150, 7], kv_lengths=[150, 90], **sizes))
    verify(backend, attention_call([1] * 2, kv_lengths=[300, 90], phase="decode", **sizes))


@pytest.mark.gpu
def test_pages_beyond_2_to_the_31_elements(backend, device):
    call = attention_call([3, 40], kv_lengths=[30, 400], dtype=torch.bfloat16, device=device, **QWEN3_NEXT)
    small = call.clone()
    small.run(backend)
    pages = 70_000  # 2^15 elements per page
    offset = pages - call.tensors["k_cache"].shape[0]
    tensors = call.clone().tensors
    for name in ("k_cache", "v_cache"):
        cache = torch.full((pages, *tensors[name].shape[1:]), torch.nan, dtype=torch.bfloat16, device=device)
        cache[offset:] = tensors[name]
        tensors[name] = cache
    batch = dataclasses.replace(call.batch, page_table=call.batch.page_table + offset)
    large = dataclasses.replace(call, tensors=tensors, batch=batch)
    large.run(backend)
    assert same_bits(large.out, small.out)


@pytest.mark.gpu
def test_a_captured_verification_is_replayed_with_other_lengths_and_trees(backend):
    first, second = (
        attention_call(
            [5, 1, 9], kv_lengths=kv, phase="verify", dtype=torch.bfloat16, device="cuda", seed=seed
        ).with_trees(seed)
        for seed, kv in enumerate(([1000, 30, 700], [300, 1400, 9]))
    )
    first, second = _with_pools_of_one_size(first, second)
    plan = backend.plan("verify", first.batch)
    first.bind(backend, plan)()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
        first.bind(backend, plan)()
    _copy(second, first)
    graph.replay()
    torch.cuda.synchronize()
    assert measure(first.out, run_reference(second).out).within(BOUNDS[torch.bfloat16])
