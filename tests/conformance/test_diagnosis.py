"""Tests of the reports of failures: each test runs a backend with a known mistake."""

import dataclasses
import re
from functools import partial

import pytest
import torch
from switchrail.ops.attention.torch import TorchAttention
from switchrail.ops.gated_delta.torch import TorchGatedDelta
from switchrail.testing import diagnosis
from switchrail.testing.compare import verify
from switchrail.testing.diagnosis import Mismatch, report
from switchrail.testing.inputs import attention_call, gated_delta_call

from tests.sabotage import sabotaged

wrong = partial(sabotaged, TorchGatedDelta)


def told(backend, call):
    with pytest.raises(Mismatch) as raised:
        verify(backend, call)
    return str(raised.value)


CALL = {"lengths": [40, 3, 0, 33], "padding": (1,), "initial": "all"}


@pytest.mark.parametrize(
    ("then", "words"),
    [
        (lambda **a: a["out"][10, 2, 5].add_(1), ["sequence 0, row 10, head 2, column 5", "wrong: 1 of "]),
        (lambda **a: a["out"][50, 1].mul_(3), ["first wrong: out at sequence 3, row 7, head 1, column 0"]),
        (lambda **a: a["out"].mul_(2), ["got / expected is constant", ": 2 = 2"]),
        (lambda **a: a["out"].mul_(1.4426950408889634), ["= log2(e): base 2 is used instead of base e"]),
        (lambda **a: a["out"].mul_(0.6931471805599453), ["= ln 2: base e is used instead of base 2"]),
        (lambda **a: a["out"].neg_(), ["-1 = -1: the sign is wrong"]),
        (lambda **a: a["out"][:, 1].mul_(3), ["only some heads are wrong: 1 of 4"]),
        (
            lambda **a: a["out"].mul_(torch.tensor([1.0, 2, 3, 4])[:, None]),
            ["is constant in each head", "1, 2 = 2, 3, 4 = 1/scale = sqrt(K)"],
        ),
        (
            lambda **a: a["out"].mul_(torch.arange(76)[:, None, None] / 9 + 2),
            ["got / expected is constant in each row"],
        ),
        (lambda **a: a["out"][..., 8:].zero_(), ["only some columns are wrong: columns 8-15 of 16", "are 0"]),
        (lambda **a: a["out"].zero_(), ["all wrong numbers are 0"]),
        (
            lambda **a: a["out"].index_fill_(0, torch.tensor([39, 75]), torch.inf),
            ["infinity is written: 128 numbers", "last rows of sequences"],
        ),
        (
            lambda **a: a["out"].index_fill_(0, torch.tensor([0, 43]), 1),
            ["only first rows of sequences are wrong"],
        ),
        (
            lambda **a: a["out"][40].fill_(1),
            ["rows of padding are written: first at row 40 of the batch: got 1"],
        ),
        (lambda **a: a["out"][40].fill_(torch.nan), ["rows of padding are never written"]),
        (
            lambda **a: a["q"][44, 1, 2:].add_(1),
            ["q, first at sequence 3, row 1, head 1, column 2: ", "; 14 of "],
        ),
        (
            lambda **a: a["q"].as_strided((1,), (1,), 0).fill_(3),
            ["q itself is unchanged; memory beside it in the same buffer is modified"],
        ),
        (
            lambda **a: a["batch"].has_initial_state.logical_not_(),
            ["has_initial_state was modified", "first at sequence 0: 1 became 0; 4 of 4 numbers"],
        ),
        (
            lambda **a: a["state"][a["batch"].write_slots[2]].fill_(1.0),
            ["the slot of an empty sequence is written: slot ", " of sequence 2"],
        ),
        (
            lambda **a: a["state"][-1].copy_(a["state"][a["batch"].write_slots[3]]),
            ["holds the state of slot ", " of sequence 3"],
        ),
        (lambda **a: a["state"][0].fill_(1.0), ["slot 0, which no sequence owns, is written"]),
    ],
)
def test_the_report_names_the_mistake(then, words):
    report = told(wrong(then), gated_delta_call(**CALL))
    for each in words:
        assert each in report


def test_results_that_were_never_written():
    class Lazy(TorchGatedDelta):
        def run(self, call, batch, plan):
            out, state = call.out, call.layer.state
            mine, pool = out.clone(), state.clone()
            layer = dataclasses.replace(call.layer, state=pool)
            super().run(call._replace(out=mine, layer=layer), batch, plan)
            out[:70].copy_(mine[:70])
            out[70:, :2].copy_(mine[70:, :2])
            state[batch.write_slots[0]] = pool[batch.write_slots[0]]

    report = told(Lazy(), gated_delta_call(**CALL))
    assert "numbers are never written: 192 of 4,672, first at sequence 3, row 27, head 2, column 0" in report
    assert "states are never written: slot " in report
    assert "NaN is written" not in report


def test_computed_nan_is_not_reported_as_unwritten():
    report = told(wrong(lambda **a: a["out"][5].fill_(torch.nan)), gated_delta_call(**CALL))
    assert "NaN is written: 64 numbers, first at sequence 0, row 5, head 0, column 0" in report
    assert "never written" not in report


def test_reads_of_forbidden_memory():
    class Beyond(TorchAttention):
        def run(self, call, batch, plan):
            longer = tuple(kv + 1 for kv in batch.kv_seqlens)
            longer = dataclasses.replace(batch, kv_seqlens=longer)
            super().run(call, longer, self.plan("prefill", longer))

    report = told(Beyond(), attention_call([3, 5]))
    assert "a cache position that no row may see is read" in report


def test_a_mistake_after_decaying_gates_is_reported_as_such():
    call = gated_delta_call([20, 20, 20], gate="one", initial="all")
    call.tensors["g"][30:40] = -0.1

    class Forgetful(TorchGatedDelta):
        def run(self, call, batch, plan):
            super().run(call._replace(g=3 * call.g), batch, plan)

    report = told(Forgetful(), call)
    assert "only rows at or after a gate that decays are wrong" in report


def test_the_failure_stays_a_failure_where_a_diagnoser_fails(monkeypatch):
    def broken(d):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(report, "_GROUPS", ((report.first_wrong,), (broken,)))
    text = told(wrong(lambda **a: a["out"].mul_(2)), gated_delta_call(**CALL))
    assert "out is off by 1.00e+00" in text
    assert "broken can't tell: RuntimeError('out of memory')" in text


def test_passing_cases_are_not_diagnosed(monkeypatch):
    def never(*_):
        raise AssertionError

    for name in ("diagnose", "of_output", "of_states", "changed_input", "stray_slots"):
        monkeypatch.setattr(f"switchrail.testing.compare.{name}", never)
    verify(TorchGatedDelta(), gated_delta_call(**CALL))
    assert diagnosis.diagnose is not never


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_reports_on_a_gpu(dtype):
    call = gated_delta_call(**CALL, dtype=dtype, device="cuda")
    assert re.search(r": (2|1\.999\d*) = 2", told(wrong(lambda **a: a["out"].mul_(2)), call))
    assert "initial states are ignored" in told(_Fresh(), call)
    assert "NaN is written: 64 numbers" in told(wrong(lambda **a: a["out"][5].fill_(torch.nan)), call)
    assert "q, first at sequence 3, row 1" in told(wrong(lambda **a: a["q"][44].add_(1)), call)


class _Fresh(TorchGatedDelta):
    def plan(self, phase, batch):
        nothing = torch.zeros_like(batch.has_initial_state)
        return super().plan(phase, dataclasses.replace(batch, has_initial_state=nothing))


def test_initial_states_that_are_ignored():
    assert "initial states are ignored" in told(_Fresh(), gated_delta_call(**CALL))
