"""Drafts of a second model with a layout, routes and pools of its own."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import switchrail
import torch
from safetensors.torch import load_file, save_file
from switchrail.engine import Engine, Output, SamplingParams, draft_model, loading
from switchrail.engine import engine as engine_module
from switchrail.engine.draft_model import DraftModel
from switchrail.engine.drafts import Drafted
from switchrail.errors import ConfigError, SwitchrailError
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

from .conftest import CONFIG, byte_tokenizer, make_checkpoint
from .idle import is_idle
from .test_drafts import CHECKPOINTS, DRAFTED, FREE, OPTIONS
from .test_graphs import GraphPlatform, captured_runtime
from .test_overlap import make_params, make_prompts
from .test_speculation import exact

__all__ = ["captured_runtime"]

Make = Callable[..., Engine]
REFUSED = replace(FREE, max_new_tokens=12)
"""For drafts that are mostly refused, so that nearly every token takes a verification."""
LINEAR, FULL = "linear_attention", "full_attention"
LAYOUTS = {
    "linear first": [LINEAR, FULL, LINEAR],
    "full first": [FULL, LINEAR, LINEAR],
    "full only": [FULL],
    "linear only": [LINEAR, LINEAR],
}


@pytest.fixture(scope="session")
def checkpoint(small_checkpoint: Path) -> Path:
    return small_checkpoint


@pytest.fixture(scope="session", params=LAYOUTS)
def draft(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A draft model for the tiny checkpoint. Layer 0 of the checkpoint is linear."""
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
            if len(tokens) and task.params.temperature == 0
        )
        return proposal

    drafts.propose = recording  # type: ignore[method-assign]
    return found


@pytest.fixture(scope="module")
def alone(draft: Path) -> Iterator[Callable[[list[list[int]], int], list[tuple[int, ...]]]]:
    """A function that returns the tokens that the draft model generates after each text, without another
    model."""
    options = {
        **OPTIONS,
        "max_sequences": 20,
        "max_tokens_per_step": 256,
        "max_length": 128,
        "num_pages": 600,
    }
    with Engine(draft, runtime=switchrail.Runtime(), device="cpu", options=options) as engine:

        def generate(texts: list[list[int]], count: int) -> list[tuple[int, ...]]:
            params = SamplingParams(max_new_tokens=count, ignore_eos=True)
            return [output.tokens for output in engine.generate(texts, params)]

        yield generate


def test_outputs_are_those_of_the_model_and_proposals_those_of_the_draft(
    make_engine: Make, plain_engine: Any, draft: Path, alone: Any
) -> None:
    """Outputs are those without drafts. Proposals are those that the draft model generates alone."""
    prompts = make_prompts(12)
    expected = plain_engine(OPTIONS).generate(prompts, REFUSED)
    engine = make_engine(options={**DRAFTED, "draft": str(draft)})
    found = recorded(engine)
    assert engine.generate(prompts, REFUSED) == expected
    assert is_idle(engine)
    assert len(found) > 100
    texts = random.Random(0).sample(found, 40)
    scratch = alone([text for text, _ in texts], 4)
    assert [tuple(tokens) for _, tokens in texts] == [
        full[: len(tokens)] for full, (_, tokens) in zip(scratch, texts, strict=True)
    ]


def test_a_draft_equal_to_the_model_is_always_accepted(make_engine: Make, checkpoint: Path) -> None:
    """All drafts are accepted, also after requests with samples that share pages."""
    prompts, params = make_prompts(24), make_params(24)
    plain = make_engine(options=OPTIONS)
    engine = make_engine(options={**DRAFTED, "draft": str(checkpoint)})
    greedy = [number for number, param in enumerate(params) if param.temperature == 0]
    outputs = iter(
        plain.generate([prompts[number] for number in greedy], [params[number] for number in greedy])
    )
    expected = {number: [next(outputs) for _ in range(params[number].n)] for number in greedy}
    for _ in range(2):
        outputs = iter(engine.generate(prompts, params))
        found = [[next(outputs) for _ in range(param.n)] for param in params]
        assert {number: found[number] for number in greedy} == expected
        assert is_idle(engine)
    before = engine.stats
    assert engine.generate(prompts, FREE) == plain.generate(prompts, FREE)
    stats = engine.stats
    assert (
        stats.accepted_tokens - before.accepted_tokens == stats.drafted_tokens - before.drafted_tokens > 100
    )


def test_a_stale_cache_of_the_draft_changes_acceptance_only(
    make_engine: Make, plain_engine: Any, checkpoint: Path
) -> None:
    """If the draft's keys are replaced by random numbers during generation, outputs stay the same."""
    prompts = make_prompts(6)
    expected = plain_engine(OPTIONS).generate(prompts, FREE)
    engine = make_engine(options={**DRAFTED, "draft": checkpoint})
    requests = [engine.submit(prompt, FREE) for prompt in prompts]
    while not all(len(request.tokens) > 6 for request in requests):
        engine.step()
    before = engine.stats
    assert before.accepted_tokens == before.drafted_tokens > 0
    for keys in drafts_of(engine).runner.pools.kv["mha"].tensors():
        keys.normal_()
    while engine.busy:
        engine.step()
    assert [tuple(request.tokens) for request in requests] == [output.tokens for output in expected]
    stats = engine.stats
    assert stats.accepted_tokens - before.accepted_tokens < stats.drafted_tokens - before.drafted_tokens
    assert is_idle(engine)


def test_steps_of_the_draft_are_captured(
    make_engine: Make, plain_engine: Any, checkpoint: Path, captured_runtime: switchrail.Runtime
) -> None:
    """The draft's decodes are captured whole, and its steps with accepted tokens are captured in pieces."""
    prompts = make_prompts(12)
    expected = plain_engine(OPTIONS).generate(prompts, FREE)
    options = {**DRAFTED, "draft": checkpoint}
    engine = make_engine(runtime=captured_runtime, device=GraphPlatform(), options=options)
    runner = drafts_of(engine).runner
    eager, forward = list[Any](), runner.forward
    runner.forward = lambda step: (eager.append(step), forward(step))[1]  # type: ignore[method-assign,func-returns-value]
    graphs = runner.graphs
    assert graphs is not None
    assert {key.kind for key in graphs.captured} == {"decode", "mixed"}
    assert max(key.rows for key in graphs.captured if key.kind == "decode") == 6, (
        "a decode must have at most one row per sequence"
    )
    for _ in range(2):
        assert engine.generate(prompts, FREE) == expected
    assert not eager
    assert engine.stats.accepted_tokens == engine.stats.drafted_tokens > 200
    params = SamplingParams(max_new_tokens=20, ignore_eos=True, temperature=1.2, top_p=0.9, top_k=50, seed=2)
    engine.generate(prompts, [params, FREE] * 6)
    assert engine.stats.accepted_tokens > 0.99 * engine.stats.drafted_tokens > 300
    assert is_idle(engine)


def test_trees_of_a_draft(make_engine: Make, plain_engine: Any, draft: Path, alone: Any) -> None:
    """A tree has two branches, which begin with the best and the second best token."""
    prompts = make_prompts(12)
    expected = plain_engine(OPTIONS).generate(prompts, REFUSED)
    engine = make_engine(options={**DRAFTED, "draft": draft, "draft_branches": 2})
    found = recorded(engine)
    assert engine.generate(prompts, REFUSED) == expected
    assert is_idle(engine)
    texts = [(text, [int(token) for token in tokens]) for text, tokens in found if len(tokens) == 4]
    texts = random.Random(0).sample(texts, 20)
    scratch = alone([text for text, _ in texts], 2)
    assert [(tokens[0], tokens[2]) for _, tokens in texts] == scratch
    after = alone([[*text, tokens[1]] for text, tokens in texts], 1)
    assert [(tokens[3],) for _, tokens in texts] == after
    assert all(tokens[0] != tokens[1] for _, tokens in texts)


def test_trees_of_a_draft_equal_to_the_model(make_engine: Make, plain_engine: Any, checkpoint: Path) -> None:
    """Both tokens of the first branch are accepted. Sampled requests with sampled trees run too."""
    prompts = make_prompts(12)
    expected = plain_engine(OPTIONS).generate(prompts, FREE)
    engine = make_engine(options={**DRAFTED, "draft": checkpoint, "draft_branches": 2})
    assert engine.generate(prompts, FREE) == expected
    assert engine.stats.accepted_per_verification > 1.7
    params = SamplingParams(max_new_tokens=20, ignore_eos=True, temperature=1.2, top_p=0.9, top_k=50, seed=2)
    engine.generate(prompts, [params, FREE] * 6)
    assert is_idle(engine)


def test_sampled_requests_accept_drawn_drafts(make_engine: Make, checkpoint: Path) -> None:
    """Tokens sampled from a draft with the model's own distribution are accepted, up to rounding."""
    engine = make_engine(options={**DRAFTED, "draft": str(checkpoint)})
    params = SamplingParams(max_new_tokens=20, ignore_eos=True, temperature=1.2, top_p=0.9, top_k=50, seed=2)
    outputs = engine.generate(make_prompts(12), [params, FREE] * 6)
    assert {output.finish_reason for output in outputs} == {"length"}
    assert engine.stats.accepted_tokens > 0.99 * engine.stats.drafted_tokens > 100
    assert len({output.tokens for output in outputs}) == 12
    assert is_idle(engine)


def test_samples_do_not_depend_on_other_requests(make_engine: Make, tmp_path: Path) -> None:
    """A request draws the same tokens alone and beside another sampled request."""
    draft = make_checkpoint(tmp_path, seed=9, num_hidden_layers=1, layer_types=[FULL])
    engine = make_engine(options={**DRAFTED, "draft": str(draft)})
    long = SamplingParams(max_new_tokens=30, ignore_eos=True, temperature=1.3, seed=77)
    for seed in range(8):
        own, beside = replace(long, max_new_tokens=8, seed=seed), replace(long, max_new_tokens=10)
        alone = engine.generate([[1, 2, 3]], own)[0]
        assert engine.generate([[1, 2, 3], [9, 8, 7]], [own, beside])[0] == alone


SAMPLES = 600
"""The number of sampled texts. Half as many show that drafts are drawn from another distribution."""


def claims_another(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless `mutant` is empty, let drafts be drawn from another distribution than is reported."""
    if mutant == "proposes the largest":
        monkeypatch.setattr(draft_model, "draw", lambda odds, draws, choose: odds.argmax(-1))
    if mutant == "reports no filters":
        draw = draft_model.draw

        def filtered(odds: torch.Tensor, *given: Any) -> torch.Tensor:
            return draw(odds.where(odds >= odds.topk(3).values[:, 2:], 0), *given)

        monkeypatch.setattr(draft_model, "draw", filtered)
        monkeypatch.setattr(draft_model, "probabilities", lambda logits, params: logits.double().softmax(-1))


def chance_of(
    engine: Engine, checkpoint: Path, prompt: list[int], params: SamplingParams, samples: int = SAMPLES
) -> float:
    """The p-value of a chi-square test of an engine's texts against the model's exact probabilities."""
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    expected: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(params.max_new_tokens):
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *text] for text in expected])).logits[:, -1]
        expected = {
            (*text, token): chance * odds
            for (text, chance), row in zip(expected.items(), logits, strict=True)
            for token, odds in enumerate(exact(row, params).tolist())
            if odds
        }
    outputs = engine.generate([prompt] * samples, [replace(params, seed=seed) for seed in range(samples)])
    found = Counter(output.tokens for output in outputs)
    assert found.keys() <= expected.keys()
    cells = [(found[text], samples * odds) for text, odds in expected.items() if samples * odds >= 5]
    if len(cells) < len(expected):  # all rare texts form one cell
        cells.append((samples - sum(count for count, _ in cells), samples - sum(mean for _, mean in cells)))
    square = sum((count - mean) ** 2 / mean for count, mean in cells)
    return torch.special.gammaincc(torch.tensor((len(cells) - 1) / 2), torch.tensor(square / 2)).item()


@pytest.fixture(scope="module")
def noisy(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint with noise added to its weights."""
    noisy = Path(shutil.copytree(checkpoint, tmp_path_factory.mktemp("noisy"), dirs_exist_ok=True))
    generator = torch.Generator().manual_seed(3)
    weights = load_file(noisy / "model.safetensors")
    for weight in weights.values():
        if weight.dim() > 1:
            weight += 0.05 * weight.std() * torch.randn(weight.shape, generator=generator)
    save_file(weights, noisy / "model.safetensors", metadata={"format": "pt"})
    return noisy


@pytest.mark.parametrize(
    ("mutant", "branches"), [("", 1), ("", 2), ("proposes the largest", 1), ("reports no filters", 1)]
)
def test_samples_have_the_models_distribution(
    make_engine: Make,
    checkpoint: Path,
    noisy: Path,
    monkeypatch: pytest.MonkeyPatch,
    mutant: str,
    branches: int,
) -> None:
    """A chi-square test of texts of three tokens. The draft has the model's weights with noise added."""
    params = SamplingParams(
        max_new_tokens=3, ignore_eos=True, temperature=1.3, top_k=3, top_p=0.95, min_p=0.05
    )
    claims_another(mutant, monkeypatch)
    options = {**DRAFTED, "max_sequences": 128, "max_tokens_per_step": 1024, "num_pages": 700}
    engine = make_engine(options={**options, "draft": str(noisy), "draft_branches": branches})
    chance = chance_of(engine, checkpoint, [5, 6, 7], params, SAMPLES // 2 if mutant else SAMPLES)
    assert 0.1 < engine.stats.accepted_tokens / engine.stats.drafted_tokens < 0.95
    assert (chance < 1e-6) if mutant else (chance > 1e-3)


def test_a_long_prompt_is_chunked(make_engine: Make, checkpoint: Path) -> None:
    """The draft model runs at most a step's rows per step; meanwhile short requests get proposals."""
    prompts = [[*range(250)], [1, 2]]
    options = {**OPTIONS, "max_length": 300, "num_pages": 200}
    expected = make_engine(options=options).generate(prompts, FREE)
    engine = make_engine(options={**options, "draft": checkpoint})
    drafts, rows, proposed = drafts_of(engine), list[int](), list[list[int]]()
    build, propose = drafts.runner.builder.build, drafts.propose

    def counting(schedule: Any, *given: Any, **named: Any) -> Any:
        if schedule.prefill:
            rows.append(sum(count for _, count in schedule.prefill))
        return build(schedule, *given, **named)

    def recording(tasks: Any, limits: Any) -> Drafted:
        before = len(rows)
        proposal = propose(tasks, limits)
        assert len(rows) == before + 1, "the draft must run tokens that it lacks in one step"
        if len(tasks) == 2:
            proposed.append([len(tokens) for tokens in proposal.tokens])
        return proposal

    drafts.runner.builder.build, drafts.propose = counting, recording  # type: ignore[method-assign]
    assert engine.generate(prompts, FREE) == expected
    assert max(rows) <= 36
    assert [0, 4] in proposed
    assert engine.stats.accepted_tokens == engine.stats.drafted_tokens > 20
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
    """A draft is refused if the kinds of its layers are taken from the model's config."""
    fixed = switchrail.Layout.from_config(checkpoint)
    monkeypatch.setattr(loading, "layout_of", lambda *_: fixed)
    with pytest.raises(SwitchrailError, match="layout"):
        make_engine(options={**DRAFTED, "draft": str(draft)})


def test_layer_0_is_not_assumed_to_be_full_attention(
    make_engine: Make, draft: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the draft's layers were assumed to be full attention, as in SGLang, other drafts would not load."""
    config = json.loads((draft / "config.json").read_text())
    is_full = LINEAR not in config["layer_types"]
    fixed = switchrail.Layout.from_config({**config, "layer_types": [FULL] * config["num_hidden_layers"]})
    own = loading.layout_of

    def hard_coded(runtime: switchrail.Runtime, path: Path, read_config: Any) -> switchrail.Layout:
        return fixed if path == draft else own(runtime, path, read_config)

    monkeypatch.setattr(loading, "layout_of", hard_coded)
    if is_full:
        assert make_engine(options={**DRAFTED, "draft": str(draft)}).generate([[1, 2]], FREE)
        return
    with pytest.raises(SwitchrailError, match="layout"):
        make_engine(options={**DRAFTED, "draft": str(draft)})


def test_drafts_that_do_not_fit(make_engine: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = make_checkpoint(tmp_path / "small", vocab_size=300)
    short = make_checkpoint(tmp_path / "short", max_position_embeddings=63)
    with monkeypatch.context() as patch:
        patch.setattr(engine_module, "load_model", None)  # refused before any model is loaded
        with pytest.raises(ConfigError, match="a vocabulary of 300 tokens; valid: 320"):
            make_engine(options={**DRAFTED, "draft": str(small)})
        with pytest.raises(
            ConfigError, match=r"of 63 tokens; valid: at least 64.* a max_length of at most 63"
        ):
            make_engine(options={**DRAFTED, "draft": str(short)})
        with pytest.raises(SwitchrailError, match="nowhere"):
            make_engine(options={**DRAFTED, "draft": "nowhere"})
    assert make_engine(options=DRAFTED).generate([[1]], FREE)[0].finish_reason == "length"


def test_trees_need_models_without_windows(make_engine: Make, tmp_path: Path) -> None:
    layers = ["full_attention", "sliding_attention"]
    windows = {"layer_types": layers, "use_sliding_window": True, "sliding_window": 8}
    config = Qwen3Config(**{**CONFIG, "num_hidden_layers": 2, **windows})
    Qwen3ForCausalLM(config).save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    trees = {**DRAFTED, "draft": str(tmp_path), "draft_branches": 2}
    for path in ({"path": tmp_path}, {}):
        with pytest.raises(ConfigError, match=f"layer 1 of the model in {tmp_path} has a window of 8 tokens"):
            make_engine(**path, options=trees)
    chains = make_engine(tmp_path, options={**trees, "draft_branches": 1})
    assert chains.generate([[1, 2]], FREE)[0].finish_reason == "length"


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
