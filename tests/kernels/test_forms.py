"""Plans of Triton backends are refreshed for batches whose tables and slots are stored in other ways."""

import dataclasses

import pytest
import switchrail
import torch
from switchrail._core import PAGED_OPS as PAGED
from switchrail.errors import ContractError
from switchrail.ops import Bounds
from switchrail.ops.samples.engine import FORMS
from switchrail.testing.compare import same_bits
from switchrail.testing.inputs import GENERATORS
from switchrail_kernels import BACKENDS

pytest.importorskip("triton")

SERVED = [
    op
    for (op, name), (_, claims) in BACKENDS.items()
    if name == "triton" and "index_views" in claims.get("features", ())
]
STATES = [op for op in SERVED if op not in PAGED]
WITHIN = {
    "decode": Bounds(sequences=2, rows=2, tokens=64),
    "verify": Bounds(sequences=2, rows=5, tokens=64),
}
CASES = [
    (op, phase, form)
    for op in SERVED
    for phase in WITHIN
    for form in ("index_views", *(("null_slot", "read_only_states") if op in STATES else ()))
]


@pytest.fixture(scope="module")
def runtime():
    with switchrail.testing.isolated() as runtime:
        runtime.load()
        yield runtime


def make(op, phase, device, seed=0):
    lengths = [1, 1] if phase == "decode" else [3, 2]
    options = {"kv_lengths": [40, 20]} if op in PAGED else {"initial": "all", "padding": (1,)}
    return GENERATORS[op](lengths, phase=phase, device=device, seed=seed, **options)


@pytest.mark.parametrize(("op", "phase", "form"), CASES)
def test_a_plan_without_copies_refuses_a_batch_that_needs_them(runtime, device, op, phase, form):
    backend = runtime.build(op, "triton")
    call = make(op, phase, device)
    other = FORMS[form](make(op, phase, device, seed=1), True)
    plan = backend.plan(phase, call.batch, WITHIN[phase])
    before = other.clone()
    with pytest.raises(ContractError, match="batch: got tables or slots in another form than the plan's"):
        backend.refresh(plan, other.batch)
    with pytest.raises(ContractError, match="batch: got tables or slots in another form than the plan's"):
        backend.run(other.made, other.batch, plan)
    for name, tensor in other.tensors.items():
        assert tensor is None or same_bits(tensor, before.tensors[name])


@pytest.mark.parametrize(("op", "phase", "form"), CASES)
def test_a_plan_with_copies_is_refreshed_for_batches_of_any_form(runtime, device, op, phase, form):
    backend = runtime.build(op, "triton")
    plain = make(op, phase, device, seed=1)
    calls = [FORMS[form](make(op, phase, device, seed=seed), True) for seed in (0, 2)]
    plan = backend.plan(phase, calls[0].batch, WITHIN[phase])
    tables = [name for name in calls[0].batch_tensors if hasattr(plan.batch, name)]
    addresses = [getattr(plan.batch, name).data_ptr() for name in tables]
    fresh = [call.clone() for call in (plain, *calls)]
    for anew in fresh:
        anew.run(backend)
    for call, anew in zip((plain, *calls, plain), (*fresh, fresh[0]), strict=True):
        before = {name: table.clone() for name, table in call.batch_tensors.items()}
        refreshed = dataclasses.replace(call.clone(), batch=call.batch)  # `clone` makes tables dense
        backend.refresh(plan, refreshed.batch)
        backend.run(refreshed.made, refreshed.batch, plan)
        assert same_bits(refreshed.out, anew.out)
        assert [getattr(plan.batch, name).data_ptr() for name in tables] == addresses
        for name, table in refreshed.batch_tensors.items():
            assert torch.equal(table, before[name])


def test_a_page_table_of_another_width_is_copied_or_refused(runtime, device):
    backend = runtime.build("attention", "triton")
    call = FORMS["index_views"](make("attention", "decode", device), True)
    plan = backend.plan("decode", call.batch, WITHIN["decode"])
    own = plan.batch.page_table
    width = own.shape[1]
    before = own.clone()
    wide = torch.zeros(2, width + 1, dtype=torch.int64, device=device)
    with pytest.raises(ContractError, match=r"batch\.page_table: got shape"):
        backend.refresh(plan, dataclasses.replace(call.batch, page_table=wide))
    assert torch.equal(own, before)
    narrow = dataclasses.replace(call.batch, page_table=wide[:, :1] + 1)
    backend.refresh(plan, narrow)
    assert own[:, 0].tolist() == [1, 1]
    assert torch.equal(own[:, 1:], before[:, 1:])
