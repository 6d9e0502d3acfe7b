"""Small CPU runs of the benchmark that checks tokens and probabilities: correct engines pass, wrong ones
don't."""

from __future__ import annotations

import pytest
import torch
from switchrail.testing import isolated
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks import accuracy


@pytest.fixture(autouse=True)
def runtime(monkeypatch):
    monkeypatch.setattr(accuracy, "WAYS", {"eager": accuracy.WAYS["eager"]})
    monkeypatch.setattr(accuracy, "NEW_TOKENS", 4)
    with isolated():
        yield


def test_the_trained_checkpoint_passes(capsys):
    assert accuracy.main(["--tiny", "--prompts", "3", "--longest", "40", "--no-slice"]) == 0
    told = capsys.readouterr().out
    assert "trained, transformers in float32: 3 of 3 prompts" in told


def test_a_wrong_token_is_found(capsys, monkeypatch):
    tokens = accuracy.transformers_tokens

    def one_wrong(model, prompts):
        found = tokens(model, prompts)
        found[1][2] += 1
        return found

    monkeypatch.setattr(accuracy, "transformers_tokens", one_wrong)
    assert accuracy.main(["--tiny", "--prompts", "3", "--longest", "40", "--no-slice"]) == 1
    assert "2 of 3 prompts have the tokens of the eager run; distances in float64" in capsys.readouterr().out


def test_distances_are_those_of_a_model_that_computes_in_float64_throughout(monkeypatch):
    seen = []

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor) and out.is_floating_point():
                seen.append(out.dtype)
            return out

    load = accuracy.load

    def load_recorded(*args):
        model = load(*args)
        forward = model.forward

        def recorded(*args, **kwargs):
            with Recorder():
                return forward(*args, **kwargs)

        monkeypatch.setattr(model, "forward", recorded)
        return model

    monkeypatch.setattr(accuracy, "load", load_recorded)
    (gap,) = accuracy.gaps(accuracy.TRAINED, "cpu", [[5, 6, 7]], [[8, 9]], [[8, 10]])
    assert gap > 0
    assert set(seen) == {torch.float64}
