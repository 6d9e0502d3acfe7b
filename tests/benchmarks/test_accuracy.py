"""Small CPU runs of the benchmark of accuracy, and tests of its parts."""

from __future__ import annotations

import pytest
import torch
from switchrail.platforms.cpu import CpuPlatform
from switchrail.platforms.operations import Experts
from switchrail.testing import isolated
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks import accuracy
from benchmarks.choices import Routed, causes, routed, routers
from benchmarks.serving.slices import TINY, make_checkpoint, make_prompts
from tests.platforms.test_engine import experts


@pytest.fixture(autouse=True)
def runtime(monkeypatch, small_heap):
    """An isolated runtime. The benchmark collects garbage between its runs, here in a small heap."""
    monkeypatch.setattr(accuracy, "WAYS", {"eager": accuracy.WAYS["eager"]})
    monkeypatch.setattr(accuracy, "NEW_TOKENS", 4)
    with isolated():
        yield


def test_the_trained_checkpoint_passes(capsys):
    assert accuracy.main(["--tiny", "--prompts", "3", "--longest", "40", "--no-slice"]) == 0
    told = capsys.readouterr().out
    assert "trained, transformers in float32: 3 of 3 prompts" in told


def test_a_wrong_token_is_found(capsys, monkeypatch):
    run = accuracy.run_transformers

    def one_wrong(model, prompts):
        found = run(model, prompts)
        found.tokens[1][2] += 1
        return found

    monkeypatch.setattr(accuracy, "run_transformers", one_wrong)
    assert accuracy.main(["--tiny", "--prompts", "3", "--longest", "40", "--no-slice"]) == 1
    told = capsys.readouterr().out
    assert "2 of 3 prompts have the tokens of the eager run; distances in float64" in told
    assert "prompt 1, new token 2: OPEN" in told


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
    runs = accuracy.Run([[8, 9]]), accuracy.Run([[8, 10]])
    (found,) = accuracy.differences(accuracy.TRAINED, "cpu", [[5, 6, 7]], *runs)
    assert found.gap > 0
    assert set(seen) == {torch.float64}


@pytest.fixture
def tied(tmp_path):
    """A checkpoint in which experts 8 and 9 always have the logits of experts 0 and 1, but other results."""
    folder = make_checkpoint(tmp_path / "tied", 4, 16, 3072, widths=TINY, device="cpu")
    model = accuracy.load(folder, "cpu", torch.bfloat16)
    for router in routers(model):
        router.weight.data[8:10] = router.weight.data[:2]
    for block in model.model.layers:
        block.mlp.experts.down_proj.data *= 300
    model.save_pretrained(folder)
    return folder


@pytest.fixture
def prompts():
    return make_prompts(3)


def shift(model, by):
    """Multiply the logits of experts 8 and 9 by `1 + by`."""
    for router in routers(model):
        router.weight.data[8:10] *= 1 + by


def test_a_tie_of_experts_explains_different_tokens(tied, prompts):
    """A near tie of two experts explains different tokens, even if later layers and tokens then choose other
    experts."""
    eager = accuracy.run_engine(tied, "cpu", prompts, accuracy.WAYS["eager"])
    for by, is_fine in ((3e-5, True), (3e-2, False)):
        model = accuracy.load(tied, "cpu", torch.float32)
        shift(model, by)
        other = accuracy.run_transformers(model, prompts)
        found = accuracy.differences(tied, "cpu", prompts, eager, other)
        assert found
        assert all(one.is_fine for one in found) == is_fine
        if is_fine:
            assert any(side.others > len(side.causes) > 0 for one in found for side in one.sides)
            assert all(side.behind_routed <= accuracy.CLOSE for one in found for side in one.sides)


@pytest.mark.parametrize("has_function", [False, True])
def test_the_recorded_experts_of_both_runs_are_those_of_one_pass(tied, prompts, has_function):
    platform = CpuPlatform()
    if has_function:
        platform.serving.register_oot_forward(Experts.name, experts)
    options = {**accuracy.WAYS["eager"], "max_tokens_per_step": 300}
    eager = accuracy.run_engine(tied, platform, prompts, options)
    model = accuracy.load(tied, "cpu", torch.float32)
    other = accuracy.run_transformers(model, prompts)
    assert eager.tokens == other.tokens
    for number, prompt in enumerate(prompts):
        ids = prompt + eager.tokens[number][:-1]
        whole = routed(model, ids)
        for run in (eager, other):
            found = run.choices.of(number, len(ids))
            assert (found != whole.experts).any(-1).float().mean() < 0.02, "the runs chose other experts"


def test_a_difference_is_caused_by_lower_layers_at_this_token_or_before():
    exact = Routed(torch.zeros(3, 4, 2), torch.arange(12.0).view(3, 4), torch.zeros(5))
    experts = exact.experts.clone()
    experts[0, 2] = experts[1, 1] = experts[1, 3] = experts[2, 0] = experts[2, 2] = 1
    assert causes(experts, exact) == [(0, 2, 2.0), (1, 1, 5.0), (2, 0, 8.0)]


def test_the_interval_of_a_ratio_contains_it_and_narrows_with_more_prompts():
    peer = torch.linspace(0.1, 0.3, 400, dtype=torch.float64)
    own = 1.1 * peer + 0.05 * torch.sin(torch.arange(400.0))
    widths = []
    for count in (20, 400):
        few = torch.arange(0, 400, 400 // count)
        low, high = accuracy.ratio_interval(own[few], peer[few])
        assert low < (own[few].mean() / peer[few].mean()).item() < high
        widths.append(high - low)
    assert widths[1] < widths[0] / 2
