"""The dispatcher on an engine's memory: adapted backends, and states that are stored by row."""

import dataclasses

import pytest
import switchrail
import torch
from switchrail.dispatch import Dispatcher, Part
from switchrail.errors import ContractError
from switchrail.ops.catalog import DEFINITIONS
from switchrail.ops.samples.engine import FORMS
from switchrail.testing.inputs import GENERATORS

OP = "gated_delta"


@pytest.fixture
def dispatcher():
    with switchrail.testing.isolated() as runtime:
        runtime.register(
            "bare",
            DEFINITIONS[OP].torch,
            op=OP,
            phases=("prefill", "verify"),
            features=("strided_pool", "row_states"),
            priority=5,
        )
        layout = switchrail.Layout.from_kinds("model", [OP])

        def make(needed):
            plan = runtime.plan(layout, device="cpu", dtype="float32", phases=("prefill", "verify"))
            return Dispatcher(runtime.bind(plan), ops=[OP], needed={OP: needed})

        yield make


def dispatch(dispatcher, call):
    made = call.made
    dispatcher.add(0, made.layer)
    part = Part(phase=call.phase, rows=slice(0, len(call.out)), states=call.batch)
    with dispatcher.running([part]):
        dispatcher.dispatch(made)


def test_a_backend_that_lacks_features_is_adapted(dispatcher):
    call = GENERATORS[OP]([3, 2], padding=(1,), raw="softplus", beta_scale=1.0)
    for form in ("null_slot", "strided_pool", "index_views"):
        call = FORMS[form](call, True)
    expected = call.clone()
    expected.run(DEFINITIONS[OP].torch())
    needed = call.contract.needed_features("prefill", call.made, call.batch)
    with pytest.raises(ContractError, match="lacks the feature raw_gates"):
        dispatch(dispatcher(()), call)
    dispatch(dispatcher(needed), call)
    assert torch.equal(call.out, expected.out)
    assert torch.equal(call.state.nan_to_num(), expected.state.nan_to_num())


def test_states_by_row_leave_nothing_to_commit(dispatcher):
    call = FORMS["row_states"](GENERATORS[OP]([3, 2], phase="verify", initial="all"), False)
    expected = call.clone()
    expected.run(DEFINITIONS[OP].torch())
    before = call.state.clone()
    own = dispatcher(("row_states",))
    dispatch(own, call)
    own.commit(torch.tensor([1, 1]))
    assert torch.equal(call.state.nan_to_num(), before.nan_to_num())
    rows = call.tensors["row_states"]
    assert torch.equal(rows.nan_to_num(), expected.tensors["row_states"].nan_to_num())
    assert not rows[call.written["row_states"]].isnan().any()


def test_row_slots_are_checked():
    call = FORMS["row_states"](GENERATORS[OP]([3, 2], phase="verify"), False)
    backend = DEFINITIONS[OP].torch()
    slots = call.batch.row_slots
    for changed, message in (
        (slots[:, :2].contiguous(), "row_slots: got 2 columns, expected at least 3"),
        (torch.full_like(slots, 1), "row_slots: got slot 1 twice, expected a different slot for each state"),
    ):
        batch = dataclasses.replace(call.batch, row_slots=changed)
        with pytest.raises(ContractError, match=message):
            dataclasses.replace(call, batch=batch).run(backend)
    with pytest.raises(ContractError, match="row_states in prefill, expected row_states in verify only"):
        call.contract.check_batch("prefill", call.batch, tuple(call.contract.features))
