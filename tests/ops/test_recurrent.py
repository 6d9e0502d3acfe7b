"""Tests of the plain-torch backends of all ops with states."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from switchrail.errors import ContractError
from switchrail.ops.chunks import GROUP_TOKENS
from switchrail.ops.gated_delta.torch import TorchGatedDelta
from switchrail.ops.kda.torch import TorchKda
from switchrail.ops.lightning.torch import TorchLightning
from switchrail.ops.mamba2.torch import TorchMamba2
from switchrail.ops.short_conv.torch import TorchShortConv
from switchrail.testing.compare import BOUNDS, Error, measure, verify, verify_commit
from switchrail.testing.inputs import (
    gated_delta_call,
    kda_call,
    lightning_call,
    mamba2_call,
    run_reference,
    short_conv_call,
)
from switchrail.testing.steps import run_in_steps

from tests.ops.schedules import SCHEDULES
from tests.ops.strategies import DTYPES

OPS = {
    "gated_delta": (TorchGatedDelta, gated_delta_call),
    "kda": (TorchKda, kda_call),
    "lightning": (TorchLightning, lightning_call),
    "mamba2": (TorchMamba2, mamba2_call),
}
DELTA = ["gated_delta", "kda"]
GATES = ["decaying", "near_zero", "near_one", "one", "mixed"]
OF_TOKENS = {
    "gated_delta": ("q", "k", "v", "g", "beta"),
    "kda": ("q", "k", "v", "g", "beta"),
    "lightning": ("q", "k", "v"),
    "mamba2": ("x", "B", "C", "dt"),
}


def sizes(op, *, heads, group, key_size, value_size):
    """Sizes as arguments of an op's generator. `group` value heads share a key head, if the op allows it."""
    if op == "mamba2":
        return {"heads": heads * group, "groups": heads, "state_size": key_size, "head_size": value_size}
    shared = {"value_heads": heads * group} if op in DELTA else {}
    return {"heads": heads, "key_size": key_size, "value_size": value_size, **shared}


lengths = st.lists(st.one_of(st.integers(0, 3), st.integers(0, 135)), min_size=0, max_size=6)
every_op = pytest.mark.parametrize("op", OPS)
every_phase = pytest.mark.parametrize("phase", ["prefill", "decode"])


@every_op
@settings(max_examples=150, derandomize=True)
@given(
    lengths=lengths,
    heads=st.integers(1, 3),
    group=st.integers(1, 3),
    key_size=st.integers(1, 20),
    value_size=st.integers(1, 20),
    dtype=st.sampled_from(DTYPES),
    gate=st.sampled_from(GATES),
    initial=st.sampled_from(["all", "some", "none"]),
    flags=st.tuples(*[st.booleans()] * 6),
    seed=st.integers(0, 2**16),
    data=st.data(),
)
def test_any_prefill(
    op, lengths, heads, group, key_size, value_size, dtype, gate, initial, flags, seed, data
):
    strided, in_place, zero_keys, padded, *chosen = flags
    padding = data.draw(st.sets(st.sampled_from(range(len(lengths))))) if lengths and padded else ()
    own = {"qk_l2norm": chosen[0]} if op in DELTA else {}
    if op == "mamba2":
        own = {"dt_softplus": chosen[0], "bias": chosen[1], "skip": chosen[1], "dt_limits": (0.1, 1.5)}
    backend, make = OPS[op]
    call = make(
        lengths,
        **sizes(op, heads=heads, group=group, key_size=key_size, value_size=value_size),
        dtype=dtype,
        gate=gate,
        initial=initial,
        strided=strided,
        in_place=in_place,
        zero_keys=zero_keys,
        padding=padding,
        seed=seed,
        **own,
    )
    verify(backend(), call)


@pytest.mark.parametrize(
    ("gate", "dtype"),
    [(gate, dtype) for gate in GATES for dtype in DTYPES if gate == "mixed" or dtype == torch.float32],
    ids=str,
)
@every_phase
@every_op
def test_extreme_gates(op, phase, gate, dtype):
    backend, make = OPS[op]
    lengths = [1] * 7 if phase == "decode" else [31, 0, 32, 33, 1, 64, 65, 200]
    only_delta = {"beta_max": 2.0, "correlated": True} if op in DELTA else {}
    call = make(
        lengths,
        **sizes(op, heads=2, group=2, key_size=32, value_size=24),
        phase=phase,
        gate=gate,
        dtype=dtype,
        padding=(2,),
        in_place=False,
        **only_delta,
    )
    verify(backend(), call)


@pytest.mark.parametrize("state_dtype", [torch.float32, torch.bfloat16], ids=str)
@every_phase
@every_op
def test_a_state_of_another_dtype(op, phase, state_dtype):
    backend, make = OPS[op]
    lengths = [1] * 4 if phase == "decode" else [40, 3, 0, 1]
    call = make(lengths, phase=phase, dtype=torch.bfloat16, state_dtype=state_dtype, initial="all")
    verify(backend(), call)
    call = make(lengths, phase=phase, state_dtype=torch.bfloat16, initial="all")
    verify(backend(), call, bound=BOUNDS[torch.bfloat16])


@pytest.mark.parametrize("gate", ["decaying", "one", "mixed"])
@every_op
def test_the_error_does_not_grow_with_the_length(op, gate):
    backend, make = OPS[op]
    length = 2048 if op == "kda" else 4096
    shape = sizes(op, heads=1, group=2, key_size=32, value_size=32)
    call = make([length], **shape, gate=gate, initial="all")
    verify(backend(), call, bound=Error(4e-6, 4e-5))


@every_op
def test_more_tokens_than_fit_in_a_group(op):
    backend, make = OPS[op]
    shape = sizes(op, heads=1, group=1, key_size=16, value_size=16)
    call = make([GROUP_TOKENS - 1, 5, 2 * GROUP_TOKENS + 7, 600], **shape)
    assert len(backend().plan("prefill", call.batch).groups) > 2
    verify(backend(), call)


@every_op
def test_large_inputs_and_keys_that_are_zero(op):
    backend, make = OPS[op]
    verify(backend(), make([70, 9], norm=1e4, zero_keys=True, initial="all"))
    call = make([70, 9], initial="all")
    for name in ("B", "C", "D") if op == "mamba2" else ("q", "k"):
        call.tensors[name].zero_()
    expected = run_reference(call)
    assert not expected.out.any()
    verify(backend(), call, expected=expected)


@every_op
def test_chunks_of_any_size_continue_the_state(op):
    backend, make = OPS[op]
    call = make([130, 1, 77], gate="mixed", initial="some", seed=5)
    expected = run_reference(call)
    for schedule in SCHEDULES:
        actual = run_in_steps(backend(), call, schedule)
        assert measure(actual.out, expected.out).within(BOUNDS[torch.float32])
        slots = call.batch.write_slots
        assert measure(actual.state[slots], expected.state[slots]).within(BOUNDS[torch.float32])


@every_op
def test_decoding_step_by_step_equals_prefill(op):
    backend, make = OPS[op]
    call = make([40] * 5, initial="all", seed=6)
    expected = run_reference(call)
    actual = run_in_steps(backend(), call, [[1] * 5] * 40, phase="decode")
    assert measure(actual.out, expected.out).within(BOUNDS[torch.float32])
    slots = call.batch.write_slots
    assert measure(actual.state[slots], expected.state[slots]).within(BOUNDS[torch.float32])


@pytest.mark.parametrize(
    ("dtype", "beta_scale"),
    [(dtype, scale) for dtype in DTYPES for scale in (None, 1.0, 2.0) if scale or dtype == torch.float32],
    ids=str,
)
@pytest.mark.parametrize("raw", ["softplus", "sigmoid"])
@every_phase
@pytest.mark.parametrize("op", DELTA)
def test_raw_gates(op, phase, beta_scale, raw, dtype):
    backend, make = OPS[op]
    lengths = [1] * 4 if phase == "decode" else [40, 3, 0, 1, 70]
    for gate in GATES:
        verify(
            backend(),
            make(lengths, phase=phase, gate=gate, raw=raw, beta_scale=beta_scale, dtype=dtype, padding=(1,)),
        )


@pytest.mark.parametrize("op", DELTA)
def test_raw_gates_need_their_parameters(op):
    backend, make = OPS[op]
    call = make([3], raw="sigmoid")
    for name in ("A_log", "lower_bound"):
        broken = dataclasses.replace(
            call,
            tensors={k: v for k, v in call.tensors.items() if k != name},
            options={k: v for k, v in call.options.items() if k != name},
        )
        with pytest.raises(
            ContractError, match=f"{name}: got None, expected a value where gate is 'sigmoid'"
        ):
            broken.run(backend())
    broken = dataclasses.replace(call, options={**call.options, "lower_bound": 5.0})
    with pytest.raises(ContractError, match=r"lower_bound: got 5\.0, expected less than 0"):
        broken.run(backend())
    half = make([3], raw="softplus", dtype=torch.float16)
    activated = {k: v for k, v in half.options.items() if k != "gate"}
    with pytest.raises(ContractError, match="g: got dtype float16, expected one of: float32"):
        dataclasses.replace(half, options=activated).run(backend())


STATEFUL = {**OPS, "short_conv": (TorchShortConv, short_conv_call)}
FORMS = {
    "dtype": st.sampled_from(DTYPES),
    "initial": st.sampled_from(["all", "some", "none"]),
    "in_place": st.booleans(),
    "padded": st.booleans(),
    "seed": st.integers(0, 2**16),
}
"""Strategies for samples of any op with states. `padded` allows padding."""

every_stateful = pytest.mark.parametrize("op", STATEFUL)


@every_stateful
@settings(max_examples=60, derandomize=True)
@given(
    lengths=st.lists(st.integers(0, 7), min_size=0, max_size=5),
    tree=st.booleans(),
    data=st.data(),
    **FORMS,
)
def test_any_drafts(op, lengths, dtype, initial, in_place, tree, padded, seed, data):
    padding = data.draw(st.sets(st.sampled_from(range(len(lengths))))) if lengths and padded else ()
    backend, make = STATEFUL[op]
    call = make(
        lengths, phase="verify", dtype=dtype, initial=initial, in_place=in_place, padding=padding, seed=seed
    )
    verify_commit(backend(), call.with_trees(seed) if tree else call)


@every_stateful
def test_drafts_of_slots_that_follow_one_another(op):
    backend, make = STATEFUL[op]
    call = make([3, 5, 1], phase="verify", initial="some", in_place=True, seed=3)
    call.state[2:5] = call.state[call.batch.read_slots]
    slots = torch.arange(2, 5)
    batch = dataclasses.replace(call.batch, read_slots=slots, write_slots=slots)
    verify_commit(backend(), dataclasses.replace(call, batch=batch))


@every_stateful
def test_an_accepted_chain_gives_the_results_of_decodes(op):
    backend, make = STATEFUL[op]
    call = make([5, 5, 5], phase="verify", initial="all", seed=4)
    verified = call.clone()
    verification = verified.run(backend())
    rest = make([5, 5, 5], initial="all", seed=4)
    decoded = run_in_steps(backend(), rest, [[1, 1, 1]] * 5, phase="decode")
    assert measure(verified.out, decoded.out.double()).within(BOUNDS[torch.float32])
    verification.commit(torch.tensor([4, 4, 4]), verified.state)
    slots = call.batch.write_slots
    assert measure(verified.state[slots], decoded.state[slots].double()).within(BOUNDS[torch.float32])


@every_stateful
def test_drafts_that_break_the_contract(op):
    backend, make = STATEFUL[op]
    call = make([2, 3], phase="verify")
    for parents, message in (
        ((-1, 0, -1, 0), "parent_rows: got 4 parents, expected 5"),
        ((-1, 0, -1, 1, 1), "parent_rows: got 1 for row 1 of sequence 1, expected -1, or a row before it"),
        ((-2, 0, -1, 0, 1), "parent_rows: got -2 for row 0 of sequence 0"),
    ):
        batch = dataclasses.replace(call.batch, parent_rows=parents)
        with pytest.raises(ContractError, match=message):
            dataclasses.replace(call, batch=batch).run(backend())
    with pytest.raises(ContractError, match="batch: got StateBatch in verify, expected a VerifyBatch"):
        dataclasses.replace(make([2, 3]), phase="verify").run(backend())
    verification = call.clone().run(backend())
    for accepted, message in (
        ([2, 0], "accepted: got 2 for sequence 0, expected -1 to 1"),
        ([0, -2], "accepted: got -2 for sequence 1"),
        ([0], r"accepted: got shape \[1\], expected \[N\] with N = 2"),
        ([0.0, 1.0], "accepted: got dtype float32, expected one of: int64"),
    ):
        with pytest.raises(ContractError, match=message):
            verification.commit(torch.tensor(accepted), call.state)


@every_stateful
@settings(max_examples=60, derandomize=True)
@given(
    lengths=st.lists(st.one_of(st.integers(0, 3), st.integers(0, 135)), min_size=0, max_size=5),
    every=st.sampled_from([1, 2, 3, 7, 16, 24, 32, 64, 128]),
    data=st.data(),
    **FORMS,
)
def test_any_checkpoints(op, lengths, every, dtype, initial, in_place, padded, seed, data):
    padding = data.draw(st.sets(st.sampled_from(range(len(lengths))))) if lengths and padded else ()
    backend, make = STATEFUL[op]
    call = make(lengths, dtype=dtype, initial=initial, in_place=in_place, padding=padding, seed=seed)
    verify(backend(), call.with_checkpoints(every, seed))


@every_stateful
def test_checkpoints_of_more_tokens_than_fit_in_a_group(op):
    backend, make = STATEFUL[op]
    call = make([2 * GROUP_TOKENS + 7, 1100], initial="all").with_checkpoints(512)
    verify(backend(), call)


@every_stateful
def test_a_checkpoint_is_where_a_shorter_call_ends(op):
    backend, make = STATEFUL[op]
    call = make([96], initial="all", strided=False, seed=9)
    whole = call.with_checkpoints(32)
    slot = whole.state.shape[0] - 1
    batch = dataclasses.replace(whole.batch, checkpoint_slots=torch.tensor([[-1, slot, -1]]))
    whole = dataclasses.replace(whole, batch=batch)
    whole.run(backend())
    shorter = {
        name: t[:64] if t is not None and call.contract.tensors[name].axes[0] == "T" else t
        for name, t in call.tensors.items()
    }
    ends = torch.tensor([0, 64], dtype=torch.int32)
    batch = dataclasses.replace(call.batch, cu_seqlens=ends, seqlens=(64,))
    dataclasses.replace(call, tensors=shorter, batch=batch).run(backend())
    expected = call.state[call.batch.write_slots[0]].double()
    assert measure(whole.state[slot], expected).within(BOUNDS[torch.float32])


@every_stateful
def test_checkpoints_that_break_the_contract(op):
    backend, make = STATEFUL[op]
    call = make([40, 50], initial="all").with_checkpoints(16)
    top = call.state.shape[0]
    owned = int(call.batch.write_slots[1])

    def broken(phase="prefill", **values):
        return dataclasses.replace(call, phase=phase, batch=dataclasses.replace(call.batch, **values))

    for batch, message in (
        ({"checkpoint_every": 0}, "checkpoint_every: got 0, expected an int of 1 or more"),
        (
            {"checkpoint_slots": torch.full((2, 2), -1)},
            "checkpoint_slots: got 2 columns, expected at least 3",
        ),
        ({"checkpoint_slots": torch.full((3, 4), -1)}, r"checkpoint_slots: got shape \[3, 4\]"),
        ({"checkpoint_slots": torch.full((2, 4), -2)}, "checkpoint_slots: got -2 for sequence 0"),
        (
            {"checkpoint_slots": torch.full((2, 4), owned)},
            f"got slot {owned} for sequence 0, already used by sequence 1",
        ),
        (
            {"checkpoint_slots": torch.tensor([[-1, top - 1, -1], [top - 1, -1, -1]])},
            f"got slot {top - 1} for sequence 1, already used by sequence 0",
        ),
        (
            {"checkpoint_slots": torch.tensor([[top, -1, -1], [-1, -1, -1]])},
            f"batch.checkpoint_slots: got slot {top}, expected below {top}",
        ),
        ({"phase": "decode"}, "batch.seqlens: got a length of 40, expected 1"),
        (
            {"phase": "verify"},
            "batch: got checkpoints in verify, expected checkpoints in prefill only",
        ),
    ):
        with pytest.raises(ContractError, match=message):
            broken(**batch).run(backend())
    with pytest.raises(
        ContractError,
        match="batch: got checkpoints, expected none: this backend lacks the feature checkpoints",
    ):
        call.contract.check_batch("prefill", call.batch)


def test_small_decays_after_a_huge_one_in_mamba2():
    call = mamba2_call([70], dt_softplus=False, bias=False, initial="all")
    call.tensors["A"].fill_(-1e20)
    call.tensors["dt"].mul_(1e-20)
    call.tensors["dt"][::7] = 1.0
    verify(TorchMamba2(), call)
