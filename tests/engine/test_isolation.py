"""An engine doesn't affect plain transformers models or other engines in its process."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import switchrail
import switchrail.testing
import torch
from switchrail.engine import Engine, SamplingParams
from switchrail.errors import DispatchError
from transformers import AutoModelForCausalLM
from transformers.models.qwen3_next import modeling_qwen3_next as modelling

GREEDY = SamplingParams(max_new_tokens=8, ignore_eos=True)
FUNCTIONS = ("causal_conv1d_fn", "torch_chunk_gated_delta_rule")


def codes() -> list[object]:
    return [getattr(modelling, name).__code__ for name in FUNCTIONS]


def test_plain_transformers_is_untouched(checkpoint: Path, make_engine: Callable[..., Engine]) -> None:
    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    ids = torch.arange(70).unsqueeze(0)
    before = codes()
    with torch.inference_mode():
        logits = model(ids).logits
        tokens = model.generate(ids, max_new_tokens=8, do_sample=False)
        engine = make_engine()
        ours = engine.generate([list(range(70))], GREEDY)[0]
        assert codes() != before
        assert torch.equal(model(ids).logits, logits)
        assert torch.equal(model.generate(ids, max_new_tokens=8, do_sample=False), tokens)
        assert list(ours.tokens) == tokens[0, 70:].tolist()
    engine.close()
    assert codes() == before


def test_two_engines_run_side_by_side(make_engine: Callable[..., Engine]) -> None:
    before = codes()
    first, second = make_engine(), make_engine(backends={"linear": "reference"})
    a, b = first.submit("the", GREEDY), second.submit("the", GREEDY)
    while first.busy or second.busy:
        first.step()
        second.step()
    assert a.tokens == b.tokens
    first.close()
    assert second.generate(["the"], GREEDY)[0].tokens == tuple(b.tokens)
    second.close()
    assert codes() == before


def test_engines_are_made_in_threads(
    make_engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Engines that are created in concurrent threads load one at a time; otherwise transformers would lose
    tied weights."""
    load = AutoModelForCausalLM.from_pretrained
    inside: list[int] = []

    def loading(*args: object, **kwargs: object) -> object:
        inside.append(1)
        time.sleep(0.05)
        assert len(inside) == 1
        try:
            return load(*args, **kwargs)
        finally:
            inside.pop()

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", loading)
    with ThreadPoolExecutor(4) as pool:
        engines = [future.result() for future in [pool.submit(make_engine) for _ in range(4)]]
    found = {engine.generate(["the"], GREEDY)[0].tokens for engine in engines}
    assert found == {make_engine().generate(["the"], GREEDY)[0].tokens}


def test_engines_of_several_backends_run_in_threads_beside_plain_transformers(
    checkpoint: Path, make_engine: Callable[..., Engine]
) -> None:
    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    ids = torch.arange(20).unsqueeze(0)
    prompts = [list(range(n, n + 9)) for n in range(4)]
    with torch.inference_mode():
        logits = model(ids).logits
    engines = [make_engine(), make_engine(backends={"linear": "reference"}), make_engine()]
    expected = engines[0].generate(prompts, GREEDY)

    def generate(engine: Engine) -> bool:
        return engine.generate(prompts, GREEDY) == expected

    @torch.inference_mode()
    def forward(_: Engine) -> bool:
        return torch.equal(model(ids).logits, logits)

    with ThreadPoolExecutor(6) as pool:
        done = [pool.submit(work, engine) for work in (generate, forward) for engine in engines * 2]
        found = [future.result() for future in done]
    assert found == [True] * 12


@pytest.mark.usefixtures("small_heap")
def test_a_dropped_engine_removes_its_hooks(checkpoint: Path) -> None:
    before = codes()
    engine = Engine(checkpoint, runtime=switchrail.Runtime(), device="cpu")
    engine.generate(["the"], GREEDY)
    gone = weakref.ref(engine)
    del engine
    gc.collect()
    assert gone() is None
    assert codes() == before


def test_a_failed_engine_leaves_no_hooks(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = codes()
    monkeypatch.setattr("switchrail.engine.runner.StepBuilder", None)
    with pytest.raises(TypeError):
        Engine(checkpoint, runtime=switchrail.Runtime(), device="cpu")
    assert codes() == before


def test_without_its_hooks_the_model_raises(make_engine: Callable[..., Engine]) -> None:
    """Without the engine's hooks, transformers runs its functions in plain torch, which refuse `seq_idx`.

    In versions that ignore `seq_idx`, the engine notices that calls are missing.
    """
    engine = make_engine()
    for hook in switchrail.hooks.chain.running():
        hook.owner.clear()
    with pytest.raises((ValueError, DispatchError), match=r"packed sequences|did not run its gated_delta"):
        engine.generate(["the"], GREEDY)


def test_mixers_that_refuse_packed_sequences_get_the_sequence_ids(make_engine: Callable[..., Engine]) -> None:
    engine = make_engine()
    running, seen = engine._runner.running, []

    def look(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        seen.append(kwargs["seq_idx"] is running.step.sequence_ids)

    mixers = [mixer for name, mixer in engine._runner.model.named_modules() if name.endswith("linear_attn")]
    assert len(mixers) == 2
    for mixer in mixers:
        mixer.register_forward_pre_hook(look, with_kwargs=True)
    engine.generate(["the", "of"], GREEDY)
    assert len(seen) == 2 * engine.stats.steps
    assert all(seen)


def test_our_attention_is_for_engines_only(checkpoint: Path, make_engine: Callable[..., Engine]) -> None:
    make_engine()
    model = AutoModelForCausalLM.from_pretrained(checkpoint, attn_implementation="switchrail")
    with pytest.raises(DispatchError, match="models that an engine has loaded"):
        model(torch.tensor([[1, 2, 3]]))


def test_the_default_runtime_serves_with_installed_plugins(checkpoint: Path) -> None:
    with switchrail.testing.isolated() as runtime, Engine(checkpoint, device="cpu") as engine:
        assert engine.generate(["the"], GREEDY)[0].finish_reason == "length"
        assert all(plugin.state != "discovered" for plugin in runtime.plugins)
        assert engine.platform.kind == "cpu"
        assert engine.platform is runtime.platform or engine.platform == runtime.platform
