"""A plan, or a record of a verification, that another backend or phase made."""

import pytest
import switchrail
import torch
from switchrail.errors import ArgumentError
from switchrail.testing.compare import same_bits
from switchrail.testing.inputs import GENERATORS

pytest.importorskip("triton")

PHASES = ("prefill", "decode", "verify")
LENGTHS = {"prefill": [70, 3], "decode": [1, 1], "verify": [3, 2]}


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
            ArgumentError, match=f"plan: got {type(plan).__name__}; asked is what the backend"
        ):
            call.bind(backend, plan)()
    for name, tensor in call.tensors.items():
        assert tensor is None or same_bits(tensor, before.tensors[name])


@pytest.mark.parametrize("name", ["reference", "torch", "triton"])
@pytest.mark.parametrize("op", [op for op in GENERATORS if op not in ("attention", "mla")])
def test_a_record_of_another_backend_is_refused(runtime, op, name):
    call = GENERATORS[op](LENGTHS["verify"], phase="verify")
    backend = runtime.build(op, name)
    plan = backend.plan("verify", call.batch)
    accepted = torch.tensor([0, 1])
    before = call.state.clone()
    with pytest.raises(
        ArgumentError, match="record: got object; asked is what the backend's `run` in verify returned"
    ):
        backend.commit(call.made, call.batch, plan, object(), accepted)
    if name != "reference":
        with pytest.raises(ArgumentError, match="plan: got object"):
            backend.commit(call.made, call.batch, object(), call.state, accepted)
    assert same_bits(call.state, before)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("op", [op for op in GENERATORS if op not in ("attention", "mla")])
def test_a_plan_for_other_lengths_is_refused(runtime, device, op, phase):
    backend = runtime.build(op, "triton")
    call = GENERATORS[op](LENGTHS[phase], phase=phase, device=device)
    other = GENERATORS[op]([3, 1], phase="verify" if phase == "verify" else "prefill", device=device)
    before = call.clone()
    with pytest.raises(ArgumentError, match="plan: got"):
        call.bind(backend, backend.plan(other.phase, other.batch))()
    assert same_bits(call.out, before.out)
    assert same_bits(call.state, before.state)
