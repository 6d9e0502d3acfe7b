"""Drafts of a model's own head for multi-token prediction (MTP)."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import switchrail
import torch
from safetensors.torch import load_file, save_file
from switchrail.engine import Engine, SamplingParams
from switchrail.engine import engine as engine_module
from switchrail.engine.drafts import Drafted, Drafts
from switchrail.engine.models.mtp import join_experts, load_head
from switchrail.engine.mtp import MtpDrafts
from switchrail.errors import CheckpointError, ConfigError, SwitchrailError
from transformers import AutoModelForCausalLM

from .drafting import FORCED, Oracle, Trees, use, using
from .heads import FULL, LINEAR, Scratch, make_head, split_experts
from .idle import is_idle
from .test_draft_model import SAMPLES, chance_of, claims_another
from .test_drafts import CHECKPOINTS, DRAFTED, FREE, OPTIONS, verified_runtime
from .test_graphs import GraphPlatform, captured_runtime, count_replays
from .test_overlap import make_params, make_prompts

__all__ = ["captured_runtime", "verified_runtime"]

Make = Callable[..., Engine]
KJV = CHECKPOINTS / "kjv-qwen3-next"
MTP = {**DRAFTED, "draft": "mtp"}
HEADS = {"full": [FULL], "linear": [LINEAR], "several": [LINEAR, FULL, LINEAR]}


@pytest.fixture(scope="session")
def checkpoint(small_checkpoint: Path) -> Path:
    return small_checkpoint


@pytest.fixture(scope="session", params=HEADS)
def headed(
    request: pytest.FixtureRequest, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The tiny checkpoint, whose layer 0 is linear, with a random head."""
    return make_head(checkpoint, tmp_path_factory.mktemp("headed"), HEADS[request.param])


@pytest.fixture(scope="module")
def heading(headed: Path) -> Iterator[Engine]:
    """An engine with the head. Tests may replace its drafts until they end."""
    with Engine(headed, runtime=switchrail.Runtime(), device="cpu", options=MTP) as engine:
        yield engine


def requests_for(kind: str) -> tuple[list[list[int]], SamplingParams]:
    """Prompts and their parameters; fewer and shorter if drafts are refused, so that each token takes a
    verification."""
    if kind in ("own", "none"):
        return make_prompts(8), replace(FREE, max_new_tokens=10)
    return make_prompts(12), FREE


@cache
def scratch(path: Path) -> Scratch:
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="sdpa").eval()
    drafts = switchrail.Layout.from_config(path).drafts
    return Scratch(model, load_head(path, model, drafts))


def drafts_of(engine: Engine) -> MtpDrafts:
    drafts = engine._core.drafts
    if isinstance(drafts, Steered):
        drafts = drafts.head
    assert isinstance(drafts, MtpDrafts)
    return drafts


class Steered(Drafts):
    """Records a head's greedy proposals. Unless `own` is True, proposes an oracle's tokens instead."""

    are_trees = True

    def __init__(self, head: Drafts, oracle: Oracle, own: bool = False) -> None:
        self.head, self.oracle, self.own = head, oracle, own
        self.found: list[tuple[list[int], list[int]]] = []

    def propose(self, tasks: Any, limits: Any) -> Drafted:
        proposal = self.head.propose(tasks, limits)
        self.found += [
            ([*task.ids.tolist(), *task.tokens], [*map(int, tokens)])
            for task, tokens in zip(tasks, proposal.tokens, strict=True)
            if len(tokens) and task.params.temperature == 0
        ]
        return proposal if self.own else self.oracle.propose(tasks, limits)


def test_proposals_are_those_from_scratch(heading: Engine, plain_engine: Any, headed: Path) -> None:
    """Proposals equal those of a reference without caches, whatever was accepted before. Prompts run in
    chunks."""
    head = scratch(headed)
    for kind in FORCED:
        prompts, params = requests_for(kind)
        expected = plain_engine(OPTIONS).generate(prompts, params)
        steered = Steered(drafts_of(heading), Oracle(expected, FORCED[kind], ragged=kind == "random"))
        with using(heading, steered):
            assert heading.generate(prompts, params) == expected, kind
        assert is_idle(heading)
        assert len(steered.found) > 30
        for text, tokens in random.Random(0).sample(steered.found, 15):
            assert tokens == head.propose(text, len(tokens)), kind


def second_best(head: Scratch, text: list[int], drafts: list[int]) -> int:
    """The second best draft after a text and some drafts."""
    logits = head.logits(text, drafts)
    return int(logits.topk(2).indices[1])


@pytest.mark.parametrize(("tokens", "kinds"), [(4, ("own", "none")), (5, ("all", "random"))], ids=["4", "5"])
def test_trees_of_a_head(
    tokens: int, kinds: tuple[str, ...], make_engine: Make, plain_engine: Any, headed: Path
) -> None:
    """A tree is a chain of the best tokens, with the second best token of each place as a leaf.

    Hidden states of accepted rows move to their positions, so later proposals equal the reference's.
    """
    options = {**MTP, "draft_branches": 2, "draft_tokens": tokens, "max_tokens_per_step": 48}
    engine, head = make_engine(headed, options=options), scratch(headed)
    for kind in kinds:
        prompts, params = requests_for(kind)
        expected = plain_engine(OPTIONS).generate(prompts, params)
        trees = Trees(expected, FORCED.get(kind, FORCED["all"]), ragged=kind == "random")
        steered = Steered(drafts_of(engine), trees, own=kind == "own")
        use(engine, steered)
        assert engine.generate(prompts, params) == expected
        assert is_idle(engine)
        full = [(text, drafts) for text, drafts in steered.found if len(drafts) == tokens]
        assert len(full) > 20
        for text, drafts in random.Random(0).sample(full, 6):
            chain = drafts[::2]
            assert chain == head.propose(text, len(chain))
            assert drafts[1::2] == [
                second_best(head, text, chain[:place]) for place in range(len(drafts[1::2]))
            ]


def test_hidden_states_move_in_captured_verifications(
    make_engine: Make,
    plain_engine: Any,
    checkpoint: Path,
    tmp_path: Path,
    verified_runtime: switchrail.Runtime,
) -> None:
    prompts = make_prompts(8)
    expected = plain_engine(OPTIONS).generate(prompts, FREE)
    folder = make_head(checkpoint, tmp_path)
    options = {**MTP, "draft_branches": 2, "max_sequences": 4, "max_tokens_per_step": 24}
    engine = make_engine(folder, runtime=verified_runtime, device=GraphPlatform(), options=options)
    seen = count_replays(engine)
    steered = Steered(drafts_of(engine), Trees(expected, FORCED["random"]))
    use(engine, steered)
    assert engine.generate(prompts, FREE) == expected
    assert "verify" in {key.kind for key in seen}
    head = scratch(folder)
    full = [(text, drafts[::2]) for text, drafts in steered.found]
    for text, chain in random.Random(0).sample(full, 12):
        assert chain == head.propose(text, len(chain))


@pytest.mark.parametrize("kinds", [[FULL], [LINEAR]], ids=["full", "linear"])
def test_steps_of_the_head_are_captured(
    kinds: list[str],
    make_engine: Make,
    plain_engine: Any,
    checkpoint: Path,
    tmp_path: Path,
    captured_runtime: switchrail.Runtime,
) -> None:
    """Decodes of the head are captured whole, other steps in pieces. Proposals equal those of eager steps."""
    path = make_head(checkpoint, tmp_path, kinds)
    prompts = make_prompts(12)
    expected = plain_engine(OPTIONS).generate(prompts, FREE)
    found = []
    for given in ({}, {"runtime": captured_runtime, "device": GraphPlatform()}):
        engine = make_engine(path, options=MTP, **given)
        runner = drafts_of(engine).runner
        eager, forward = list[Any](), runner.forward
        runner.forward = partial(recorded, eager, forward)  # type: ignore[method-assign]
        steered = Steered(drafts_of(engine), Oracle(expected, FORCED["random"]))
        use(engine, steered)
        assert engine.generate(prompts, FREE) == expected
        assert bool(eager) == (not given)
        if given:
            assert runner.graphs is not None
            assert {key.kind for key in runner.graphs.captured} == {"decode", "mixed"}
        assert is_idle(engine)
        found.append(sorted(steered.found))
    assert found[0] == found[1]
    assert len(found[0]) > 100


def recorded(steps: list[Any], forward: Callable[[Any], torch.Tensor], step: Any) -> torch.Tensor:
    steps.append(step)
    return forward(step)


def test_samples_of_a_prompt_copy_its_hidden_states(heading: Engine, plain_engine: Any, headed: Path) -> None:
    """Samples share full pages and copy the last page, while requests come and go."""
    prompts, params = make_prompts(24), make_params(24)
    greedy = [replace(param, temperature=0.0) for param in params]
    expected = plain_engine(OPTIONS).generate(prompts, greedy)
    oracle = Oracle(expected, FORCED["random"])
    steered = Steered(drafts_of(heading), oracle)
    for output, seed in zip(expected, (one.seed for param in greedy for one in param.samples()), strict=True):
        oracle.expect(seed, output)
    with using(heading, steered):
        assert heading.generate(prompts, greedy) == expected
    assert any(param.n > 1 for param in params)
    head = scratch(headed)
    for text, tokens in random.Random(1).sample(steered.found, 15):
        assert tokens == head.propose(text, len(tokens))


@pytest.mark.parametrize(
    ("headed", "lengths"),
    [("several", (7, 8, 9, 10)), ("full", (8, 9)), ("linear", (8,))],
    indirect=["headed"],
)
def test_samples_share_no_keys_that_depend_on_their_own_tokens(
    lengths: tuple[int, ...], make_engine: Make, headed: Path
) -> None:
    """Samples share no page with cache entries of the head that depend on sampled tokens.

    The entry of the prompt's last token depends on the first sampled token. Entries of a head's later steps
    depend on further tokens.
    """
    engine = make_engine(headed, options={**MTP, "draft_tokens": 3, "max_tokens_per_step": 64})
    params = SamplingParams(max_new_tokens=9, ignore_eos=True, temperature=1.5, n=4, seed=7)
    for length in lengths:
        prompt = [*range(length)]
        together = engine.generate([prompt], params)
        assert len({output.tokens[0] for output in together}) > 1
        assert together == engine.generate([prompt] * 4, params.samples()), length


def keys_after(engine: Engine, prompt: list[int], params: SamplingParams = FREE) -> torch.Tensor:
    """Run a request alone, and return the head's keys of its tokens, in order."""
    request = engine.submit(prompt, params)
    rows = torch.zeros(0, dtype=torch.long)
    while engine.busy:
        engine.step()
        live = list(engine._core.sequences.live)
        if live and live[0].drafted:
            (task,) = live
            positions = torch.arange(task.drafted)
            rows = torch.tensor(task.pages)[positions // 4] * 4 + positions % 4
    assert request.finish_reason == "length"
    keys, _ = drafts_of(engine).runner.pools.kv["mha"].caches(0)
    return keys.flatten(0, 1)[rows]


def test_keys_are_rewritten_from_the_models_hidden_states(
    make_engine: Make, plain_engine: Any, checkpoint: Path, tmp_path: Path
) -> None:
    """Keys are the same whether tokens were drafted and accepted, or run one at a time."""
    folder = make_head(checkpoint, tmp_path)
    expected = plain_engine(OPTIONS).generate([[5, 6, 7]], FREE)
    found = []
    for kind in ("all", "none"):
        engine = make_engine(folder, options=MTP)
        oracle = Oracle(expected, FORCED[kind], ragged=False)
        use(engine, Steered(drafts_of(engine), oracle))
        found.append(keys_after(engine, [5, 6, 7]))
        accepted = engine.stats.accepted_tokens
        assert (accepted > 10) == (kind == "all")
    count = min(map(len, found))
    assert count > 12
    assert torch.allclose(found[0][:count], found[1][:count], atol=1e-5)
    assert found[0].std() > 0.1


def test_an_entry_depends_on_the_next_token(make_engine: Make, checkpoint: Path, tmp_path: Path) -> None:
    """The head's cache entry i depends on token i + 1, but no earlier entry does."""
    engine = make_engine(make_head(checkpoint, tmp_path), options=MTP)
    prompt = list(range(20, 36))
    params = SamplingParams(max_new_tokens=3, ignore_eos=True)
    before = keys_after(engine, prompt, params)[:15]
    after = keys_after(engine, [*prompt[:9], 99, *prompt[10:]], params)[:15]
    changed = [not torch.allclose(a, b, atol=1e-5) for a, b in zip(before, after, strict=True)]
    assert changed.index(True) == 8


def test_routes_and_pools_are_those_of_one_layout(heading: Engine, headed: Path) -> None:
    """Each step of the head has its own routes and pools; the steps and the model share the sequences."""
    layouts = switchrail.Layout.from_config(headed).drafts
    runners = drafts_of(heading).runners
    assert len(runners) == len(layouts)
    for runner, layout in zip(runners, layouts, strict=True):
        plan = runner.dispatcher.bound.plan
        assert plan.layout == layout != heading.plan.layout
        assert [layer.id for layer in layout.layers] == [0]
        ops = set(layout.layers[0].ops)
        assert {(layer, op) for layer, op, _, _ in plan.table} == {(0, op) for op in ops}
        assert set(runner.pools.kv) == ({"mha"} if "attention" in ops else set())
        assert set(runner.pools.state.states) == ({0} if "gated_delta" in ops else set())
        assert runner.sequences is heading._runner.sequences
    assert len({id(runner.pools) for runner in runners}) == len(runners)


def test_a_fixed_list_of_kinds_is_refused(
    make_engine: Make, headed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If kinds came from a fixed list, heads with other layers would not load."""
    config = json.loads((headed / "config.json").read_text())
    kinds = config["mtp_layer_types"]
    fixed = [LINEAR if kind == FULL else FULL for kind in kinds]
    wrong = switchrail.Layout.from_config({**config, "mtp_layer_types": fixed}).drafts
    monkeypatch.setattr(engine_module, "find_mtp", lambda *_: wrong)
    with pytest.raises(CheckpointError, match="missing: layers"):
        make_engine(headed, options=MTP)


@pytest.mark.parametrize("kinds", [[FULL], [LINEAR], [LINEAR, FULL]])
def test_layer_0_is_not_assumed_to_be_full_attention(
    kinds: list[str],
    make_engine: Make,
    checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If the layers were assumed to be full attention, as in SGLang, heads with other layers would not
    load."""
    folder = make_head(checkpoint, tmp_path, kinds)
    config = json.loads((folder / "config.json").read_text())
    fixed = switchrail.Layout.from_config({**config, "mtp_layer_types": [FULL] * len(kinds)}).drafts
    monkeypatch.setattr(engine_module, "find_mtp", lambda *_: fixed)
    if LINEAR not in kinds:
        assert make_engine(folder, options=MTP).generate([[1, 2]], FREE)
        return
    with pytest.raises(CheckpointError, match="missing: layers"):
        make_engine(folder, options=MTP)


def damaged(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> Path:
    weights = load_file(folder / "mtp.safetensors")
    change(weights)
    save_file(weights, folder / "mtp.safetensors")
    return folder


def test_heads_that_do_not_fit(make_engine: Make, checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match="names no MTP head; valid: a checkpoint with mtp_num_hidden_layers"
    ):
        make_engine(options=MTP)
    norm = "mtp.norm.weight"
    for name, change, text in (
        ("missing", lambda weights: weights.pop(norm), r"missing: norm\.weight"),
        ("more", lambda weights: weights.update({"mtp.x": torch.zeros(1)}), "unexpected: x"),
        ("shape", lambda weights: weights.update({norm: torch.zeros(3)}), r"another shape: norm\.weight"),
    ):
        with pytest.raises(CheckpointError, match=text):
            make_engine(damaged(make_head(checkpoint, tmp_path / name), change), options=MTP)
    wrong = make_head(checkpoint, tmp_path / "wrong")
    config = json.loads((wrong / "config.json").read_text())
    (wrong / "config.json").write_text(json.dumps({**config, "mtp_num_hidden_layers": 2}))
    with pytest.raises(SwitchrailError, match=r"mtp_layer_types is .* of 2 steps"):
        make_engine(wrong, options=MTP)


def test_a_head_without_a_number_in_the_config_has_one_step(
    make_engine: Make, checkpoint: Path, tmp_path: Path
) -> None:
    """The published configs of Qwen3-Next have no number of steps; the head's weights are in the model's
    file."""
    folder = make_head(checkpoint, tmp_path)
    (folder / "config.json").write_bytes((checkpoint / "config.json").read_bytes())
    head = load_file(folder / "mtp.safetensors")
    weights = {**load_file(folder / "model.safetensors"), **head}
    (folder / "mtp.safetensors").unlink()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    engine = make_engine(folder, options=MTP)
    assert len(drafts_of(engine).runners) == 1
    plain = make_engine(folder, options=OPTIONS)  # without a draft, the head's weights are not loaded
    assert plain.generate([[1, 2]], FREE) == engine.generate([[1, 2]], FREE)
    assert not any("mtp" in name for name, _ in plain._runner.model.named_parameters())


def test_experts_are_joined_as_they_are_split() -> None:
    joined = {"layers.0.mlp.experts.gate_up_proj": torch.randn(3, 8, 5), "norm.weight": torch.ones(2)}
    joined["layers.0.mlp.experts.down_proj"] = torch.randn(3, 5, 4)
    split = split_experts(joined)
    assert len(split) == 10
    again = join_experts(split)
    assert again.keys() == joined.keys()
    assert all(torch.equal(again[name], joined[name]) for name in joined)
    del split["layers.0.mlp.experts.1.up_proj.weight"]
    with pytest.raises(CheckpointError, match="experts without"):
        join_experts(split)


def test_the_head_is_disconnected(make_engine: Make, checkpoint: Path, tmp_path: Path) -> None:
    engine = make_engine(make_head(checkpoint, tmp_path), options=MTP)
    decoder = engine._runner.model.get_decoder()  # type: ignore[operator]
    assert len(decoder._forward_hooks) == 1
    engine.close()
    del engine
    assert not decoder._forward_hooks


@pytest.mark.parametrize("mutant", ["", "proposes the largest"])
def test_samples_have_the_models_distribution(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chi-square test of texts of three tokens, with the trained head."""
    claims_another(mutant, monkeypatch)
    params = SamplingParams(
        max_new_tokens=3, ignore_eos=True, temperature=1.3, top_k=3, top_p=0.95, min_p=0.05
    )
    options = {"max_sequences": 128, "max_tokens_per_step": 1024, "max_length": 32, "draft": "mtp"}
    samples = SAMPLES // 2 if mutant else SAMPLES
    with Engine(KJV, runtime=switchrail.Runtime(), device="cpu", options=options) as engine:
        chance = chance_of(engine, KJV, [300, 301], params, samples)
        assert 0.05 < engine.stats.accepted_tokens / engine.stats.drafted_tokens < 0.95
    assert (chance < 1e-6) if mutant else (chance > 1e-3)
