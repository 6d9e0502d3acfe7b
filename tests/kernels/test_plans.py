"""Backends refuse plans and records that don't fit. Refreshed plans give the results of new plans."""

import pytest
import switchrail
import torch
from switchrail._core import PAGED_OPS as PAGED
from switchrail.errors import ArgumentError, BackendImportError, ContractError
from switchrail.ops import Backend, Bounds
from switchrail.testing.compare import same_bits
from switchrail.testing.inputs import GENERATORS
from switchrail_kernels import BACKENDS

pytest.importorskip("triton")

PHASES = ("prefill", "decode", "verify")
LENGTHS = {"prefill": [70, 3], "decode": [1, 1], "verify": [3, 2]}
SERVED = [
    (op, phase)
    for (op, name), (_, claims) in BACKENDS.items()
    if name == "triton"
    for phase in claims.get("phases", PHASES)
]
"""The ops and phases that Triton backends serve."""
GRAPHS = [which for which, (_, claims) in BACKENDS.items() if "cuda_graph" in claims["features"]]


@pytest.fixture(scope="module")
def runtime():
    with switchrail.testing.isolated() as runtime:
        runtime.load()
        yield runtime


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("name", ["torch", "triton"])
@pytest.mark.parametrize("op", GENERATORS)
def test_a_plan_of_another_backend_or_phase_is_refused(runtime, device, op, name, phase):
    backend = runtime.build(op, name)
    calls = {other: GENERATORS[op](LENGTHS[other], phase=other, device=device) for other in PHASES}
    plans = {other: backend.plan(other, call.batch) for other, call in calls.items()}
    foreign = [plan for plan in (*plans.values(), object()) if type(plan) is not type(plans[phase])]
    call = calls[phase]
    before = call.clone()
    for plan in foreign:
        with pytest.raises(
            ArgumentError, match=f"plan: got {type(plan).__name__}, expected the result of the backend"
        ):
            call.bind(backend, plan)()
    for name, tensor in call.tensors.items():
        assert tensor is None or same_bits(tensor, before.tensors[name])


@pytest.mark.parametrize("name", ["reference", "torch", "triton"])
@pytest.mark.parametrize("op", [op for op, phase in SERVED if phase == "verify" and op not in PAGED])
def test_a_record_of_another_backend_is_refused(runtime, op, name):
    call = GENERATORS[op](LENGTHS["verify"], phase="verify")
    backend = runtime.build(op, name)
    plan = backend.plan("verify", call.batch)
    accepted = torch.tensor([0, 1])
    before = call.state.clone()
    with pytest.raises(
        ArgumentError, match="record: got object, expected the result of the backend's `run` in verify"
    ):
        backend.commit(call.made, call.batch, plan, object(), accepted)
    if name != "reference":
        with pytest.raises(ArgumentError, match="plan: got object"):
            backend.commit(call.made, call.batch, object(), call.state, accepted)
    assert same_bits(call.state, before)


@pytest.mark.parametrize(("op", "phase"), SERVED)
def test_a_plan_for_other_lengths_is_refused(runtime, device, op, phase):
    backend = runtime.build(op, "triton")
    call = GENERATORS[op](LENGTHS[phase], phase=phase, device=device)
    other = GENERATORS[op]([3, 1], phase="verify" if phase == "verify" else "prefill", device=device)
    before = call.clone()
    with pytest.raises(ArgumentError, match="plan: got"):
        call.bind(backend, backend.plan(other.phase, other.batch))()
    for name, tensor in call.tensors.items():
        assert tensor is None or same_bits(tensor, before.tensors[name])


def build(runtime, op, name):
    try:
        return runtime.build(op, name)
    except BackendImportError as error:
        if name == "triton":
            raise
        pytest.skip(f"needs a library: {error}")


@pytest.mark.parametrize(("op", "name"), BACKENDS)
def test_backends_that_claim_graphs_can_refresh_their_plans(runtime, op, name):
    can = type(build(runtime, op, name)).refresh is not Backend.refresh
    assert can == ((op, name) in GRAPHS)


@pytest.mark.parametrize(("op", "name"), GRAPHS)
def test_a_refreshed_plan_equals_a_new_one(runtime, device, op, name):
    """A plan that is refreshed for shorter, longer and padded sequences gives the results of a new plan."""
    backend = build(runtime, op, name)
    if device.type == "cpu" and name != "triton":
        pytest.skip("only Triton's kernels are interpreted")

    def make(seed, caches, **options):
        more = {"kv_lengths": caches} if op in PAGED else {"initial": "all", "in_place": seed != 1}
        return GENERATORS[op]([1] * 4, phase="decode", seed=seed, device=device, **more, **options)

    calls = [
        make(0, [700, 3, 257, 1]),
        make(1, [5, 700, 9, 31], padding=(0, 2)),
        make(2, [40, 41, 700, 42], padding=(3,)),
    ]
    bounds = Bounds(sequences=4, rows=4, tokens=700)
    kept = backend.plan("decode", calls[0].batch, bounds)
    fresh = [call.clone() for call in calls]
    for anew in fresh:
        anew.bind(backend, backend.plan("decode", anew.batch, bounds))()
    for call, anew in zip((*calls, calls[0]), (*fresh, fresh[0]), strict=True):
        refreshed = call.clone()
        backend.refresh(kept, refreshed.batch)
        refreshed.bind(backend, kept)()
        for result, expected in zip(refreshed.results.values(), anew.results.values(), strict=True):
            assert same_bits(result, expected)


@pytest.mark.parametrize("op", [op for op, name in GRAPHS if name == "triton" and op not in PAGED])
def test_a_decode_plan_is_refused_for_other_numbers_of_sequences_and_other_phases(runtime, device, op):
    backend = runtime.build(op, "triton")

    def make(lengths, phase="prefill"):
        return GENERATORS[op](lengths, phase=phase, device=device)

    calls = {n: make([1] * n, "decode") for n in (2, 3)}
    plan = backend.plan("decode", calls[2].batch, Bounds(sequences=2, rows=2, tokens=9))
    with pytest.raises(ContractError, match="3 sequences, expected 2"):
        backend.refresh(plan, calls[3].batch)
    with pytest.raises(ContractError, match="decode"):
        backend.refresh(plan, make([2, 1]).batch)
    with pytest.raises(ArgumentError, match="plan: got NoneType"):
        backend.refresh(None, calls[2].batch)
    for call in (calls[3], make([1, 1], "verify"), make([2, 1])):
        with pytest.raises(ArgumentError, match="plan: got Decode"):
            call.bind(backend, plan)()
    calls[2].bind(backend, plan)()


@pytest.mark.parametrize("op", [op for op, name in GRAPHS if name == "triton" and op not in PAGED])
def test_the_batch_of_a_captured_decode_is_checked_once(runtime, device, op, monkeypatch):
    backend = runtime.build(op, "triton")
    call = GENERATORS[op]([1, 1], phase="decode", device=device)
    plan = backend.plan("decode", call.batch, Bounds(sequences=2, rows=2, tokens=9))
    checked = []
    monkeypatch.setattr(type(backend.contract), "check_batch", lambda *args: checked.append(args))
    backend.refresh(plan, call.batch)
    assert not checked
    backend.refresh(plan, call.clone().batch)
    assert checked


@pytest.mark.parametrize("op", [op for op, name in GRAPHS if name == "triton" and op not in PAGED])
def test_the_plan_of_a_phase_that_is_never_captured_is_not_refreshed(runtime, op):
    backend = runtime.build(op, "triton")
    call = GENERATORS[op](LENGTHS["prefill"], phase="prefill")
    plan = backend.plan("prefill", call.batch, Bounds(sequences=2, rows=100, tokens=100))
    with pytest.raises(ArgumentError, match="plan"):
        backend.refresh(plan, call.batch)


@pytest.mark.parametrize("op", [op for op, name in GRAPHS if name == "triton"])
def test_the_plan_of_drafted_rows_is_refreshed_for_rows_of_the_same_lengths(runtime, op):
    backend = runtime.build(op, "triton")
    bounds = Bounds(sequences=2, rows=7, tokens=32)
    first, second = (GENERATORS[op]([4, 3], phase="verify", seed=seed).with_trees(seed) for seed in (1, 2))
    plan = backend.plan("verify", first.batch, bounds)
    backend.refresh(plan, second.batch)
    expected = second.clone()
    expected.run(backend)
    backend.run(second.made, second.batch, plan)
    assert torch.equal(second.out, expected.out)
    with pytest.raises(ContractError, match=r"batch.seqlens: got \[3, 4\], expected the lengths of the plan"):
        backend.refresh(plan, GENERATORS[op]([3, 4], phase="verify").batch)
