import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from switchrail.ops.mla.torch import KEYS, TorchMla
from switchrail.testing.compare import BOUNDS, measure, verify
from switchrail.testing.inputs import mla_call, run_reference
from switchrail.testing.steps import run_in_steps

from tests.ops.strategies import CACHED, DTYPES

BACKEND = TorchMla


@settings(max_examples=200, derandomize=True)
@given(
    sequences=CACHED,
    heads=st.integers(1, 5),
    sizes=st.tuples(*[st.integers(1, 24)] * 4),
    arguments=st.fixed_dictionaries(
        {
            "page": st.integers(1, 33),
            "dtype": st.sampled_from(DTYPES),
            **{flag: st.booleans() for flag in ("strided", "absorbed", "lse")},
            "seed": st.integers(0, 2**16),
        }
    ),
    padded=st.booleans(),
    data=st.data(),
)
def test_any_prefill(sequences, heads, sizes, arguments, padded, data):
    padding = data.draw(st.sets(st.sampled_from(range(len(sequences))))) if sequences and padded else ()
    call = mla_call(
        [length for length, _ in sequences],
        kv_lengths=[length + past for length, past in sequences],
        heads=heads,
        **dict(zip(("nope_size", "rope_size", "latent_size", "value_size"), sizes, strict=True)),
        padding=padding,
        **arguments,
    )
    verify(TorchMla(), call)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("absorbed", [True, False])
@pytest.mark.parametrize("norm", [1.0, 4.0])
def test_decode_of_many_lengths(backend, dtype, absorbed, norm):
    call = mla_call(
        [1] * 40,
        kv_lengths=[1, 2, 15, 16, 17, *range(30, 730, 20)],
        phase="decode",
        dtype=dtype,
        absorbed=absorbed,
        lse=True,
        padding=(0, 11),
        norm=norm,
    )
    verify(backend, call)


@pytest.mark.parametrize(
    ("dtype", "absorbed"),
    [
        (torch.float32, True),
        (torch.float32, False),
        (torch.bfloat16, True),
        (torch.float16, False),
        (torch.float64, False),
    ],
    ids=str,
)
def test_a_long_prefix_is_merged_from_pieces(backend, dtype, absorbed):
    call = mla_call(
        [KEYS + 70, 300, 2, 1],
        kv_lengths=[KEYS + 70, 3 * KEYS, KEYS + 1, 2000],
        heads=2,
        page=64,
        dtype=dtype,
        absorbed=absorbed,
        lse=True,
    )
    verify(backend, call)


@pytest.mark.parametrize("absorbed", [True, False])
def test_decoding_step_by_step_equals_prefill(backend, absorbed):
    call = mla_call([40] * 5, kv_lengths=[40, 41, 100, 57, 63], absorbed=absorbed, lse=True, seed=6)
    expected = run_reference(call)
    actual = run_in_steps(backend, call, [[1] * 5] * 40, phase="decode")
    for name, output in actual.outputs.items():
        assert measure(output, expected.outputs[name]).within(BOUNDS[torch.float32])


def test_absorbing_the_weights_changes_nothing():
    call = mla_call([3, 20], kv_lengths=[9, 20], dtype=torch.float64, strided=False)
    t = call.tensors
    absorbed = mla_call([3, 20], kv_lengths=[9, 20], dtype=torch.float64, strided=False, absorbed=True)
    absorbed.tensors["kv_cache"].copy_(t["kv_cache"])
    absorbed.tensors["q_rope"].copy_(t["q_rope"])
    absorbed.tensors["q_nope"].copy_(torch.einsum("thd,hdr->thr", t["q_nope"], t["w_k"]))
    whole, latent = run_reference(call), run_reference(absorbed)
    expanded = torch.einsum("thr,hvr->thv", latent.out, t["w_v"])
    assert measure(expanded, whole.out).within(BOUNDS[torch.float64])


def test_drafts_without_a_tree_are_a_chain(backend):
    verify(backend, mla_call([3, 1, 5], kv_lengths=[40, 41, 5], phase="verify", lse=True, padding=(1,)))
