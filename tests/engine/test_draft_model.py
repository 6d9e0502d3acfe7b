"""Drafts of a second model with a layout, routes and pools of its own."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import switchrail
from switchrail.engine import Engine, Output, SamplingParams, loading
from switchrail.engine.draft_model import DraftModel
from switchrail.engine.drafts import Drafted
from switchrail.errors import ConfigError, SwitchrailError

from .conftest import make_checkpoint
from .idle import is_idle
from .test_drafts import CHECKPOINTS, DRAFTED, FREE, OPTIONS
from .test_overlap import make_params, make_prompts

Make = Callable[..., Engine]
LINEAR, FULL = "linear_attention", "full_attention"
LAYOUTS = {
    "linear first": [LINEAR, FULL],
    "full first": [FULL, LINEAR, LINEAR],
    "full only": [FULL],
    "linear only": [LINEAR, LINEAR],
}


@pytest.fixture(scope="session", params=LAYOUTS)
def draft(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A draft for the tiny checkpoint, whose layer 0 is linear."""
    kinds = LAYOUTS[request.param]
    changes = {"num_hidden_layers": len(kinds), "layer_types": kinds, "hidden_size": 32}
    return make_checkpoint(tmp_path_factory.mktemp("draft"), seed=9, **changes)


def drafts_of(engine: Engine) -> DraftModel:
    drafts = engine._core.drafts
    assert isinstance(drafts, DraftModel)
    return drafts


def recorded(engine: Engine) -> list[tuple[list[int], list[int]]]:
    """Collect the greedy proposals from now on, each with the text before it."""
    drafts, found = drafts_of(engine), []
    propose = drafts.propose

    def recording(tasks: Any, limits: Any) -> Drafted:
        proposal = propose(tasks, limits)
        found.extend(
            ([*task.ids.tolist(), *task.tokens], list(tokens))
            for task, tokens in zip(tasks, proposal.tokens, strict=True)
            if tokens and task.params.temperature == 0
        )
        return proposal

    drafts.propose = recording  # type: ignore[method-assign]
    return found


def alone(make_engine: Make, draft: Path, texts: list[list[int]], count: int) -> list[tuple[int, ...]]:
    """What the draft model generates from scratch."""
    engine = make_engine(draft, options={**OPTIONS, "max_length": 128, "num_pages": 200})
    params = SamplingParams(max_new_tokens=count, ignore_eos=True)
    return [output.tokens for output in engine.generate(texts, params)]


def test_outputs_are_the_models_and_proposals_the_drafts(make_engine: Make, draft: Path) -> None:
    """Ragged prompts in chunks; greedy outputs are those without drafts, and proposals those from scratch."""
    prompts = make_prompts(12)
    expected = make_engine(options=OPTIONS).generate(prompts, FREE)
    engine = make_engine(options={**DRAFTED, "draft": str(draft)})
    found = recorded(engine)
    assert engine.generate(prompts, FREE) == expected
    assert is_idle(engine)
    assert len(found) > 100
    texts = random.Random(0).sample(found, 40)
    scratch = alone(make_engine, draft, [text for text, _ in texts], 4)
    assert [tuple(tokens) for _, tokens in texts] == [
        full[: len(tokens)] for full, (_, tokens) in zip(scratch, texts, strict=True)
    ]


def test_a_draft_equal_to_the_model_is_always_accepted(make_engine: Make, checkpoint: Path) -> None:
    """Also after requests came and went, and beside samples, which it shares pages with."""
    prompts, params = make_prompts(24), make_params(24)
    plain = make_engine(options=OPTIONS)
    engine = make_engine(options={**DRAFTED, "draft": str(checkpoint)})
    greedy = [number for number, param in enumerate(params) if param.temperature == 0]
    for _ in range(2):
        outputs = iter(engine.generate(prompts, params))
        found = [[next(outputs) for _ in range(param.n)] for param in params]
        for number in greedy:
            expected = plain.generate([prompts[number]], params[number])
            assert found[number] == expected
        assert is_idle(engine)
    before = engine.stats
    assert engine.generate(prompts, FREE) == plain.generate(prompts, FREE)
    stats = engine.stats
    assert (
        stats.accepted_tokens - before.accepted_tokens == stats.drafted_tokens - before.drafted_tokens > 100
    )


def test_sampled_requests_accept_drawn_drafts(make_engine: Make, checkpoint: Path) -> None:
    """A draft with the model's own distribution is accepted up to rounding, even if it is drawn."""
    engine = make_engine(options={**DRAFTED, "draft": str(checkpoint)})
    params = SamplingParams(max_new_tokens=20, ignore_eos=True, temperature=1.2, top_p=0.9, top_k=50, seed=2)
    outputs = engine.generate(make_prompts(12), [params, FREE] * 6)
    assert {output.finish_reason for output in outputs} == {"length"}
    assert engine.stats.accepted_tokens > 0.99 * engine.stats.drafted_tokens > 100
    assert len({output.tokens for output in outputs}) == 12
    assert is_idle(engine)


def test_each_model_is_routed_by_its_own_layout(make_engine: Make, draft: Path) -> None:
    engine = make_engine(options={**DRAFTED, "draft": str(draft)})
    own = switchrail.Layout.from_config(draft)
    plan = drafts_of(engine).runner.dispatcher.bound.plan
    assert plan.layout.layers == own.layers != engine.plan.layout.layers
    ops = {layer.id: set(layer.ops) for layer in own.layers}
    assert {(layer, op) for layer, op, _, _ in plan.table} == {(id, op) for id in ops for op in ops[id]}
    assert drafts_of(engine).runner.sequences is engine._runner.sequences


def test_a_layout_of_another_model_is_refused(
    make_engine: Make, checkpoint: Path, draft: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the draft's kinds came from the model's list, no draft here would load."""
    fixed = switchrail.Layout.from_config(checkpoint)
    monkeypatch.setattr(loading, "layout_of", lambda *_: fixed)
    with pytest.raises(SwitchrailError, match="layout"):
        make_engine(options={**DRAFTED, "draft": str(draft)})


def test_drafts_that_do_not_fit(make_engine: Make, tmp_path: Path, checkpoint: Path) -> None:
    small = make_checkpoint(tmp_path / "small", vocab_size=300)
    with pytest.raises(ConfigError, match="a vocabulary of 300 tokens; valid: 320"):
        make_engine(options={**DRAFTED, "draft": str(small)})
    short = make_checkpoint(tmp_path / "short", max_position_embeddings=63)
    with pytest.raises(SwitchrailError, match="63"):
        make_engine(options={**DRAFTED, "draft": str(short)})
    with pytest.raises(SwitchrailError, match="nowhere"):
        make_engine(options={**DRAFTED, "draft": "nowhere"})
    assert make_engine(options=DRAFTED).generate([[1]], FREE)[0].finish_reason == "length"


def test_the_trained_checkpoint_as_its_own_draft() -> None:
    folder = CHECKPOINTS / "kjv-qwen3-next"
    options = {"max_sequences": 8, "max_tokens_per_step": 64, "max_length": 256}
    prompts = ["In the beginning", "And the LORD said unto Moses,", "Blessed are"]
    params = SamplingParams(max_new_tokens=24)
    outputs: list[list[Output]] = []
    for draft in (None, str(folder)):
        made = Engine(folder, runtime=switchrail.Runtime(), device="cpu", options={**options, "draft": draft})
        with made as engine:
            outputs.append(engine.generate(prompts, params))
            stats = engine.stats
    assert outputs[0] == outputs[1]
    assert stats.accepted_tokens > 0.95 * stats.drafted_tokens > 30
