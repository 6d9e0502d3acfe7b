import dataclasses
import subprocess
import sys

import pytest
import torch
from switchrail._core import PAGED_OPS
from switchrail.errors import ArgumentError, ContractError, SwitchrailError
from switchrail.ops.call import take_rows
from switchrail.ops.catalog import OfEach
from switchrail.ops.contract import REMEMBERED, TensorSpec, parse_axis
from switchrail.ops.gated_delta.torch import TorchGatedDelta
from switchrail.ops.steps import STEPS, declared, own_steps
from switchrail.testing.inputs import (
    CONTRACTS,
    GENERATORS,
    REFERENCES,
    attention_call,
    gated_delta_call,
    kda_call,
    mamba2_call,
)

TORCH = OfEach(lambda definition: definition.torch)


def check(call):
    call.contract.check(call.phase, call.made, call.batch)


def with_batch(call, **values):
    return dataclasses.replace(call, batch=dataclasses.replace(call.batch, **values))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("op", GENERATORS)
def test_generated_calls_fulfil_the_contract(op, dtype):
    for lengths in ([3, 0, 5], [1], [0], []):
        check(GENERATORS[op](lengths, dtype=dtype))
    check(GENERATORS[op]([1, 1, 1], phase="decode", dtype=dtype))


def spread(tensor):
    """The same elements, with gaps between neighbours in memory."""
    return torch.stack([tensor, tensor], -1)[..., 0]


TENSOR_BREACHES = [
    ("gated_delta", "q", lambda t: t.int(), r"q: got dtype int32, expected one of float64, float32, float16"),
    ("gated_delta", "k", lambda t: t.half(), r"k: got dtype float16, expected one of: float32"),
    ("gated_delta", "g", lambda t: t.bfloat16(), r"g: got dtype bfloat16, expected one of: float32"),
    (
        "gated_delta",
        "state",
        lambda t: t.int(),
        r"state: got dtype int32, expected one of: bfloat16, float16, float32",
    ),
    ("gated_delta", "v", lambda t: t[:, 0], r"v: got shape \[8, 16\], expected \[T, HV, V\]"),
    ("gated_delta", "v", lambda t: t[:-1], r"v: got shape \[7, 4, 16\].*T = 8 \(batch.seqlens\)"),
    ("gated_delta", "k", lambda t: t[:, :, :8], r"k: got shape \[8, 2, 8\].*K = 16 \(q\)"),
    ("gated_delta", "beta", lambda t: None, r"beta: got NoneType, expected a torch.Tensor"),
    ("gated_delta", "state", spread, r"state: got strides .*\[slots, HV, V, K\] dense in memory"),
    ("gated_delta", "out", lambda t: t[:, ::2], r"out: got shape \[8, 2, 16\].*HV = 4 \(v\)"),
    ("mamba2", "C", lambda t: t[:, :1], r"C: got shape \[8, 1, 16\].*G = 2 \(B\)"),
    ("mla", "q_nope", lambda t: t[:, :, 1:], r"w_k: got shape \[4, 16, 32\].*D = 15 \(q_nope\)"),
    (
        "mla",
        "q_rope",
        lambda t: t[:, :, 1:],
        r"kv_cache: got L = 40, expected R \+ E with R = 32 \(w_k\), E = 7",
    ),
    ("mla", "w_k", lambda t: None, r"w_v: got shape \[4, 16, 32\].*R = 16 \(q_nope\)"),
    ("mla", "w_v", lambda t: None, r"out: got shape .*V = 32 \(w_k\)"),
    ("kda", "g", lambda t: t[:, :, 0], r"g: got shape \[8, 4\], expected \[T, HV, K\]"),
    ("lightning", "g", lambda t: t[:, None], r"g: got shape \[4, 1\], expected \[H\]"),
    ("lightning", "v", lambda t: t[:, :2], r"v: got shape \[8, 2, 16\].*H = 4 \(q\)"),
    ("gated_delta", "q", lambda t: t.mT.contiguous().mT, r"q: got strides .*stride 1 along K"),
    ("gated_delta", "q", lambda t: t.to("meta"), r"batch: got device cpu, expected meta, the device of q"),
    (
        "gated_delta",
        "k",
        lambda t: t.to("meta"),
        r"k: got device meta, expected cpu, that of the other tensors",
    ),
    ("short_conv", "state", spread, r"state: got strides .*\[slots, W-1, C\] dense"),
    ("short_conv", "weight", lambda t: t[:, 1:].contiguous(), r"state: got shape .*W = 3 \(weight\)"),
    (
        "short_conv",
        "x",
        lambda t: t.repeat_interleave(2, 0)[::2].repeat(1, 2)[:, ::2],
        r"x: got strides .*C or T",
    ),
    ("attention", "v_cache", lambda t: t[:-1], r"v_cache: got shape .*pages = 5 \(k_cache\)"),
    ("attention", "q", lambda t: t.numpy(), r"q: got ndarray, expected a torch.Tensor"),
]


@pytest.mark.parametrize(
    ("op", "name", "change", "message"), TENSOR_BREACHES, ids=lambda v: v if isinstance(v, str) else ""
)
def test_a_tensor_that_breaks_the_contract(op, name, change, message):
    call = GENERATORS[op]([3, 5])
    broken = dataclasses.replace(call, tensors={**call.tensors, name: change(call.tensors[name])})
    for backend in (REFERENCES[op](), TORCH[op]()):
        with pytest.raises(ContractError, match=message) as caught:
            broken.run(backend)
        assert caught.value.op == op
        assert caught.value.argument
        assert caught.value.valid
        assert isinstance(caught.value, SwitchrailError)
        assert isinstance(caught.value, ValueError)
    assert call.out.isnan().all()


def test_heads_that_do_not_divide():
    call = gated_delta_call([3], heads=2, value_heads=3)
    with pytest.raises(ContractError, match=r"v: got HV = 3, expected a multiple of H = 2 \(q\)"):
        check(call)
    with pytest.raises(ContractError, match=r"x: got H = 3, expected a multiple of G = 2 \(B\)"):
        check(mamba2_call([3], heads=3))
    with pytest.raises(ContractError, match=r"q: got H = 3, expected a multiple of HKV = 2 \(k_cache\)"):
        check(attention_call([3], heads=3, kv_heads=2))


@pytest.mark.parametrize(
    ("op", "name", "value", "message"),
    [
        ("attention", "scale", 0.0, "scale: got 0.0, expected a finite number other than 0"),
        ("attention", "scale", float("nan"), "scale: got nan"),
        ("attention", "scale", 1, "scale: got 1 of type int, expected float"),
        ("attention", "window", 0, "window: got 0, expected more than 0"),
        ("attention", "window", 2.0, "window: got 2.0 of type float, expected int or None"),
        ("attention", "soft_cap", float("inf"), "soft_cap: got inf"),
        ("gated_delta", "qk_l2norm", 1, "qk_l2norm: got 1 of type int, expected bool"),
        ("short_conv", "activation", "swish", "activation: got 'swish', expected one of 'silu', None"),
        ("short_conv", "activation", True, "activation: got True of type bool, expected str or None"),
    ],
)
def test_an_option_that_breaks_the_contract(op, name, value, message):
    call = GENERATORS[op]([3])
    broken = dataclasses.replace(call, options={**call.options, name: value})
    for backend in (REFERENCES[op](), TORCH[op]()):
        with pytest.raises(ContractError, match=message):
            broken.run(backend)


def test_a_missing_and_an_unknown_argument():
    call = gated_delta_call([3])
    arguments = {**call.tensors, **call.options}
    with pytest.raises(ContractError, match="beta: got nothing"):
        call.contract.make({k: v for k, v in arguments.items() if k != "beta"})
    with pytest.raises(
        ContractError, match="bias: got an argument that the contract lacks, expected one of A_log, beta"
    ):
        call.contract.make({**arguments, "bias": None})


@pytest.mark.parametrize("phase", ["prefill", "verify"])
@pytest.mark.parametrize("op", GENERATORS)
def test_a_plan_of_another_batch_is_refused(op, phase):
    call, other = (GENERATORS[op](lengths, phase=phase) for lengths in ([3, 5], [5, 3]))
    backend = TORCH[op]()
    plan = backend.plan(phase, other.batch)
    with pytest.raises(ArgumentError, match="plan: got"):
        backend.run(call.made, call.batch, plan)
    assert call.out.isnan().all()


def test_objects_that_are_no_calls_of_the_op():
    call = gated_delta_call([3])
    for other, message in (
        (kda_call([3]).made, "call: got KdaCall, expected a GatedDeltaCall"),
        (None, "call: got NoneType"),
        (
            call.made._replace(layer=kda_call([3]).made.layer),
            "layer: got KdaLayer, expected a GatedDeltaLayer",
        ),
    ):
        for backend in (REFERENCES["gated_delta"](), TorchGatedDelta()):
            with pytest.raises(ContractError, match=message):
                backend.run(other, call.batch, backend.plan("prefill", call.batch))


@pytest.mark.parametrize("name", ["window", "soft_cap", "sinks", "lse"])
def test_arguments_of_a_feature_are_refused_by_a_backend_that_lacks_it(name):
    given = {"sinks": True, "lse": True, "window": 2, "soft_cap": 2.0}
    call = attention_call([3], **{name: given[name]})
    official, contract = call.made, call.contract
    contract.check_call(official, call.batch, (name,))
    for _ in range(2):
        with pytest.raises(
            ContractError, match=f"{name}: got a value, expected None: .* lacks the feature {name}"
        ):
            contract.check_call(official, call.batch)
    if name == "lse":
        contract.check_layer(official.layer, ())
    else:
        with pytest.raises(ContractError, match=f"lacks the feature {name}"):
            contract.check_layer(official.layer, ())


def test_a_valid_call_does_not_vouch_for_similar_calls():
    call = attention_call([3], window=1)
    right = call.made
    features = ("window",)
    for _ in range(2):
        call.contract.check_call(right, call.batch, features)
    for changed, message in (
        ({"q": call.tensors["q"].to_sparse()}, r"q: got layout torch\.sparse_coo"),
        ({"q": call.tensors["q"].double()}, "k_cache: got dtype float32"),
        ({"q": call.tensors["q"][:2]}, "q: got shape"),
        ({"q": call.tensors["q"].numpy()}, "q: got ndarray"),
        ({"out": call.out.transpose(0, 2).contiguous().transpose(0, 2)}, "out: got strides"),
    ):
        for _ in range(2):
            with pytest.raises(ContractError, match=message):
                call.contract.check_call(right._replace(**changed), call.batch, features)
    for changed, message in (
        ({"scale": 1}, "scale: got 1 of type int"),
        ({"window": True}, "window: got True of type bool"),
        ({"window": 1.0}, r"window: got 1\.0 of type float"),
        ({"scale": [1.0]}, r"scale: got \[1\.0\] of type list"),
    ):
        layer = dataclasses.replace(right.layer, **changed)
        for _ in range(2):
            with pytest.raises(ContractError, match=message):
                call.contract.check_call(right._replace(layer=layer), call.batch, features)
    for _ in range(2):
        with pytest.raises(ContractError, match=r"q: got shape .*T = 4 \(batch.seqlens\)"):
            call.contract.check_call(right, attention_call([4]).batch, features)


def test_a_layer_remembers_a_bounded_number_of_calls():
    call = attention_call([3])
    right = call.made
    for stride in range(1, 2 * REMEMBERED):
        q = torch.zeros(3 * (64 + stride)).as_strided((3, 4, 16), (64 + stride, 16, 1))
        call.contract.check_call(right._replace(q=q), call.batch)
        assert len(right.layer.checked) <= REMEMBERED


@pytest.mark.parametrize("op", GENERATORS)
def test_calls_that_differ_in_their_rows_alone_are_remembered_as_one(op):
    call = GENERATORS[op]([40])
    right = call.made
    for rows in (2, 3, 40):
        call.contract.check_call(take_rows(right, slice(rows)), GENERATORS[op]([rows]).batch)
        assert len(right.layer.checked) == 1


@pytest.mark.parametrize("op", GENERATORS)
@pytest.mark.parametrize("rows", [0, 1, 2, 5])
def test_a_remembered_call_vouches_for_no_other_number_of_rows(op, rows):
    call = GENERATORS[op]([5])
    right, contract = call.made, call.contract
    contract.check_call(right, call.batch)
    longer = GENERATORS[op]([9])
    contract.check_call(longer.made._replace(layer=right.layer), longer.batch)
    batch = GENERATORS[op]([rows]).batch
    brought = [name for name in contract.brought if getattr(right, name) is not None]
    assert len(brought) > 1
    for name in brought:
        shorter = right._replace(**{name: getattr(right, name)[:4]})
        for against in (call.batch, GENERATORS[op]([4]).batch):
            with pytest.raises(ContractError, match="T = "):
                contract.check_call(shorter, against)
    if rows == 5:
        contract.check_call(right, batch)
    else:
        with pytest.raises(ContractError, match=f"T = {rows}"):
            contract.check_call(right, batch)


def test_a_batch_that_breaks_the_contract():
    call = gated_delta_call([3, 1])
    wrong = [
        (attention_call([3, 1]).batch, "batch: got PagedBatch, expected a StateBatch"),
        (with_batch(call, read_slots=call.batch.read_slots.short()).batch, "read_slots: got dtype int16"),
        (with_batch(call, cu_seqlens=call.batch.cu_seqlens[:2]).batch, r"cu_seqlens: got shape \[2\].*N = 2"),
        (
            with_batch(call, has_initial_state=torch.ones(3, dtype=torch.bool)).batch,
            "has_initial_state: got shape",
        ),
        (with_batch(call, seqlens=(5, -1)).batch, "seqlens: got -1"),
    ]
    for batch, message in wrong:
        for backend in (REFERENCES["gated_delta"](), TorchGatedDelta()):
            with pytest.raises(ContractError, match=message):
                dataclasses.replace(call, batch=batch).run(backend)
    with pytest.raises(ContractError, match="a length of 3, expected 1 for each sequence in decode"):
        dataclasses.replace(call, phase="decode").run(TorchGatedDelta())


@pytest.mark.parametrize(
    ("read", "write", "message"),
    [
        ([1, 2], [1, 1], "write_slots: got slot 1 for sequences 0 and 1"),
        ([1, -1], [1, 2], "got -1, 2 for sequence 1, expected -1 in both or in neither"),
        ([1, 2], [2, 3], "read_slots: got slot 2 for sequence 1, which sequence 0 writes"),
        ([1, -2], [1, -2], "got -2, -2 for sequence 1, expected -1 or more"),
        ([1, 99], [1, 99], "got slot 99, expected below 5"),
    ],
)
@pytest.mark.parametrize("op", [op for op in GENERATORS if op not in ("attention", "mla")])
def test_slots_that_break_the_contract(op, read, write, message):
    call = with_batch(GENERATORS[op]([2, 3]), read_slots=torch.tensor(read), write_slots=torch.tensor(write))
    before = call.state.clone()
    with pytest.raises(ContractError, match=message):
        call.run(TORCH[op]())
    assert torch.equal(call.state.nan_to_num(), before.nan_to_num())


def test_contracts_name_their_axes_consistently():
    assert set(CONTRACTS) == set(GENERATORS)
    for contract in CONTRACTS.values():
        known = {axis for spec in contract.tensors.values() for axis, _ in spec.parsed_axes}
        assert all(axis in known for pair in contract.multiples for axis in pair)
        assert "out" in contract.mutated
        assert {*contract.kept, *contract.brought} == contract.tensors.keys() | contract.options.keys()
        assert all(contract.tensors[name].axes[0] == "T" for name in contract.brought)
        assert not any(
            contract.tensors[name].axes[0] == "T" for name in contract.kept if name in contract.tensors
        )
        for spec in (*contract.tensors.values(), *contract.batch.values()):
            assert isinstance(spec, TensorSpec)
            assert spec.memory is not None or spec.unit_stride
            for order, *_ in spec.memory_orders:
                assert sorted(order) == list(range(len(spec.axes)))


def test_axes():
    assert parse_axis("HV") == ("HV", 0)
    assert parse_axis("W-1") == ("W", -1)
    assert parse_axis("N + 1") == ("N", 1)
    with pytest.raises(ValueError, match="'2\\*N'"):
        parse_axis("2*N")


def test_registering_the_built_in_backends_imports_nothing():
    code = (
        "import importlib.util, sys\n"
        "from importlib.machinery import SourceFileLoader\n"
        "import switchrail.builtin_backends\n"
        "seen = []\n"
        "class Registry:\n"
        "    def register(self, name, target, **capabilities):\n"
        "        seen.append((name, capabilities['op']))\n"
        "switchrail.builtin_backends.register_builtins(Registry())\n"
        "assert len(seen) == 2 * len(switchrail._core.OPS), seen\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


class Registrations:
    def __init__(self):
        self.made = []

    def register(self, name, target, **capabilities):
        self.made.append((name, target, capabilities))


def test_the_built_in_backends_are_what_their_registration_says():
    from switchrail.builtin_backends import register_builtins
    from switchrail.ops import Backend

    registry = Registrations()
    register_builtins(registry)
    assert {(name, c["op"]) for name, _, c in registry.made} == {
        (name, op) for name in ("torch", "reference") for op in CONTRACTS
    }
    for name, target, capabilities in registry.made:
        module, _, attribute = target.partition(":")
        backend = getattr(__import__(module, fromlist=[attribute]), attribute)
        assert issubclass(backend, Backend)
        assert backend.op == capabilities["op"]
        contract = CONTRACTS[backend.op]
        assert capabilities["dtypes"] == contract.tensors[contract.inputs[0]].dtypes
        assert capabilities["priority"] == (0 if name == "torch" else -100)
        assert backend.run is not Backend.run
        assert (backend.commit is not Backend.commit) == (backend.op not in PAGED_OPS)
        assert set(capabilities["features"]) - STEPS.keys() == set(contract.features)
        assert set(declared(capabilities["features"])) == own_steps(backend()).keys()
        if contract.state_layout is not None:
            assert capabilities["state_layouts"] == (contract.state_layout,)


def test_an_unknown_name_of_the_package():
    import switchrail.ops

    assert switchrail.ops.StateBatch.__name__ == "StateBatch"
    assert switchrail.ops.CONTRACTS is CONTRACTS
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = switchrail.ops.Nothing
