"""Tests of `switchrail.adapters`, with backends that lack features."""

import dataclasses

import pytest
import switchrail
import torch
from switchrail.adapters import ADAPTED, Adapter, Served, adapted, needed_features, plain, sequences
from switchrail.errors import ArgumentError, ContractError, NoBackendError
from switchrail.ops import CONTRACTS, Bounds, PagedBatch, StateBatch
from switchrail.ops.catalog import DEFINITIONS
from switchrail.ops.samples.engine import FORMS
from switchrail.testing.compare import verify, verify_commit
from switchrail.testing.inputs import GENERATORS

LENGTHS = {"prefill": [5, 0, 40, 3], "decode": [1] * 4, "verify": [3, 4, 0, 1]}
PAGED = ("attention", "mla")


class Bare:
    """Makes a backend that has only some features and refuses all others, as kernels do."""

    def __new__(cls, op, features=()):
        contract = CONTRACTS[op]

        class Limited(DEFINITIONS[op].torch):
            def plan(self, phase, batch, bounds=None):
                contract.check_batch(phase, batch, features)
                return super().plan(phase, batch, bounds)

            def run(self, call, batch, plan):
                contract.check_call(call, batch, features)
                return super().run(call, batch, plan)

        return Limited()


CASES = [
    (op, feature, phase)
    for op, contract in CONTRACTS.items()
    for feature in sorted(ADAPTED.keys() & contract.features.keys() & FORMS.keys())
    for phase in LENGTHS
]


def sample_of(op, feature, phase, odd):
    arguments = {"raw": "softplus", "beta_scale": 2.0} if feature == "mixed_weights" else {}
    if op in PAGED and phase != "prefill":
        arguments["kv_lengths"] = [length + 20 for length in LENGTHS[phase]]
    call = GENERATORS[op](LENGTHS[phase], phase=phase, padding=(3,), **arguments)
    return FORMS[feature](call, odd)


@pytest.mark.parametrize(("op", "feature", "phase"), CASES)
def test_an_adapter_adds_a_feature(op, feature, phase):
    for odd in (False, True):
        call = sample_of(op, feature, phase, odd)
        assert feature in needed_features(phase, call.made, call.batch)
        with pytest.raises(ContractError, match=f"lacks the feature {feature}|lacks the feature raw_gates"):
            call.clone().run(Bare(op)) if feature != "index_views" else Bare(op).plan(phase, call.batch)
        backend = adapted(Bare(op), (), (feature,))
        assert isinstance(backend, Adapter)
        check = verify_commit if phase == "verify" and op not in PAGED else verify
        check(backend, call)


@pytest.mark.parametrize("op", [op for op in CONTRACTS if "row_states" in CONTRACTS[op].features])
@pytest.mark.parametrize("phase", LENGTHS)
def test_calls_that_store_no_states_by_row_do_not_need_the_feature(op, phase):
    """In an engine with drafts, layers have the pool `row_states` in all phases, but only some calls use
    it."""
    by_row = FORMS["row_states"](GENERATORS[op](LENGTHS["verify"], phase="verify"), False)
    pool = by_row.tensors["row_states"]
    call = GENERATORS[op](LENGTHS[phase], phase=phase, initial="all")
    call = dataclasses.replace(call, tensors={**call.tensors, "row_states": pool})
    assert "row_states" not in needed_features(phase, call.made, call.batch)
    call.contract.check_layer(call.made.layer, ())
    call.run(Bare(op))
    call.run(Adapter(Bare(op), ()))
    assert "row_states" in needed_features("verify", by_row.made, by_row.batch)
    made = by_row.made
    plain_batch = GENERATORS[op](LENGTHS["verify"], phase="verify").batch
    call.contract.check_call(made, plain_batch, ())
    with pytest.raises(ContractError, match=r"row_states: got a value, expected None: .* lacks the feature"):
        call.contract.check_call(made, by_row.batch, ())


def test_a_backend_with_all_features_is_not_adapted():
    backend = Bare("gated_delta")
    assert adapted(backend, ("index_views", "null_slot"), ("null_slot",)) is backend


def test_a_plain_batch_is_left_alone():
    batch = GENERATORS["gated_delta"]([3, 1]).batch
    assert plain(batch) is batch


def test_tables_are_refreshed_in_place():
    call = FORMS["index_views"](GENERATORS["gated_delta"]([1, 1], phase="decode"), True)
    call = FORMS["null_slot"](call, True)

    class Static(Bare("gated_delta").__class__):
        def refresh(self, plan, batch):
            self.refreshed = batch

    inner = Static()
    backend = Adapter(inner, ())
    plan = backend.plan("decode", call.batch, Bounds(sequences=2, rows=2, tokens=1))
    tables = plan.batch.read_slots
    other = dataclasses.replace(call.batch, read_slots=torch.tensor([0, 2], dtype=torch.int32))
    backend.refresh(plan, other)
    assert plan.batch.read_slots is tables
    assert tables.tolist() == [-1, 2]
    assert inner.refreshed is plan.batch


class Refreshed:
    """Makes a plain-torch backend whose `refresh` does nothing."""

    def __new__(cls, op):
        return type("Static", (DEFINITIONS[op].torch,), {"refresh": lambda self, plan, batch: None})()


def test_a_refresh_writes_to_the_plans_own_tables_only():
    """Whatever forms the batches have, the callers' tables stay unchanged, and the plan's tables keep their
    addresses."""
    dense = GENERATORS["gated_delta"]([1, 1], phase="decode").batch
    first = dataclasses.replace(dense, cu_seqlens=dense.cu_seqlens.long())
    backend = Adapter(Refreshed("gated_delta"), ())
    plan = backend.plan("decode", first, Bounds(sequences=2, rows=2, tokens=1))
    addresses = {name: getattr(plan.batch, name).data_ptr() for name in ("read_slots", "cu_seqlens")}
    kept = first.read_slots.clone()
    for slots in (torch.tensor([7, 8], dtype=torch.int32), torch.tensor([5, 6])):
        backend.refresh(plan, dataclasses.replace(first, read_slots=slots))
        assert plan.batch.read_slots.tolist() == slots.tolist()
        assert torch.equal(first.read_slots, kept)
        assert addresses == {name: getattr(plan.batch, name).data_ptr() for name in addresses}
    unbounded = backend.plan("decode", first)
    with pytest.raises(ContractError, match="plan: got a plan without bounds"):
        backend.refresh(unbounded, dataclasses.replace(first, read_slots=slots))
    assert torch.equal(first.read_slots, kept)


def test_a_refresh_takes_page_tables_that_fit_and_refuses_others():
    def pages(page, width, longest=5):
        lengths = torch.tensor([longest, 3])
        table = torch.full((2, width), page)
        return PagedBatch(
            **sequences((1, 1), "cpu"), page_table=table, kv_lens=lengths, kv_seqlens=(longest, 3)
        )

    backend = Adapter(Refreshed("attention"), ())
    plan = backend.plan("decode", pages(1, 4), Bounds(sequences=2, rows=2, tokens=64))
    table = plan.batch.page_table
    backend.refresh(plan, pages(7, 1))
    assert plan.batch.page_table is table
    assert table.tolist() == [[7, 1, 1, 1]] * 2
    for refused, match in (
        (pages(9, 5), r"batch.page_table: got shape \[2, 5\], expected \[2, 4\]"),
        (pages(9, 4, longest=65), "batch.kv_seqlens: got 65 tokens, expected at most 64"),
    ):
        with pytest.raises(ContractError, match=match):
            backend.refresh(plan, refused)
        assert table.tolist() == [[7, 1, 1, 1]] * 2
        assert plan.batch.kv_lens.tolist() == [5, 3]


def test_features_that_no_adapter_adds_are_refused():
    call = FORMS["strided_pool"](GENERATORS["gated_delta"]([3, 1]), False)
    with pytest.raises(ContractError, match=r"state: got strides .* lacks the feature strided_pool"):
        call.run(Adapter(Bare("gated_delta"), ()))


def test_a_plan_of_another_backend_is_refused():
    call = GENERATORS["gated_delta"]([3, 1])
    backend = Adapter(Bare("gated_delta"), ())
    with pytest.raises(ArgumentError, match="plan: got"):
        backend.run(call.made, call.batch, Bare("gated_delta").plan("prefill", call.batch))
    with pytest.raises(ArgumentError, match="plan: got"):
        backend.run(call.made, call.batch, backend.plan("prefill", GENERATORS["gated_delta"]([2, 2]).batch))


def test_served_has_one_instance_for_all_phases_and_says_what_is_adapted():
    with switchrail.testing.isolated() as runtime:
        runtime.register(
            "bare",
            DEFINITIONS["gated_delta"].torch,
            op="gated_delta",
            phases=("prefill", "decode"),
            features=("strided_pool",),
            priority=5,
        )
        needed = {"index_views", "null_slot", "strided_pool"}
        served = Served(
            runtime,
            "gated_delta",
            {"prefill": needed, "decode": needed, "verify": {"row_states"}},
            device="cpu",
            dtype="float32",
        )
        assert {phase: decision.chosen for phase, decision in served.decisions.items()} == {
            "prefill": "bare",
            "decode": "bare",
            "verify": "torch",
        }
        text = served.explain()
        assert (
            f"gated_delta decode: bare, adapted: index_views ({ADAPTED['index_views']}), null_slot (" in text
        )
        assert text.endswith("gated_delta verify: torch")
        slots = torch.tensor([[2, 7], [0, 7]], dtype=torch.int32)[:, 0]
        batch = StateBatch(
            **sequences((1, 1), "cpu"),
            read_slots=slots,
            write_slots=slots,
            has_initial_state=torch.ones(2, dtype=torch.bool),
            null_slot=0,
        )
        first, second = (served.plan(phase, batch).backend for phase in ("prefill", "decode"))
        assert first.backend is second.backend
        with pytest.raises(
            NoBackendError, match="bare: lacks oot:none, transposed_state; it has strided_pool"
        ):
            Served(
                runtime,
                "gated_delta",
                {"decode": {"transposed_state", "oot:none"}},
                device="cpu",
                dtype="float32",
            )


def test_served_runs_a_call_on_an_engines_memory():
    call = FORMS["strided_pool"](GENERATORS["gated_delta"]([4, 2]), True)
    expected = call.clone()
    expected.run(DEFINITIONS["gated_delta"].torch())
    with switchrail.testing.isolated() as runtime:
        needed = needed_features("prefill", call.made, call.batch)
        served = Served(runtime, "gated_delta", {"prefill": needed}, device="cpu", dtype="float32")
        assert served.plan("prefill", call.batch).run(call.made) is None
    assert torch.equal(call.out, expected.out)
    assert torch.equal(call.state.nan_to_num(), expected.state.nan_to_num())


@pytest.mark.parametrize("lengths", [[], [0, 0]])
def test_forms_of_a_batch_without_rows(lengths):
    call = GENERATORS["gated_delta"](lengths, phase="verify")
    for form in ("row_states", "strided_pool"):
        call = FORMS[form](call, False)
    assert call.tensor("row_states").shape == (0, *call.state.shape[1:])
