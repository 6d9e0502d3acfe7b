"""Drafted tokens of the delta rule: chains and trees, and their commits."""

import pytest
import torch
from switchrail.testing.compare import Error, verify_commit
from switchrail.testing.inputs import gated_delta_call, kda_call
from switchrail_kernels.drafts import DRAFT_ROWS as ROWS
from switchrail_kernels.gated_delta.triton import TritonGatedDelta
from switchrail_kernels.kda.triton import TritonKda

SMALL = {"heads": 1, "value_heads": 2, "key_size": 16, "value_size": 16}
MODEL = {"heads": 2, "value_heads": 4, "key_size": 128, "value_size": 128}

each_op = pytest.mark.parametrize(
    ("backend", "make"),
    [
        pytest.param(TritonGatedDelta, gated_delta_call, id="gated_delta"),
        pytest.param(TritonKda, kda_call, id="kda"),
    ],
)


@each_op
@pytest.mark.parametrize("sizes", [SMALL, pytest.param(MODEL, marks=pytest.mark.gpu)], ids=["small", "model"])
def test_drafts_of_several_blocks(backend, make, sizes, device):
    options = {"phase": "verify", "gate": "mixed", "device": device, **sizes}
    verify_commit(backend(), make([ROWS.value + 3], **options))
    verify_commit(backend(), make([2 * ROWS.value + 2], **options).with_trees(seed=2))


@each_op
@pytest.mark.parametrize(
    "options",
    [
        {"in_place": False, "initial": "all"},
        {"raw": "softplus", "beta_scale": 2.0},
        {"raw": "sigmoid", "beta_scale": 1.0},
        {"qk_l2norm": False, "key_size": 24, "value_size": 48},
    ],
    ids=str,
)
def test_slots_raw_gates_and_sizes(backend, make, options, device):
    call = make([4, 2], phase="verify", device=device, **{**SMALL, **options})
    verify_commit(backend(), call.with_trees())


@each_op
def test_a_bfloat16_state_is_rounded_once(backend, make, device):
    call = make([5, 2], phase="verify", state_dtype=torch.bfloat16, device=device, **SMALL)
    verify_commit(backend(), call, bound=Error(4e-3, 8e-3))


@each_op
def test_rows_after_a_huge_gate_are_exact(backend, make, device):
    call = make([ROWS.value + 5], phase="verify", gate="near_one", initial="all", device=device, **SMALL)
    call.tensors["g"][::4] = -torch.inf
    verify_commit(backend(), call)


@pytest.mark.gpu
@each_op
def test_a_captured_verification_is_replayed_with_other_numbers_and_accepted_rows(backend, make):
    options = {"phase": "verify", "dtype": torch.bfloat16, "device": "cuda", "initial": "all", **MODEL}
    first, second = make([4, 7], seed=0, **options), make([4, 7], seed=1, **options)
    backend = backend()
    accepted = torch.tensor([0, 5], device="cuda")
    plan = backend.plan("verify", first.batch)

    call = first.made

    def run():
        record = backend.run(call, first.batch, plan)
        backend.commit(call, first.batch, plan, record, accepted)

    state = first.state.clone()
    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
        run()
    for name, tensor in second.tensors.items():
        if tensor is not None and name != "state":
            first.tensors[name].copy_(tensor)
    first.state.copy_(state)
    other = second.clone()
    slots = first.batch.read_slots
    other.state[other.batch.read_slots] = state[slots]
    accepted.copy_(torch.tensor([3, -1]))
    graph.replay()
    verification = other.run(backend)
    verification.commit(accepted, other.state)
    torch.cuda.synchronize()
    assert torch.equal(first.out, other.out)
    assert torch.equal(first.state[slots], other.state[other.batch.write_slots])
