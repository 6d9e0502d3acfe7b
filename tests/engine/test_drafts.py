"""Drafted tokens are verified, and don't change outputs."""

from __future__ import annotations

import io
import random
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import switchrail
import torch
from rich.console import Console
from switchrail.cli.captured import print_capture
from switchrail.engine import Engine, EngineOptions, Output, SamplingParams, core
from switchrail.engine.drafts import Drafted, Drafts
from switchrail.engine.graphs import Graphs
from switchrail.engine.ngram import NgramDrafts
from switchrail.engine.pieces import Pieces
from switchrail.engine.task import Task
from switchrail.engine.warmup import warm_up
from switchrail.errors import ConfigError, EngineError
from switchrail.testing import isolated
from switchrail.times import device_of, times_path, write_machine

from .capturable import CapturableDelta, DeferringDelta, register_capturable
from .conftest import make_checkpoint
from .drafting import FORCED, Oracle, Trees, use
from .heads import FULL, LINEAR
from .idle import is_idle
from .test_graphs import GraphPlatform, captured_runtime, count_replays
from .test_overlap import make_params, make_prompts

__all__ = ["captured_runtime"]

Make = Callable[..., Engine]
CHECKPOINTS = Path(__file__).parents[1] / "checkpoints"
OPTIONS: dict[str, Any] = {
    "max_sequences": 6,
    "max_tokens_per_step": 36,
    "page_size": 4,
    "num_pages": 90,
    "max_length": 64,
}
DRAFTED = {**OPTIONS, "draft": "ngram"}
FREE = SamplingParams(max_new_tokens=20, ignore_eos=True)


@pytest.fixture(scope="session")
def checkpoint(small_checkpoint: Path) -> Path:
    return small_checkpoint


@pytest.fixture(scope="module")
def trained() -> Iterator[tuple[Engine, list[Output]]]:
    """An engine with n-gram drafts, and the trained checkpoint's own continuations of 200 prompts."""
    chapters = (CHECKPOINTS / "held_out.txt").read_text(encoding="utf-8")
    draw = random.Random(1)
    prompts = []
    for _ in range(200):
        start = draw.randrange(len(chapters) - 400)
        prompts.append(chapters[start : start + draw.randint(1, 48)])
    params = [SamplingParams(max_new_tokens=draw.randint(1, 14)) for _ in prompts]
    options = {"max_sequences": 64, "max_tokens_per_step": 512, "page_size": 8, "max_length": 256}
    folder = CHECKPOINTS / "kjv-qwen3-next"
    with Engine(folder, runtime=switchrail.Runtime(), device="cpu", options=options) as engine:
        outputs = engine.generate(prompts, params)
    drafting = Engine(
        folder, runtime=switchrail.Runtime(), device="cpu", options={**options, "draft": "ngram"}
    )
    with drafting:
        drafting.params = params  # type: ignore[attr-defined]
        yield drafting, outputs


@pytest.mark.parametrize("kind", [*FORCED, "ngram"])
def test_greedy_tokens_are_those_without_drafts(kind: str, trained: tuple[Engine, list[Output]]) -> None:
    engine, expected = trained
    drafts = NgramDrafts() if kind == "ngram" else Oracle(expected, FORCED[kind], vocab_size=3072)
    use(engine, drafts)
    before = engine.stats
    found = engine.generate([output.prompt for output in expected], engine.params)  # type: ignore[attr-defined]
    assert found == expected
    assert is_idle(engine)
    accepted = engine.stats.accepted_tokens - before.accepted_tokens
    drafted = engine.stats.drafted_tokens - before.drafted_tokens
    assert engine.stats.failed_steps == 0
    assert drafted > (20 if kind == "ngram" else 200)
    assert 0 <= accepted <= drafted
    if isinstance(drafts, Oracle):
        assert accepted == sum(right for right, _ in drafts.steps)
        assert drafted == sum(count for _, count in drafts.steps)
        assert (accepted == 0, accepted == drafted) == (kind == "none", kind == "all")


@pytest.mark.parametrize("branches", [1, 2], ids=["chains", "trees"])
@pytest.mark.parametrize("draft", ["mtp", str(CHECKPOINTS / "kjv-draft")], ids=["mtp", "model"])
def test_trained_drafts_are_accepted(draft: str, branches: int, trained: tuple[Engine, list[Output]]) -> None:
    """Greedy tokens are the same as without drafts, with a trained head and with a trained draft model.
    Outputs are short, so fewer drafts are accepted than in docs/drafts.md."""
    engine, expected = trained
    options = replace(engine.options, draft=draft, draft_branches=branches)
    folder = CHECKPOINTS / "kjv-qwen3-next"
    with Engine(folder, runtime=switchrail.Runtime(), device="cpu", options=options) as drafting:
        found = drafting.generate([output.prompt for output in expected], engine.params)  # type: ignore[attr-defined]
        assert found == expected
        assert is_idle(drafting)
        assert drafting.stats.accepted_per_verification > 0.85


@pytest.mark.parametrize("kind", FORCED)
def test_greedy_tokens_after_trees_are_those_without_drafts(
    kind: str, trained: tuple[Engine, list[Output]]
) -> None:
    engine, expected = trained
    trees = Trees(expected, FORCED[kind], vocab_size=3072)
    options = replace(engine.options, draft=trees)
    folder = CHECKPOINTS / "kjv-qwen3-next"
    with Engine(folder, runtime=switchrail.Runtime(), device="cpu", options=options) as drafting:
        found = drafting.generate([output.prompt for output in expected], engine.params)  # type: ignore[attr-defined]
        assert found == expected
        assert is_idle(drafting)
        stats = drafting.stats
    assert stats.accepted_tokens == sum(right for right, _ in trees.steps)
    assert stats.drafted_tokens == sum(count for _, count in trees.steps) > 200
    assert (stats.accepted_tokens == 0) == (kind == "none")


def use_samples(
    engine: Engine,
    kind: str,
    params: Iterable[SamplingParams],
    expected: Iterable[Output],
    make: type[Oracle] = Oracle,
) -> Oracle:
    """Make an engine use an oracle, which drafts the expected outputs of each request's samples."""
    oracle = make([], FORCED[kind])
    outputs = iter(expected)
    for param in params:
        for sample in param.samples():
            oracle.expect(sample.seed, next(outputs))
    use(engine, oracle)
    return oracle


@pytest.fixture(scope="module")
def roomy(checkpoint: Path) -> Iterator[Engine]:
    """An engine without drafts, with more pages than a request needs."""
    with Engine(checkpoint, runtime=switchrail.Runtime(), device="cpu", options=OPTIONS) as engine:
        yield engine


@pytest.fixture(scope="module")
def drafting(checkpoint: Path) -> Iterator[Engine]:
    """An engine for tests that replace its drafts and leave it idle."""
    with Engine(checkpoint, runtime=switchrail.Runtime(), device="cpu", options=DRAFTED) as engine:
        yield engine


@pytest.fixture(scope="module")
def ended(roomy: Engine) -> tuple[list[list[int]], list[SamplingParams], list[Output]]:
    """Requests that end by length, token or text, some with several samples, and their outputs."""
    prompts, params = make_prompts(24), make_params(24)
    for number, (prompt, param) in enumerate(zip(prompts, params, strict=True)):
        (first, *_) = roomy.generate([prompt], param)
        middle = first.tokens[len(first.tokens) // 2]
        if number % 3 == 1:
            params[number] = replace(param, stop_token_ids=(middle,))
        elif number % 3 == 2 and len(first.text) > 2:
            params[number] = replace(param, stop=(first.text[len(first.text) // 2],))
    return prompts, params, roomy.generate(prompts, params)


@pytest.mark.parametrize("kind", FORCED)
def test_all_ways_to_end_and_to_sample(kind: str, drafting: Engine, ended: Any) -> None:
    """With drafts, outputs end by length, token or text where they end without drafts."""
    prompts, params, expected = ended
    oracle = use_samples(drafting, kind, params, expected)
    assert drafting.generate(prompts, params) == expected
    assert {"stop", "length"} <= {output.finish_reason for output in expected}
    assert len(oracle.steps) > 10
    assert is_idle(drafting)


def test_a_step_has_a_row_per_draft_and_one_more(make_engine: Make, plain_engine: Any) -> None:
    """A verified sequence has one row more than drafted tokens. No token runs twice."""
    prompts = make_prompts(12)
    expected = plain_engine(OPTIONS).generate(prompts, FREE)
    engine = make_engine(options=DRAFTED)
    oracle = use(engine, Oracle(expected, FORCED["random"]))
    build, rows, phases = engine._runner.builder.build, 0, set()

    def counting(*given: Any, **named: Any) -> Any:
        nonlocal rows
        step = build(*given, **named)
        rows += step.input_ids.shape[1]
        phases.update(part.phase for part in step.parts)
        return step

    engine._runner.builder.build = counting  # type: ignore[method-assign]
    assert engine.generate(prompts, FREE) == expected
    stats = engine.stats
    assert phases == {"prefill", "decode", "verify"}
    steps = sum(len(output.tokens) - 1 for output in expected) - stats.accepted_tokens
    assert rows == sum(map(len, prompts)) + steps + stats.drafted_tokens
    assert isinstance(oracle, Oracle)
    assert stats.verifications == len(oracle.steps)
    assert stats.accepted_per_verification == stats.accepted_tokens / stats.verifications
    assert stats.decode_tokens == sum(len(output.tokens) - 1 for output in expected)


class Repeats(Drafts):
    """Proposes as many tokens as allowed for tasks that `wanted` selects, and none for others.

    Records each task's number of tokens and its limit.
    """

    def __init__(self, wanted: Callable[[Task], bool] = lambda task: True) -> None:
        self.wanted = wanted
        self.limits: list[tuple[int, int]] = []

    def propose(self, tasks: Any, limits: Any) -> Drafted:
        self.limits += [(len(task.tokens), limit) for task, limit in zip(tasks, limits, strict=True)]
        return Drafted(
            [[7] * limit if self.wanted(task) else () for task, limit in zip(tasks, limits, strict=True)]
        )


@pytest.mark.parametrize("prompt", [1, 3, 4, 5, 40])
@pytest.mark.parametrize("new", [1, 2, 3, 9])
def test_drafts_end_with_the_length_and_the_last_page(
    prompt: int, new: int, make_engine: Make, roomy: Engine
) -> None:
    """No token is drafted beyond the request's length or its last page.

    The pool has exactly the pages that the request needs; the last token has no key.
    """
    ids, params = list(range(prompt)), SamplingParams(max_new_tokens=new, ignore_eos=True)
    pages = -(-(prompt + new - 1) // 4)
    options = {**DRAFTED, "max_sequences": 1, "num_pages": pages + 1, "max_length": prompt + new}
    options |= {"max_tokens_per_step": 36}
    expected = roomy.generate([ids], params)
    engine = make_engine(options=options)
    for drafts in (Oracle(expected, FORCED["all"], ragged=False), Repeats()):
        use(engine, drafts)
        assert engine.generate([ids], params) == expected
        if isinstance(drafts, Repeats):
            assert all(limit == min(4, new - given - 1) for given, limit in drafts.limits)
        assert is_idle(engine)


class Turns(Drafts):
    """Proposes for every second sequence in one step, and for the other sequences in the next step."""

    def __init__(self, drafts: Drafts, turn: int) -> None:
        self.drafts = drafts
        self.turn = turn

    def propose(self, tasks: Any, limits: Any) -> Drafted:
        self.turn += 1
        allowed = [limit * ((number + self.turn) % 2) for number, limit in enumerate(limits)]
        return self.drafts.propose(tasks, allowed)


@pytest.mark.parametrize("turn", [0, 1])
def test_requests_without_drafts_beside_and_after_others(
    turn: int, drafting: Engine, plain_engine: Any
) -> None:
    prompts = [[7] * 6, [3, 1, 2], [9] * 11]
    expected = plain_engine(OPTIONS).generate(prompts, FREE)
    use(drafting, Turns(Oracle(expected, FORCED["all"], ragged=False), turn))
    first = drafting.stats.verifications
    assert drafting.generate(prompts, FREE) == expected
    use(drafting, Repeats(lambda task: False))
    before = drafting.stats.verifications
    assert drafting.generate(prompts, FREE) == expected
    assert drafting.stats.verifications == before > first


def test_tokens_after_an_end_are_not_counted(make_engine: Make, plain_engine: Any) -> None:
    (plain,) = plain_engine(OPTIONS).generate([[5, 6]], FREE)
    stop = plain.tokens[3]
    params = SamplingParams(max_new_tokens=20, ignore_eos=True, stop_token_ids=(stop,))
    (ended,) = plain_engine(OPTIONS).generate([[5, 6]], params)
    assert ended.tokens == plain.tokens[: len(ended.tokens)]
    engine = make_engine(options=DRAFTED)
    use(engine, Oracle([plain], FORCED["all"], ragged=False))
    assert engine.generate([[5, 6]], params) == [ended]
    assert engine.stats.drafted_tokens == 4
    assert engine.stats.accepted_tokens == engine.stats.decode_tokens == len(ended.tokens) - 1 == 3


def test_a_stop_in_an_accepted_run_comes_before_the_length(make_engine: Make, plain_engine: Any) -> None:
    """A stop token that is also the last possible one ends the request as a stop."""
    (plain,) = plain_engine(OPTIONS).generate([[5, 6]], FREE)
    last = next(n for n in range(2, 6) if plain.tokens[n] not in plain.tokens[:n])
    params = SamplingParams(max_new_tokens=last + 1, ignore_eos=True, stop_token_ids=(plain.tokens[last],))
    (ended,) = plain_engine(OPTIONS).generate([[5, 6]], params)
    assert (len(ended.tokens), ended.finish_reason) == (last + 1, "stop")
    engine = make_engine(options=DRAFTED)
    use(engine, Oracle([plain], FORCED["all"], ragged=False))
    assert engine.generate([[5, 6]], params) == [ended]
    assert engine.stats.accepted_tokens > 0


def end_by_text(engine: Engine, plain: Output) -> tuple[SamplingParams, Output]:
    """Parameters with a stop string that ends `plain` in its first verified drafts, and the new output."""
    for letter in dict.fromkeys(plain.text):
        params = replace(FREE, stop=(letter,))
        (ended,) = engine.generate([plain.prompt_tokens], params)
        if len(ended.tokens) in (3, 4):
            return params, ended
    raise AssertionError(f"no letter of {plain.text!r} ends inside a run")


@pytest.mark.parametrize("is_last", [False, True])
def test_a_stop_string_in_an_accepted_run_ends_there(
    is_last: bool, make_engine: Make, plain_engine: Any
) -> None:
    """Tokens after a stop string are not counted. A stop string at the last token is still a stop."""
    (plain,) = plain_engine(OPTIONS).generate([[5, 6]], FREE)
    params, ended = end_by_text(plain_engine(OPTIONS), plain)
    assert ended.tokens == plain.tokens[: len(ended.tokens)]
    if is_last:
        params = replace(params, max_new_tokens=len(ended.tokens))
    engine = make_engine(options=DRAFTED)
    use(engine, Oracle([plain], FORCED["all"], ragged=False))
    assert engine.generate([[5, 6]], params) == [ended]
    assert ended.finish_reason == "stop"
    given, stats = len(ended.tokens) - 1, engine.stats
    assert stats.decode_tokens == given
    assert (stats.drafted_tokens, stats.accepted_tokens) == ((given - 1,) * 2 if is_last else (4, given))
    assert is_idle(engine)


@pytest.mark.parametrize("end", ["token", "text", "length"])
def test_only_delivered_tokens_become_keys(end: str, make_engine: Make, plain_engine: Any) -> None:
    """A sequence's length counts delivered tokens only.

    The requests run one after the other, in the same slot and pages. So each would be wrong if it read
    accepted tokens that an earlier request had not delivered.
    """
    prompts = [[5, 6], [5, 6, 7], [9] * 5, [5, 6]]
    plain = plain_engine(OPTIONS).generate(prompts, FREE)
    params = {
        "token": replace(FREE, stop_token_ids=(plain[0].tokens[2],)),
        "text": end_by_text(plain_engine(OPTIONS), plain[0])[0],
        "length": replace(FREE, max_new_tokens=4),
    }[end]
    expected = [plain_engine(OPTIONS).generate([prompt], params)[0] for prompt in prompts]
    assert len(expected[0].tokens) < 5
    engine = make_engine(options={**DRAFTED, "max_sequences": 1, "num_pages": 7, "max_length": 25})
    use(engine, Oracle(plain, FORCED["all"], ragged=False))
    build, used = engine._runner.builder.build, dict[Task, set[int]]()

    def checking(schedule: Any, *given: Any, **named: Any) -> Any:
        for task in schedule.decode:
            assert task.length == len(task.ids) + len(task.tokens) - 1
        for task, _ in schedule.prefill:
            assert task.length == 0
        for task in schedule.tasks:
            used.setdefault(task, set()).update(task.pages)
        return build(schedule, *given, **named)

    engine._runner.builder.build = checking  # type: ignore[method-assign]
    for prompt, output in zip(prompts, expected, strict=True):
        assert engine.generate([prompt], params) == [output]
        assert is_idle(engine)
    first, *others = used.values()
    assert len(others) == 3
    assert all(first & pages for pages in others)
    assert engine.stats.accepted_tokens > 0


def test_sequences_reordered_between_verify_and_commit(
    drafting: Engine, plain_engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit belongs to the rows that were verified, whatever happens to the list of sequences."""
    prompts = make_prompts(12)
    expected = plain_engine(OPTIONS).generate(prompts, FREE)
    use(drafting, Oracle(expected, FORCED["random"]))
    choose, live = core.choose_rows, drafting._core.sequences.live

    def reordering(*given: Any) -> Any:
        for task in list(live)[:-1]:
            live[task] = live.pop(task)
        return choose(*given)

    monkeypatch.setattr(core, "choose_rows", reordering)
    assert drafting.generate(prompts, FREE) == expected
    assert is_idle(drafting)


def test_a_cancel_between_steps_frees_everything(drafting: Engine) -> None:
    use(drafting, Repeats())
    requests = [drafting.submit(prompt, FREE) for prompt in make_prompts(9)]
    while drafting.busy:
        drafting.step()
        live = [request for request in requests if request.finish_reason is None]
        if live:
            drafting.cancel(live[len(live) // 2])
    assert is_idle(drafting)


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (Drafted([[1]]), "proposed Drafted.* expected a Drafted with tokens for 2 sequences"),
        ([[1], [2]], "expected a Drafted with tokens for 2 sequences"),
        (Drafted([[1], [320]]), r"proposed \[320\], expected at most 4 tokens from 0 to 319"),
        (Drafted([[1], [-1]]), r"proposed \[-1\], expected"),
        (Drafted([[1], np.array([320])]), r"320.*expected at most 4 tokens from 0 to 319"),  # type: ignore[list-item]
        (Drafted([[1] * 5, []]), "expected at most 4 tokens"),
        (
            Drafted([torch.tensor([1]), torch.tensor([2])], table=torch.ones(2, 1, dtype=torch.int64)),
            r"proposed a table of shape \(2, 1\), expected \(2, 4\)",
        ),
    ],
)
def test_a_wrong_proposal_ends_the_requests_of_its_step(found: Any, text: str, drafting: Engine) -> None:
    class Wrong(Drafts):
        def propose(self, tasks: Any, limits: Any) -> Any:
            return found

    use(drafting, Wrong())
    with pytest.raises(EngineError, match=text):
        drafting.generate([[1, 2], [3]], FREE)
    assert is_idle(drafting)
    use(drafting, NgramDrafts())
    assert drafting.generate([[1, 2]], FREE)[0].finish_reason == "length"


class Wrong(Drafts):
    are_trees = True

    def __init__(self, *found: Any) -> None:
        self.found = found

    def propose(self, tasks: Any, limits: Any) -> Drafted:
        return Drafted(*self.found)


@pytest.mark.parametrize(
    ("parents", "text"),
    [
        ([[-1, 0]], "parents for 1 sequences, expected 2"),
        ([[-1, 1], []], r"the parents \[-1, 1\] for 2 tokens"),
        ([[-1, -2], []], r"the parents \[-1, -2\] for 2 tokens"),
        ([[-1], []], r"the parents \[-1\] for 2 tokens"),
        ([[-1, -1], []], r"\[7, 7\] in which two tokens with the same parent are equal; expected different"),
    ],
)
def test_wrong_trees(parents: Any, text: str, make_engine: Make) -> None:
    engine = make_engine(options={**DRAFTED, "draft": Wrong([[7, 7], []], None, parents)})
    with pytest.raises(EngineError, match=text):
        engine.generate([[1, 2], [3]], FREE)
    assert is_idle(engine)
    engine._core.drafts.are_trees = False  # type: ignore[union-attr,misc]
    with pytest.raises(EngineError, match="valid: None, unless its `are_trees` is True"):
        engine.generate([[1, 2], [3]], FREE)


def test_options_of_drafts() -> None:
    assert EngineOptions(draft="ngram").draft_tokens == 4
    assert EngineOptions(draft=NgramDrafts(), max_sequences=2, max_tokens_per_step=10).draft_tokens == 4
    assert (
        EngineOptions.of({"draft": "ngram", "max_tokens_per_step": 20}, {"max_sequences": 32}).max_sequences
        == 4
    )
    with pytest.raises(ConfigError, match=r"at least 10 \(.*for the drafts of all sequences\), got 9"):
        EngineOptions(draft="ngram", max_sequences=2, max_tokens_per_step=9)
    with pytest.raises(ConfigError, match=r"compile must be 'off' with a draft, got 'blocks'"):
        EngineOptions(draft="ngram", compile="blocks")
    with pytest.raises(ConfigError, match="draft_tokens must be an integer of at least 1, got 0"):
        EngineOptions(draft="ngram", draft_tokens=0)
    assert EngineOptions(draft=Path("ngram")).draft == Path("ngram")
    assert EngineOptions(draft="a/b", draft_branches=4).draft_branches == 4
    for wrong in (
        {"draft_branches": 2},
        {"draft": "ngram", "draft_branches": 2},
        {"draft": "a/b", "draft_branches": 5},
    ):
        with pytest.raises(ConfigError, match="draft_branches must be 1; with 'mtp' or a checkpoint"):
            EngineOptions(**wrong)  # type: ignore[arg-type]
    for draft in (7, np.arange(3)):  # comparing an array with a name gives an array
        with pytest.raises(ConfigError, match="draft must be"):
            EngineOptions(draft=draft)  # type: ignore[arg-type]


def test_a_warmup_verifies_as_many_drafts_as_possible(make_engine: Make) -> None:
    engine = make_engine(options={**DRAFTED, "max_sequences": 2, "max_length": 12})
    repeats = Repeats()
    use(engine, repeats)
    assert list(warm_up(engine))
    assert max(limit for _, limit in repeats.limits) == 4


def test_verification_is_planned_only_with_a_draft(make_engine: Make) -> None:
    phases = {phase for _, _, phase, _ in make_engine(options=OPTIONS).plan.table}
    assert phases == {"prefill", "decode"}
    phases = {phase for _, _, phase, _ in make_engine(options=DRAFTED).plan.table}
    assert phases == {"prefill", "decode", "verify"}


def test_steps_without_drafts_are_captured(
    make_engine: Make, plain_engine: Any, captured_runtime: switchrail.Runtime
) -> None:
    prompts = make_prompts(12)
    expected = plain_engine(OPTIONS).generate(prompts, FREE)
    engine = make_engine(
        runtime=captured_runtime,
        device=GraphPlatform(),
        options=DRAFTED,
        backends={"gated_delta.verify": "torch"},  # has no effect on captured steps
    )
    whole = [state for state in engine.graphs if state.kind != "mixed"]
    assert {state.kind for state in whole} == {"decode"}, "no verification can be captured"
    assert not any("verify" in call for state in whole for call in state.backends)
    use(engine, Turns(Oracle(expected, FORCED["random"]), 0))
    seen = count_replays(engine)
    assert engine.generate(prompts, FREE) == expected
    assert {key.kind for key in seen} == {"decode", "mixed"}
    assert engine.stats.verifications > 10


@pytest.fixture(params=["committed", "deferred"])
def verified_runtime(
    captured_runtime: switchrail.Runtime, request: pytest.FixtureRequest
) -> switchrail.Runtime:
    """A runtime with capturable backends for decode and verification, with or without deferred commits."""
    register_capturable(captured_runtime, defers=request.param == "deferred")
    return captured_runtime


@pytest.mark.parametrize("kind", FORCED)
def test_verifications_are_captured(
    kind: str, make_engine: Make, plain_engine: Any, verified_runtime: switchrail.Runtime
) -> None:
    """Verifications are captured whole, with rows of padding in sequences, and with sequences of padding.

    Steps that also have prompts are captured in pieces.
    """
    prompts, params = make_prompts(24), make_params(24)
    expected = plain_engine(OPTIONS).generate(prompts, params)
    engine = make_engine(runtime=verified_runtime, device=GraphPlatform(), options=DRAFTED)
    assert [state.reason for state in engine.graphs if state.kind == "verify"] == [None] * 4
    oracle = use_samples(engine, kind, params, expected)
    seen = count_replays(engine)
    forward = engine._runner.forward
    eager = list[Any]()
    engine._runner.forward = lambda step: (eager.append(step), forward(step))[1]  # type: ignore[method-assign,func-returns-value]
    assert engine.generate(prompts, params) == expected
    assert is_idle(engine)
    assert {key.kind for key in seen} == {"decode", "verify", "mixed"}
    assert len({key.rows for key in seen if key.kind == "verify"}) > 1
    assert all(key.rows % 5 == 0 and key.width == 5 for key in seen if key.kind == "verify")
    assert not eager
    assert len(oracle.steps) > 10


def graphs_of(engine: Engine) -> Graphs:
    graphs = engine._runner.graphs
    assert graphs is not None
    return graphs


class Pauses(Drafts):
    """Proposes the expected tokens, some of them changed, and nothing in every third step."""

    def __init__(self, outputs: list[Output]) -> None:
        self.expected = {output.prompt_tokens: output.tokens for output in outputs}
        self.step = 0

    def propose(self, tasks: Any, limits: Any) -> Drafted:
        self.step += 1
        if self.step % 3 == 0:
            return Drafted([()] * len(tasks))
        found = []
        for number, (task, limit) in enumerate(zip(tasks, limits, strict=True)):
            after = self.expected[tuple(task.ids.tolist())][len(task.tokens) :][:limit]
            right = (self.step + number) % 5
            found.append([token if i < right else (token + 1) % 256 for i, token in enumerate(after)])
        return Drafted(found)


@pytest.mark.parametrize("verified_runtime", ["deferred"], indirect=True)
@pytest.mark.parametrize("case", ["on", "forgotten"])
def test_commits_are_deferred_to_the_next_verification(
    case: str,
    make_engine: Make,
    tmp_path: Path,
    verified_runtime: switchrail.Runtime,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Decodes and steps with prompts between verifications apply the deferred commits of all layers first."""
    commits = list[Any]()
    commit = DeferringDelta.commit
    monkeypatch.setattr(DeferringDelta, "commit", lambda *given: (commits.append(given), commit(*given)))
    prompts = make_prompts(12)
    checkpoint = make_checkpoint(tmp_path, num_hidden_layers=3, layer_types=[LINEAR, LINEAR, FULL])
    expected = make_engine(checkpoint, options=OPTIONS).generate(prompts, FREE)
    drafts = Pauses(expected)
    engine = make_engine(
        checkpoint,
        runtime=verified_runtime,
        device=GraphPlatform(),
        options={**OPTIONS, "draft": drafts},
    )
    assert not commits, "a captured verification has committed"
    (said,) = {one.commits["gated_delta.verify"] for one in engine.graphs if one.kind == "verify"}
    assert said == "committed in the next verification"
    (said,) = {one.commits["short_conv.verify"] for one in engine.graphs if one.kind == "verify"}
    assert said == "committed after each verification: capturable-verify lacks deferred_commit"
    shown = Console(width=300, record=True, file=io.StringIO())
    print_capture(shown, graphs_of(engine)._plan)
    assert "; committed in the next verification" in shown.export_text()
    verifications = graphs_of(engine)._verifications
    assert verifications is not None
    for tensor in engine.pools.state.tensors():
        tensor.fill_(float("nan"))
    kept = [one for commit in verifications._commits for one in commit.args[0][1:]]  # type: ignore[attr-defined]
    assert kept
    assert not any(one.untyped_storage().nbytes() for one in kept), (
        "the tensors still hold the rows of a verification"
    )
    seen = count_replays(engine)
    if case == "forgotten":
        monkeypatch.setattr(verifications, "settle", lambda: None)
    assert (engine.generate(prompts, FREE) == expected) == (case != "forgotten")
    kinds = [key.kind for key in seen]
    assert {("verify", "verify"), ("verify", "decode"), ("verify", "mixed")} <= {*pairwise(kinds)}
    assert engine.stats.accepted_tokens > 50


@pytest.mark.parametrize("verified_runtime", ["deferred"], indirect=True)
def test_a_change_of_hooks_keeps_deferred_commits(
    make_engine: Make, plain_engine: Any, verified_runtime: switchrail.Runtime
) -> None:
    """The next verification applies the commits, after it is captured again."""
    prompts = make_prompts(3)
    expected = plain_engine(OPTIONS).generate(prompts, FREE)
    engine = make_engine(
        runtime=verified_runtime,
        device=GraphPlatform(),
        options={**OPTIONS, "draft": Oracle(expected, FORCED["random"]), "capture": "decode"},
    )
    requests = [engine.submit(prompt, FREE) for prompt in prompts]
    verifications = graphs_of(engine)._verifications
    assert verifications is not None
    changes = 0
    while engine.busy:
        if not verifications._is_settled:
            engine._runner.model.register_forward_hook(lambda *_: None)
            changes += 1
        engine.step()
    assert changes > 5
    assert [request.tokens for request in requests] == [list(output.tokens) for output in expected]


@pytest.mark.parametrize("verified_runtime", ["deferred"], indirect=True)
def test_an_interrupt_leaves_no_deferred_commit_to_another_sequence(
    make_engine: Make,
    plain_engine: Any,
    verified_runtime: switchrail.Runtime,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An interrupt after a verification ends its requests. Deferred commits don't change the sequences that
    get their slots."""
    prompts = make_prompts(12)
    expected = plain_engine(OPTIONS).generate(prompts, FREE)
    drafts = Pauses(expected)
    engine = make_engine(
        runtime=verified_runtime, device=GraphPlatform(), options={**OPTIONS, "draft": drafts}
    )
    captured = graphs_of(engine).captured.items()
    verifications = [one for key, one in captured if key.kind == "verify"]
    accepting = [pieces for one in verifications for pieces in (one.accept, one.choose)]
    replay = Pieces.replay

    def interrupted(pieces: Pieces, *given: Any) -> None:
        replay(pieces, *given)
        if pieces in accepting:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Pieces, "replay", interrupted)
        with pytest.raises(KeyboardInterrupt):
            engine.generate(prompts, FREE)
    drafts.step = 0
    assert engine.generate(prompts, FREE) == expected


@pytest.mark.parametrize("verified_runtime", ["deferred"], indirect=True)
@pytest.mark.parametrize("few", ["capturable-verify", "committing"])
def test_commits_are_not_deferred_to_another_backend(
    few: str,
    make_engine: Make,
    plain_engine: Any,
    verified_runtime: switchrail.Runtime,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If small and large verifications have different backends, commits are not deferred."""
    monkeypatch.setenv("SWITCHRAIL_TIMES", str(tmp_path / "times.json"))
    prompts = make_prompts(12)
    expected = plain_engine(OPTIONS).generate(prompts, FREE)
    features = "cuda_graph", "device_parents"
    verified_runtime.register(
        "committing", CapturableDelta, op="gated_delta", phases=("verify",), features=features, priority=-2
    )
    names = "capturable-verify", "committing"
    samples = [
        {
            "rows": rows,
            "length": 5,
            "nanoseconds": {name: 10 if (name == few) == is_few else 1000 for name in names},
        }
        for rows, is_few in ((5, True), (30, False))
    ]
    known = {"op": "gated_delta", "dtype": "float32", "head_size": 16, "heads": [2, 4], "no_decay": False}
    found = {
        "device": device_of(verified_runtime.find_platform("cpu")),
        "packages": {},
        "measurements": [{**known, "phase": "verify", "samples": samples}],
    }
    write_machine(times_path(), found, {})
    engine = make_engine(
        runtime=verified_runtime, device=GraphPlatform(), options={**OPTIONS, "draft": Pauses(expected)}
    )
    serving = {state.backends["gated_delta.verify"] for state in engine.graphs if state.kind == "verify"}
    assert serving == {*names}
    (said,) = {state.commits["gated_delta.verify"] for state in engine.graphs if state.kind == "verify"}
    assert said.startswith("committed after each verification: ")
    assert said.endswith(" serve gated_delta, depending on the size")
    assert engine.generate(prompts, FREE) == expected


def test_padding_reads_no_other_sequence(
    make_engine: Make, plain_engine: Any, verified_runtime: switchrail.Runtime
) -> None:
    """Captured verifications have rows of padding. Before each run, caches are filled with NaN.

    The sequences fill their last page; after it, the page table has entries of earlier sequences.
    """

    class Few(Drafts):
        limit = 0

        def propose(self, tasks: Any, limits: Any) -> Drafted:
            count = [min(self.limit, most) if number else most for number, most in enumerate(limits)]
            return Drafted([[7] * each for each in count])

    prompts = [[*range(n)] for n in (5, 6, 9, 11)]
    expected = plain_engine(OPTIONS).generate(prompts, FREE)
    drafts = Few()
    engine = make_engine(
        runtime=verified_runtime, device=GraphPlatform(), options={**OPTIONS, "draft": drafts}
    )
    seen = count_replays(engine)
    for drafts.limit in (0, 1, 3):
        engine.generate([[*range(58)]] * 6, replace(FREE, max_new_tokens=2))
        seen.clear()
        for cache in engine.pools.kv["mha"].tensors():
            cache.fill_(float("nan"))
        assert engine.generate(prompts, FREE) == expected, drafts.limit
        assert "verify" in {key.kind for key in seen}


@pytest.mark.parametrize(
    ("where", "verified_runtime"),
    [("eager", "committed"), ("captured", "committed"), ("captured", "deferred")],
    indirect=["verified_runtime"],
)
def test_outputs_with_trees_are_those_without_drafts(
    where: str, make_engine: Make, plain_engine: Any, verified_runtime: switchrail.Runtime
) -> None:
    """Accepted keys move to their positions, and states follow the accepted path.

    Requests end in all ways, greedy or sampled, and some have several samples.
    """
    prompts, params = make_prompts(24), make_params(24)
    expected = plain_engine(OPTIONS).generate(prompts, params)
    given = {"runtime": verified_runtime, "device": GraphPlatform()} if where == "captured" else {}
    engine = make_engine(options={**OPTIONS, "draft": Trees([], FORCED["none"])}, **given)
    seen = count_replays(engine) if given else []
    for kind in FORCED:
        trees = use_samples(engine, kind, params, expected, Trees)
        seen.clear()
        before = engine.stats
        assert engine.generate(prompts, params) == expected, kind
        assert is_idle(engine)
        assert len(trees.steps) > 10
        assert engine.stats.drafted_tokens - before.drafted_tokens == sum(count for _, count in trees.steps)
        if given:
            assert "verify" in {key.kind for key in seen}


def test_the_example_of_the_document(capsys: pytest.CaptureFixture[str]) -> None:
    document = (Path(__file__).parents[2] / "docs/drafts.md").read_text("utf-8")
    ((program, printed),) = re.findall(r"^```python\n(.*?)^```\n```text\n(.*?)^```", document, re.M | re.S)
    with isolated():
        exec(compile(program, "the example", "exec"), {"__name__": "example"})
    assert capsys.readouterr().out == printed
