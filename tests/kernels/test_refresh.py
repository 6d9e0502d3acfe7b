"""Decode plans with bounds, refreshed for one batch after another."""

import dataclasses

import pytest
import torch
from switchrail.errors import ArgumentError, ContractError
from switchrail.ops.attention.contract import AttentionCall, AttentionLayer
from switchrail.ops.batch import Bounds, PagedBatch
from switchrail.ops.samples.pages import UNDEFINED_PAGE
from switchrail.testing.compare import BOUNDS, measure, same_bits
from switchrail.testing.inputs import attention_call, mla_call, run_reference
from switchrail_kernels.attention.triton import TritonAttention
from switchrail_kernels.mla.triton import TritonMla

MOST = 700
WITHIN = Bounds(sequences=4, rows=4, tokens=MOST)
PAGE = 16
WIDTH = -(-MOST // PAGE)
OPS = {
    "attention": (attention_call, TritonAttention, {"heads": 4, "kv_heads": 1, "head_size": 16}),
    "window": (attention_call, TritonAttention, {"heads": 2, "kv_heads": 2, "head_size": 16, "window": 300}),
    "mla": (mla_call, TritonMla, {"heads": 2, "absorbed": True}),
}
EACH = pytest.mark.parametrize("op", OPS)
LENGTHS = [
    pytest.param([1, 0, MOST - 1, MOST], id="each"),
    pytest.param([0] * 4, id="padding"),
    pytest.param([1] * 4, id="shortest"),
    pytest.param([MOST] * 4, id="longest"),
    pytest.param([257, 0, 256, 129], id="between"),
]


def make(op, lengths, device, dtype=torch.float32):
    """A call whose sequences have caches of `lengths` tokens (0 for padding). All calls have tables and pools
    of the same size."""
    generate, _, sizes = OPS[op]
    padding = [n for n, kv in enumerate(lengths) if kv == 0]
    options = {"phase": "decode", "page": PAGE, "lse": True, "dtype": dtype, "device": device, "norm": 2.0}
    call = generate([1] * 4, kv_lengths=[max(kv, 1) for kv in lengths], padding=padding, **options, **sizes)
    table = call.batch.page_table
    more = max(0, WIDTH - table.shape[1])
    table = torch.nn.functional.pad(table, (0, more), value=UNDEFINED_PAGE)[:, :WIDTH].contiguous()
    tensors = dict(call.tensors)
    for name in ("k_cache", "v_cache", "kv_cache"):
        if name in tensors:
            old = tensors[name]
            tensors[name] = old.new_full((4 * WIDTH + 3, *old.shape[1:]), torch.nan)
            tensors[name][: old.shape[0]] = old
    return dataclasses.replace(call, tensors=tensors, batch=dataclasses.replace(call.batch, page_table=table))


def hold(call, inputs):
    """Compare the call's results with the reference's results for `inputs`."""
    expected = run_reference(inputs)
    live = [n for n in range(4) if n not in inputs.padding]
    for name, tensor in call.outputs.items():
        wanted = expected.outputs[name]
        assert measure(tensor.cpu()[live], wanted[live]).within(BOUNDS[tensor.dtype])
        nothing = -torch.inf if name == "lse" else 0
        assert (tensor[list(inputs.padding)] == nothing).all()


def tensors_of(plan):
    """The tensors that a plan allocated itself."""
    return [tensor for cut in plan.splits.values() for tensor in getattr(cut, "tensors", ())]


@EACH
@pytest.mark.parametrize("lengths", LENGTHS)
def test_a_replayed_call_reads_the_batch_on_the_device(device, op, lengths):
    """Like a replayed graph, the second run reads new values, but has the first batch's host lengths."""
    backend = OPS[op][1]()
    first, second = make(op, [3, 0, 40, 9], device), make(op, lengths, device)
    plan = backend.plan("decode", first.batch, WITHIN)
    run = first.bind(backend, plan)
    run()
    hold(first, first)
    made = [tensor.data_ptr() for tensor in tensors_of(plan)]
    backend.refresh(plan, second.batch)
    for name, tensor in second.tensors.items():
        if tensor is not None:
            first.tensors[name].copy_(tensor)
    for name, tensor in second.batch_tensors.items():
        getattr(first.batch, name).copy_(tensor)
    run()
    hold(first, second)
    assert [tensor.data_ptr() for tensor in tensors_of(plan)] == made


@EACH
def test_tables_of_another_form_are_read_in_each_step(device, op):
    """An engine's graph may write the tables after `refresh`."""
    backend = OPS[op][1]()
    first, second = make(op, [3, 0, 40, 9], device), make(op, [1, 0, 256, 129], device)
    tables = {name: getattr(first.batch, name).long() for name in ("page_table", "kv_lens")}
    first = dataclasses.replace(first, batch=dataclasses.replace(first.batch, **tables))
    plan = backend.plan("decode", first.batch, WITHIN)
    run = first.bind(backend, plan)
    run()
    for name, tensor in second.tensors.items():
        if first.tensors[name] is not None:
            first.tensors[name].copy_(tensor)
    backend.refresh(plan, dataclasses.replace(second.batch, **tables))
    for name, table in tables.items():
        table.copy_(getattr(second.batch, name))
    run()
    hold(first, second)


@EACH
def test_a_plans_tensors_follow_from_its_bounds(device, op):
    backend = OPS[op][1]()
    plans = []
    for lengths in ([1, 0, 3, 2], [MOST] * 4):
        call = make(op, lengths, device)
        plan = backend.plan("decode", call.batch, WITHIN)
        call.bind(backend, plan)()
        plans.append(plan)
    first, second = plans
    if op == "mla":
        assert first.splits == second.splits
        (cut,) = first.splits.values()
        assert cut.most > 1
    else:
        (one,), (other,) = (plan.splits.values() for plan in plans)
        pieces = {"attention": 3, "window": 2}[op]
        assert (one.pieces, one.least) == (other.pieces, other.least) == (pieces, 256)
        assert [t.shape for t in one.tensors] == [t.shape for t in other.tensors]


@pytest.mark.parametrize(
    ("sequences", "tokens", "window", "pieces"),
    [
        (1, 700, None, 3),
        (1, 32768, None, 64),
        (16, 32768, None, 33),
        (64, 32768, None, 9),
        (128, 32768, None, 5),
        (1000, 32768, None, 1),
        (32, 32768, 600, 3),
        (1, 100, None, 1),
    ],
)
def test_pieces_of_caches_of_any_length(sequences, tokens, window, pieces):
    batch = PagedBatch(
        cu_seqlens=torch.arange(sequences + 1, dtype=torch.int32),
        seqlens=(1,) * sequences,
        page_table=torch.zeros(sequences, -(-tokens // 64), dtype=torch.int32),
        kv_lens=torch.zeros(sequences, dtype=torch.int32),
        kv_seqlens=(0,) * sequences,
    )
    q, cache = torch.empty(sequences, 16, 256, device="meta"), torch.empty(9, 64, 2, 256, device="meta")
    layer = AttentionLayer(k_cache=cache, v_cache=cache, scale=1.0, window=window)
    plan = TritonAttention().plan("decode", batch, Bounds(sequences=sequences, rows=sequences, tokens=tokens))
    room = plan.split(AttentionCall(layer, q, q, None), cache.shape[2])
    assert (room.pieces, room.least) == (pieces, 256)


@EACH
def test_batches_beyond_the_bounds_are_refused(device, op):
    backend = OPS[op][1]()
    call = make(op, [9, 3, 40, 9], device)
    plan = backend.plan("decode", call.batch, WITHIN)
    long = dataclasses.replace(call.batch, kv_seqlens=(9, 3, MOST + 1, 9))
    fewer = OPS[op][0]([1], kv_lengths=[9], phase="decode", device=device).batch
    for batch, match in ((long, "701 tokens, expected at most 700"), (fewer, "1 sequences, expected 4, the")):
        with pytest.raises(ContractError, match=match):
            backend.plan("decode", batch, WITHIN)
        with pytest.raises(ContractError, match=match):
            backend.refresh(plan, batch)
    call.clone().bind(backend, plan)()
    table = call.batch.page_table[:, :2].contiguous()
    narrow = dataclasses.replace(call, batch=dataclasses.replace(call.batch, page_table=table))
    match = "page_table: got 2 pages of 16 .* for the longest sequence, 40 tokens"
    with pytest.raises(ContractError, match=match):
        backend.refresh(plan, narrow.batch)
    with pytest.raises(ContractError, match=match):
        narrow.bind(backend, backend.plan("decode", narrow.batch, WITHIN))()
    assert call.out.isnan().all()


@EACH
def test_only_a_plan_with_bounds_is_refreshed(device, op):
    backend = OPS[op][1]()
    call = make(op, [9, 3, 40, 9], device)
    with pytest.raises(ContractError, match="plan: got a plan without bounds"):
        backend.refresh(backend.plan("decode", call.batch), call.batch)
    with pytest.raises(ContractError, match="plan: got a plan without bounds"):
        backend.refresh(backend.plan("verify", call.batch), call.batch)
    for plan in (object(), None):
        with pytest.raises(ArgumentError, match=r"plan: got .*, expected the result of the backend's `plan`"):
            backend.refresh(plan, call.batch)


@EACH
def test_the_tables_of_a_captured_decode_are_checked_once(device, op, monkeypatch):
    """From step to step, an engine replaces only the batch's `kv_seqlens`."""
    backend = OPS[op][1]()
    first, second = make(op, [9, 3, 40, 9], device), make(op, [10, 4, MOST, 0], device)
    plan = backend.plan("decode", first.batch, WITHIN)
    checked = []
    monkeypatch.setattr(type(backend.contract), "check_batch", lambda *args: checked.append(args))
    step = dataclasses.replace(first.batch, kv_seqlens=second.batch.kv_seqlens)
    backend.refresh(plan, step)
    assert not checked
    assert plan.batch is step
    with pytest.raises(ContractError, match="701 tokens, expected at most 700"):
        backend.refresh(plan, dataclasses.replace(step, kv_seqlens=(9, 3, MOST + 1, 9)))
    backend.refresh(plan, second.batch)
    assert checked


@pytest.mark.gpu
@EACH
@pytest.mark.parametrize("lengths", LENGTHS)
def test_a_captured_decode_is_refreshed_without_waiting_and_replayed(op, lengths):
    backend = OPS[op][1]()
    first, second = (make(op, kv, "cuda", torch.bfloat16) for kv in ([3, 0, 40, 9], lengths))
    plan = backend.plan("decode", first.batch, WITHIN)
    run = first.bind(backend, plan)
    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
        run()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        backend.refresh(plan, second.batch)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for name, tensor in second.tensors.items():
        if tensor is not None:
            first.tensors[name].copy_(tensor)
    for name, tensor in second.batch_tensors.items():
        getattr(first.batch, name).copy_(tensor)
    graph.replay()
    torch.cuda.synchronize()
    hold(first, second)
    eager = second.clone()
    eager.bind(backend, plan)()
    assert same_bits(first.out, eager.out)
