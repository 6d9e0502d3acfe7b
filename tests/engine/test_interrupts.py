"""Exceptions and cancels in the midst of the engine's own code damage nothing.

Except in `Capturing`, the model is a stand-in whose tokens depend on everything that the pools have for a
sequence, so that a wrong page, slot, length or state shows in the next tokens.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import switchrail
import torch
from switchrail import dispatch, pools
from switchrail import engine as package
from switchrail.engine import Engine, Output, Request, SamplingParams
from switchrail.engine.drafts import Drafted, Drafts
from switchrail.engine.task import Task
from switchrail.ops.gated_delta.torch import TorchGatedDelta
from switchrail.ops.short_conv.torch import TorchShortConv

from . import places
from .capturable import CAPTURABLE, register_capturable
from .places import Place, Visiting, name, recorded
from .test_graphs import GraphPlatform

# files with code that runs only while an engine is created, or that changes no state
OTHERS = {
    "checkpoint",
    "checks",
    "dtypes",
    "options",
    "routes",
    "families",
    "binding",
    "contract",
    "__init__",
}
FOLDERS = [Path(module.__file__).parent for module in (package, pools, dispatch)]
CAPTURED = [
    Path(package.__file__).parent / f"{each}.py"
    for each in ("verifications", "verify_inputs", "accept", "deferred", "pieces", "graphs")
]
"""The code of captured verifications and their commits."""
DRAFT_MODEL = [Path(package.__file__).parent / "draft_model.py"]
FILES = [path for folder in FOLDERS for path in folder.rglob("*.py") if path.stem not in OTHERS]
INTERRUPT_EVERY = int(os.environ.get("INTERRUPT_EVERY", "10"))
"""Each place is interrupted in one of its passes. Of all other passes, at least one in this many is
interrupted.

`make soak` interrupts all passes.
"""
PAGE = 4
SMALL = {"max_sequences": 3, "num_pages": 14, "page_size": PAGE, "max_tokens_per_step": 12}
FREE = SamplingParams(max_new_tokens=4, ignore_eos=True)
SAMPLED = SamplingParams(max_new_tokens=3, ignore_eos=True, temperature=1.0, seed=3)
PROMPTS = [[7] * 6, [3, 1, 2], [9] * 11, [5]]
LONGER = SamplingParams(max_new_tokens=7, ignore_eos=True)
AFTERWARDS = PROMPTS[: SMALL["max_sequences"]], SamplingParams(max_new_tokens=2, ignore_eos=True)
"""Requests that would show damage: together they need all slots, and more rows than a step has."""
VERIFIED = [PROMPTS[0], PROMPTS[1], PROMPTS[3]], SamplingParams(max_new_tokens=5, ignore_eos=True)
"""Requests that would show damage to captured verifications: all slots are verified together, twice, and the
second verification applies the commits that the first one deferred."""


class Broken(Exception):
    pass


class UnplannedDelta(TorchGatedDelta):
    """Plans only verifications, whose commits need a plan. The stand-in model uses no plans."""

    def plan(self, phase: Any, batch: Any, bounds: Any = None) -> object:
        return super().plan(phase, batch, bounds) if phase == "verify" else None


class UnplannedConv(TorchShortConv):
    def plan(self, phase: Any, batch: Any, bounds: Any = None) -> object:
        return None


class Model:
    """A stand-in model: the next token depends on the tokens in the pages and on their sum in the slot."""

    def __init__(self, engine: Engine) -> None:
        self.fail = False
        self.runner = engine._runner

    def __call__(
        self, *, input_ids: torch.Tensor, logits_to_keep: torch.Tensor, **_: object
    ) -> SimpleNamespace:
        running = self.runner.dispatcher._step
        running.left.clear()  # type: ignore[union-attr]
        if self.fail:
            self.fail = False
            raise Broken
        step, pools = self.runner.running.step, self.runner.pools
        ids = input_ids[0]
        (keys, _) = pools.kv["mha"].caches(1)
        rows = keys.flatten(0, 1)
        rows[step.kv_rows, 0, 0] = ids.float()
        sums = pools.state.states[0][:, 0, 0, 0]
        logits = torch.zeros(1, len(ids), 320)

        def choose(row: int, part: dispatch.Part, number: int, length: int, total: torch.Tensor) -> None:
            positions = torch.arange(length)
            pages = part.pages.page_table[number].long()
            seen = rows[pages[positions // PAGE] * PAGE + positions % PAGE, 0, 0]
            logits[0, row, int((seen * (positions + 1)).sum() + 7 * total) % 256] = 3.0

        for part in step.parts:
            end = part.rows.start
            drafted = []  # the sums after each row of a verification
            for number, length in enumerate(part.pages.kv_seqlens):
                begin, end = end, end + part.pages.seqlens[number]
                slot = part.states.read_slots[number]
                if not part.states.has_initial_state[number]:
                    sums[slot] = 0
                if part.phase == "verify":
                    after = sums[slot] + ids[begin:end].cumsum(0)
                    for row in range(begin, end):
                        choose(row, part, number, length - end + row + 1, after[row - begin])
                    drafted.append(after)
                else:
                    sums[slot] += ids[begin:end].sum()
                    choose(end - 1, part, number, length, sums[slot])
            if drafted:
                self.keep(running, part, torch.cat([sums[part.states.read_slots], *drafted]))
        return SimpleNamespace(logits=logits[:, logits_to_keep])

    def keep(self, running: Any, part: dispatch.Part, sums: torch.Tensor) -> None:
        """Record the sums for layer 0's commit. Until then, the slot has the sum before the rows."""
        users = enumerate(running.prepared.users)
        index = next(i for i, user in users if (user.op, user.part) == ("gated_delta", 0))
        layers = self.runner.dispatcher._layers.items()
        layer = next(layer for layer, place in layers if place == (0, "gated_delta"))
        record = torch.zeros(len(sums), *self.runner.pools.state.states[0].shape[1:])
        record[:, 0, 0, 0] = sums
        running.keep(index, (layer,), record)


class Guesses(Drafts):
    """Proposes the expected greedy tokens. After an odd number of tokens, the last one proposed is wrong."""

    def __init__(self, expected: list[Output]) -> None:
        self.expected = {output.prompt_tokens: output.tokens for output in expected}

    def propose(self, tasks: Sequence[Task], limits: Sequence[int]) -> Drafted:
        found = []
        for task, limit in zip(tasks, limits, strict=True):
            count = len(task.tokens)
            right = list(self.expected[tuple(task.ids.tolist())][count : count + limit])
            if right and count % 2:
                right[-1] = (right[-1] + 1) % 256
            found.append(right)
        return Drafted(found)


class Subject:
    """An engine with the stand-in model, which is created again after it was damaged.

    After `read_later(1)`, the engine reads a step's tokens after the next launch, as on an asynchronous
    device.
    """

    afterwards = AFTERWARDS

    def __init__(
        self, checkpoint: Path, draft: Drafts | str | None = None, params: SamplingParams = FREE
    ) -> None:
        """Create the engine, possibly with a draft, and with other parameters for its greedy requests."""
        self._checkpoint = checkpoint
        self._options: dict[str, Any] = dict(SMALL)
        if draft is not None:
            self._options |= {"draft_tokens": 2, "draft": draft}
        self.ahead = 0
        self.renew()
        self.free = params
        self.expected = self.engine.generate(PROMPTS, self.free)
        self.expected_afterwards = self.engine.generate(*self.afterwards)

    def read_later(self, ahead: int) -> None:
        self.ahead = self.engine._core._ahead = ahead

    def renew(self) -> None:
        runtime = switchrail.Runtime()
        if not isinstance(self._options.get("draft"), str):  # a draft model runs, so it needs plans
            for op, backend in (("gated_delta", UnplannedDelta), ("short_conv", UnplannedConv)):
                runtime.register("unplanned", backend, op=op, priority=1)
        self.engine = Engine(self._checkpoint, runtime=runtime, device="cpu", options=self._options)
        self.engine._runner.model = self.model = Model(self.engine)  # type: ignore[assignment]
        self.engine._core._ahead = self.ahead

    def find_damage(self, held: list[Request]) -> str | None:
        """Cancel all remaining requests. Return a description of the damage, or None."""
        lost = self.find_loss(held)
        if lost:
            return lost
        self.engine.step()
        same = self.engine.generate(*self.afterwards) == self.expected_afterwards
        return None if same else "the next tokens are wrong"

    def find_loss(self, held: list[Request]) -> str | None:
        """Like `find_damage`, but runs no requests that would show wrong tokens."""
        engine = self.engine
        self.model.fail = False
        for request in held:
            engine.cancel(request)
        steps = engine.stats.steps
        engine.step()
        if engine.stats.steps != steps or engine.busy:
            return "the engine runs requests that were cancelled or lost"
        for free in (engine.pools.pages, engine.pools.slots):
            if sorted(free._free) != list(range(1, free.capacity + 1)):
                return "pages or slots are lost"
        return None


class Capturing(Subject):
    """An engine with the real model, whose verifications are captured and defer their commits.

    The graphs of its platform repeat torch's operations on the CPU.
    """

    afterwards = VERIFIED

    def renew(self) -> None:
        runtime = switchrail.Runtime()
        platform = GraphPlatform()
        runtime.use_platform(platform)
        for op, backend in CAPTURABLE.items():
            features = ("cuda_graph",)
            runtime.register("capturable", backend, op=op, phases=("decode",), features=features, priority=-1)
        register_capturable(runtime, defers=True)
        self.engine = Engine(self._checkpoint, runtime=runtime, device=platform, options=self._options)
        self.model = SimpleNamespace(fail=False)  # type: ignore[assignment]


Scenario = Callable[[Subject, list[Request]], None]


def run_on(engine: Engine) -> None:
    for _ in range(60):
        if not engine.busy:
            return
        engine.step()
    raise AssertionError("the engine is still busy after 60 steps")


def generating(subject: Subject, held: list[Request]) -> None:
    subject.engine.generate(PROMPTS, [subject.free, SAMPLED, subject.free, SAMPLED])


def stepping(subject: Subject, held: list[Request]) -> None:
    engine = subject.engine
    held += [engine.submit(PROMPTS[0], subject.free)]
    held += [engine.submit(PROMPTS[2], SAMPLED)]
    engine.step()
    held += [engine.submit(PROMPTS[1], subject.free)]
    held += [engine.submit(PROMPTS[3], subject.free)]
    engine.cancel(held[0])
    engine.cancel(held[3])
    run_on(engine)


def leaving(subject: Subject, held: list[Request]) -> None:
    with closing(subject.engine.stream(PROMPTS, subject.free)) as events:
        for _ in range(3):
            next(events)


def failing(subject: Subject, held: list[Request]) -> None:
    engine = subject.engine
    held += [engine.submit(PROMPTS[0], subject.free)]
    engine.step()
    subject.model.fail = True
    with suppress(Broken):
        engine.generate(PROMPTS[1:], subject.free)
    run_on(engine)


SCENARIOS: list[Scenario] = [generating, stepping, leaving, failing]


@pytest.fixture(scope="session")
def checkpoint(small_checkpoint: Path) -> Path:
    return small_checkpoint


@pytest.fixture(scope="module")
def subject(checkpoint: Path) -> Iterator[Subject]:
    subject = Subject(checkpoint)
    subject.read_later(1)
    yield subject
    subject.engine.close()


@pytest.fixture(scope="module")
def drafting(checkpoint: Path, subject: Subject) -> Iterator[Subject]:
    """An engine with drafts, whose tokens must equal those of the engine without drafts."""
    drafting = Subject(checkpoint, Guesses(subject.expected))
    assert drafting.expected == subject.expected
    stats = drafting.engine.stats
    assert stats.accepted_tokens > 3
    assert stats.drafted_tokens > stats.accepted_tokens + 3
    yield drafting
    drafting.engine.close()


@pytest.fixture(scope="module")
def capturing(checkpoint: Path) -> Iterator[Subject]:
    """An engine whose verifications are captured, and defer their commits."""
    with Engine(checkpoint, runtime=switchrail.Runtime(), device="cpu", options=SMALL) as plain:
        expected = plain.generate(PROMPTS, LONGER)
        afterwards = plain.generate(*VERIFIED)
    capturing = Capturing(checkpoint, Guesses(expected), LONGER)
    assert capturing.expected == expected
    assert capturing.expected_afterwards == afterwards
    stats = capturing.engine.stats
    assert stats.accepted_tokens > 3
    assert stats.drafted_tokens > stats.accepted_tokens + 3
    kinds = {(state.kind, state.reason) for state in capturing.engine.graphs}
    assert ("verify", None) in kinds
    yield capturing
    capturing.engine.close()


def places_of(subject: Subject, scenario: Scenario, files: list[Path] = FILES) -> list[Place]:
    for _ in range(2):
        places = recorded(files, lambda: scenario(subject, []))
    assert subject.find_damage([]) is None
    return places


def chosen(places: list[tuple[Scenario, Place]], least: int) -> list[tuple[Scenario, Place]]:
    """One pass of each place, and one in `INTERRUPT_EVERY` of the others, but at least `least` in all."""
    first = {place[:2]: (scenario, place) for scenario, place in reversed(places)}
    again = [each for each in places if first[each[1][:2]] != each]
    every = min(INTERRUPT_EVERY, max(len(again) // max(least - len(first), 1), 1))
    return [*first.values(), *again[::every]]


def interrupt(subject: Subject, scenario: Scenario, place: Place) -> str | None:
    """Interrupt a run at a place. Return the damage that is found afterwards."""
    signal = KeyboardInterrupt()
    held: list[Request] = []

    def action() -> None:
        raise signal

    caught: BaseException | None = None
    with Visiting(place, action):
        try:
            scenario(subject, held)
        except BaseException as error:
            caught = error
    if caught is not signal:
        return f"the caller gets {caught!r}"
    return subject.find_damage(held)


@pytest.mark.parametrize(
    ("ahead", "scenarios", "least"), [(1, SCENARIOS, 944), (0, [stepping], 200)], ids=["later", "at-once"]
)
def test_an_interrupt_at_any_place_leaves_the_engine_consistent(
    subject: Subject, ahead: int, scenarios: list[Scenario], least: int
) -> None:
    """An interrupt at any place leaves the engine consistent.

    The engine reads a step's tokens after the next launch, or immediately.
    """
    subject.read_later(ahead)
    interrupt_everywhere(subject, scenarios, least)


def test_an_interrupt_leaves_an_engine_with_drafts_consistent(drafting: Subject) -> None:
    """An interrupt while tokens are proposed, verified or committed leaves the engine consistent."""
    passed = interrupt_everywhere(drafting, [generating, stepping], 400)
    steps = {"proposed", "_draft", "choose_rows", "accept", "follow", "commit", "_keep"}
    assert steps <= {place[0].co_name for place in passed}


def test_an_interrupt_leaves_captured_verifications_and_commits_consistent(
    capturing: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupts strike the first verifications, and later ones, which apply deferred commits."""
    monkeypatch.setattr(places, "OFTEN", 3)
    passed = interrupt_everywhere(capturing, [generating, stepping], 197, CAPTURED)
    steps = {"run", "fill", "replay", "_accept_rows", "_replay", "settle"}
    assert steps <= {place[0].co_name for place in passed}
    assert {place[2] for place in passed} == {0, 1, 2}


def test_an_interrupt_while_a_draft_model_runs(checkpoint: Path, subject: Subject) -> None:
    """An interrupt while a real draft model proposes leaves the engine consistent. The stand-in verifies."""
    drafting = Subject(checkpoint, str(checkpoint))
    assert drafting.expected == subject.expected
    for _ in range(2):
        places = recorded(DRAFT_MODEL, lambda: stepping(drafting, []))
    assert {"propose", "_extend", "_decode", "_choose"} <= {place[0].co_name for place in places}
    wrong = []
    for place in places:
        problem = interrupt(drafting, stepping, place)
        if problem:
            wrong.append(f"{name(place)}: {problem}")
            drafting.renew()
    drafting.engine.close()
    assert not wrong, f"{len(wrong)} of {len(places)}:\n" + "\n".join(wrong)


def interrupt_everywhere(
    subject: Subject, scenarios: list[Scenario], least: int, files: list[Path] = FILES
) -> list[Place]:
    """Interrupt runs of the scenarios at their places in some files. Return these places."""
    places = [(scenario, place) for scenario in scenarios for place in places_of(subject, scenario, files)]
    print(f"\n{len(places)} places, {len({place[:2] for _, place in places})} different ones")
    places = chosen(places, least)
    assert len(places) >= least
    wrong = []
    for scenario, place in places:
        problem = interrupt(subject, scenario, place)
        if problem:
            wrong.append(f"{scenario.__name__}, {name(place)}: {problem}")
            subject.renew()
    assert not wrong, f"{len(wrong)} of {len(places)}:\n" + "\n".join(wrong)
    return [place for _, place in places]


def cancel_in(subject: Subject, place: Place) -> str | None:
    """Run three requests to their ends. At `place`, cancel the second one and close a stream.

    Return a description of wrong tokens, or None. Wrong tokens can also show damage by an earlier run:
    together the requests and the stream need all slots, and more rows than a step has.
    """
    engine, requests, streamed, cancel = started(subject)
    with Visiting(place, cancel):
        run_on(engine)
    run_on(engine)
    ran = requests[0].tokens, streamed.tokens, requests[1].tokens, requests[2].tokens
    for tokens, expected, is_cancelled in zip(ran, subject.expected, (0, 1, 1, 0), strict=True):
        if tuple(tokens) != expected.tokens[: len(tokens) if is_cancelled else None]:
            return f"{ran}, expected {[output.tokens for output in subject.expected]}"
    if requests[1].finish_reason not in ("cancelled", "length"):
        return f"the cancelled request ended with {requests[1].finish_reason}"
    return subject.find_loss([])


def started(subject: Subject) -> tuple[Engine, list[Request], Task, Callable[[], None]]:
    """Start three requests and a stream. Return also a function that cancels the second request and closes
    the stream."""
    engine = subject.engine
    stream = engine.stream([PROMPTS[1]], subject.free)
    next(stream)
    (streamed,) = engine._core.tasks
    requests = [engine.submit(prompt, subject.free) for prompt in PROMPTS[:1] + PROMPTS[2:]]

    def cancel() -> None:
        engine.cancel(requests[1])
        stream.close()

    return engine, requests, streamed, cancel


def passed(subject: Subject, files: list[Path]) -> list[Place]:
    """The places that the requests of `cancel_in` pass."""
    for _ in range(2):
        engine, *_ = started(subject)
        places = recorded(files, partial(run_on, engine))
    return places


@pytest.mark.parametrize("kind", ["subject", "drafting", "capturing"])
def test_a_cancel_at_any_place_does_not_damage_other_requests(
    kind: str, subject: Subject, drafting: Subject, capturing: Subject
) -> None:
    """A cancel at any place doesn't damage the running step of other requests.

    In real programs, the garbage collector or a signal handler may close a stream within a step. With drafts,
    the test uses all places that are passed only with drafts, and one in `INTERRUPT_EVERY` of the others.
    """
    plain = subject
    subject = {"subject": subject, "drafting": drafting, "capturing": capturing}[kind]
    files = CAPTURED if kind == "capturing" else FILES
    places = passed(subject, files)
    assert len(places) > (40 if kind == "capturing" else 200)
    if kind == "drafting":
        known = {place[:2] for place in passed(plain, files)}
        again = [place for place in places if place[:2] in known]
        places = [place for place in places if place[:2] not in known] + again[::INTERRUPT_EVERY]
        assert len(places) > 100
    wrong = []
    for number, place in enumerate(places):
        found: Any = None
        try:
            found = cancel_in(subject, place)
        except Exception as error:
            found = error
        if not found and number == len(places) - 1:
            found = subject.find_damage([])
        if found:
            wrong.append(f"{name(place)}, or the place before it: {found!r}")
            subject.renew()
    assert not wrong, f"{len(wrong)} of {len(places)}:\n" + "\n".join(wrong)
