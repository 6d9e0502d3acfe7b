"""The engine's step loop, without locks and without text."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence, Sized
from contextlib import suppress
from dataclasses import replace
from itertools import repeat
from typing import Any

import torch

from switchrail.engine.drafts import Drafted, Drafts, proposed
from switchrail.engine.flight import Flight, Sent, Spare, Verification
from switchrail.engine.options import EngineOptions
from switchrail.engine.runner import Runner
from switchrail.engine.sampling import Choose, choose
from switchrail.engine.scheduler import Schedule, Scheduler
from switchrail.engine.sequences import Sequences
from switchrail.engine.speculation import choose_rows
from switchrail.engine.stats import Stats
from switchrail.engine.task import FinishReason, Task
from switchrail.engine.transfer import sent
from switchrail.errors import EngineError, RequestError
from switchrail.platforms import Hardware


class EngineCore:
    """Runs tasks, one step at a time.

    Only one thread at a time may call `step` and `settle`. Any thread may use `add` and `unwanted` at any
    time, even within a step. An exception such as KeyboardInterrupt leaves the core consistent wherever it is
    raised. The tasks of the unfinished step end, and the next call completes the cleanup.

    Attributes:
        runner: Runs the model. None once the core is closed; then steps fail.
        sequences: The memory of the tasks.
        stats: Counts and times of steps and tokens.
        drafts: Proposes tokens to verify; None without drafts.
        unwanted: Tasks to cancel. Add tasks here; the next call of `settle` or `step` cancels them.
    """

    def __init__(
        self,
        runner: Runner,
        sequences: Sequences[Task],
        options: EngineOptions,
        *,
        hardware: Hardware,
        choose_tokens: Choose = choose,
        drafts: Drafts | None = None,
    ) -> None:
        """Create the core, without tasks.

        Args:
            runner: Runs the model.
            sequences: The memory of the tasks.
            options: The engine's options.
            hardware: The hardware of the model.
            choose_tokens: Chooses tokens.
            drafts: Proposes tokens; None without drafts. With drafts, the tokens of a step are read before
                the next step, because proposals continue these tokens.
        """
        self.runner: Runner | None = runner
        self.sequences = sequences
        self.stats = Stats()
        self.unwanted: deque[Task] = deque()
        self._scheduler = Scheduler(sequences, options, 0 if drafts is None else drafts.ahead)
        self._hardware = hardware
        self._on_stream = hardware.own_stream()
        self._choose = choose_tokens
        self._inside = False  # whether `step` or `settle` runs
        self.drafts = drafts
        self._most = options.draft_tokens
        self._ahead = 1 if options.overlap and drafts is None and hardware.pin_memory_available() else 0
        self._pause = options.prompt_pause or 0.0
        self._last_read, self._hold_until = 0.0, 0.0
        self._spare: Spare = defaultdict(list)
        self._flights: tuple[Flight, ...] = ()  # the launched steps whose tokens were not read yet
        self._launching: Sequence[Task] = ()  # the tasks of a step that is being launched, or has failed
        self._giving: Task | None = None  # the task that is receiving its token, or failed while receiving it
        self._error: BaseException | None = None  # the error of the failed step

    @property
    def busy(self) -> bool:
        """Whether there are waiting or running tasks."""
        return bool(self._scheduler.waiting or self.sequences.live or self._flights)

    @property
    def inside(self) -> bool:
        """Whether `step` or `settle` is running."""
        return self._inside

    @property
    def tasks(self) -> list[Task]:
        """The running tasks, then the waiting ones."""
        return [*self.sequences.live, *self._scheduler.waiting]

    def add(self, tasks: Iterable[Task]) -> None:
        """Add tasks to the queue: all of them, or none if an exception is raised."""
        self._scheduler.waiting.update(dict.fromkeys(tasks))

    def step(self) -> None:
        """Run one forward pass, if any task waits or runs.

        If steps overlap, this launches a pass and reads the tokens of the previous one.

        Raises:
            EngineError: `step` is called from within a step.
            BaseException: The step failed, for example in a backend. Its tasks have ended: their reason is
                `error`, `step_failed` is set, and they keep the tokens of earlier steps. All other tasks
                continue, unless the device can't be activated; then all tasks have ended.
        """
        if self._inside:
            raise EngineError("step was called from within a step; call only submit and cancel there")
        self._inside = True
        try:
            self._settle()
            try:
                self._advance()
            finally:
                self._settle()
        finally:
            self._inside = False

    def settle(self) -> None:
        """Cancel unwanted tasks, and clean up after an exception; does nothing within a step."""
        if self._inside:
            return
        self._inside = True
        try:
            self._settle()
        finally:
            self._inside = False

    def _settle(self) -> None:
        """Cancel tasks and clean up. If this raises, it can be called again."""
        self.sequences.repair()
        if self._giving is not None:
            self._fail(self._giving)
            self._giving = None
        if self._launching:
            for _ in self._flights:  # the steps that were launched before the failed one
                with suppress(Exception):  # only the first error is reported; these tasks fail too
                    self._read(0)
        for task in self._launching:
            self._fail(task)
        self._launching, self._error = (), None
        while self.unwanted:
            self._end(self.unwanted[0], "cancelled")
            self.unwanted.popleft()
        self._flights = tuple(flight for flight in self._flights if flight.is_wanted)
        self._scheduler.drop()

    def _end(self, task: Task, reason: FinishReason, error: BaseException | None = None) -> None:
        """Remove a task, wherever it is, and free its memory."""
        self._scheduler.waiting.pop(task, None)
        self.sequences.release(task)
        if task.finish_reason is None:
            task.note(None, reason, error)

    def _fail(self, task: Task) -> None:
        task.step_failed = task.step_failed or task.finish_reason is None
        self._end(task, "error", self._error)

    def _advance(self) -> None:
        ready = False
        try:
            with self._hardware.active(), self._on_stream():
                ready = True
                self._go_on()
        except BaseException as error:
            if not ready and isinstance(error, Exception):  # no step can run; the device may be lost
                self._launching = self.tasks
            self._error = error
            self.stats.failed_steps += 1
            raise

    def _go_on(self) -> None:
        start = time.perf_counter()
        self._read(self._ahead)
        try:
            schedule = self._scheduler.schedule(self._holds_prompts())
        except Exception:  # raised while a task was admitted, for example by the device
            self._launching = list(self._scheduler.waiting)[:1]
            raise
        tasks = schedule.tasks
        flight = None
        if tasks:
            self._launching = tasks
            if self.drafts is not None:
                schedule = self._draft(self.drafts, schedule)
            flight = self._launch(schedule)
            self._flights, self._launching = (*self._flights, flight), ()
        self._read(self._ahead if tasks else 0)
        if flight is not None:
            given = [len(one.task.tokens) - one.number for one in flight.verified]
            if flight.verified:
                runs, _ = flight.read()
                accepted = sum(min(len(run) - 1, count) for run, count in zip(runs, given, strict=True))
                self.stats.add_drafts([one.drafts for one in flight.verified], accepted)
            self.stats.add(
                prefill=sum(count for _, count in schedule.prefill),
                decode=sum(max(1, count) for count in given) if given else len(schedule.decode),
                seconds=time.perf_counter() - start,
            )

    def _draft(self, drafts: Drafts, schedule: Schedule) -> Schedule:
        """Add drafts to a schedule.

        A task's drafts and the token after them stay within its `max_new_tokens`, and so within its pages.
        """
        limits = [
            min(self._most, task.params.max_new_tokens - len(task.tokens) - 1) for task in schedule.decode
        ]
        if not any(limits) or self.runner is None:
            return schedule
        drafted = proposed(
            drafts, schedule.decode, limits, most=self._most, vocab_size=self.runner.vocab_size
        )
        return replace(schedule, drafted=drafted) if any(map(len, drafted.tokens)) else schedule

    def _read(self, left: int) -> None:
        """Deliver the tokens of the launched steps, except the last `left` steps, to their tasks."""
        while len(self._flights) > left:
            flight = self._flights[0]
            try:
                runs, tokens = flight.read()
            except Exception:
                self._launching, self._flights = [*self._launching, *flight.tasks], self._flights[1:]
                raise
            now = time.perf_counter()
            if flight.has_prompts:
                self._hold_until = now + self._pause * (now - max(flight.launched, self._last_read))
            self._last_read = now
            for one, run in zip(flight.verified, runs, strict=True):
                self._keep(one, run)
            for (task, number), token in zip(flight.ready, tokens, strict=True):
                self._give(task, number, token)
            self._flights = self._flights[1:]

    def _holds_prompts(self) -> bool:
        """Whether prompts must wait, because a step with prompts delays decodes or has just delayed them."""
        if not self._pause:
            return False
        return time.perf_counter() < self._hold_until or any(flight.has_prompts for flight in self._flights)

    def _keep(self, one: Verification, run: Sequence[int]) -> None:
        """Deliver the new tokens of a verified task. A repeated call delivers none twice."""
        task = one.task
        if task.slot:
            self.sequences.advance([(task, one.length + len(run) - task.length)])
        if one.state is not None:
            task.draws.setstate(one.state)
            for _ in run:
                task.draws.random()
        for i, token in enumerate(run):
            self._give(task, one.number + i, token)

    def _give(self, task: Task, number: int, token: int) -> None:
        """Deliver token `number` of a task, unless the task has ended or already has that token."""
        if task.finish_reason is None and len(task.tokens) == number:
            self._giving = task
            try:
                if token < 0:
                    raise RequestError("the model's logits are not finite")
                task.accept(token)
            except Exception as error:  # raised for example by a tokenizer; ends only this task
                task.note(None, "error", error)
            if task.finish_reason is not None:
                self.sequences.release(task)
            self._giving = None

    @torch.inference_mode()
    def _launch(self, schedule: Schedule) -> Flight:
        """Run the model and choose tokens, without waiting for the device."""
        runner, sequences = self.runner, self.sequences
        if runner is None:
            raise EngineError("the engine is closed")
        launched = time.perf_counter()
        pinned = self._hardware.pin_memory_available()
        ran = runner.run(schedule)
        logits, slots = ran.logits, ran.slots
        decode, drafted = schedule.decode, schedule.drafted
        verified: list[Verification] = []
        news: torch.Tensor | None = None
        if drafted is not None:
            assert ran.accept is not None
            decode = []
            verified = [
                Verification(task, task.length, len(task.tokens), len(tokens), _state(task, tokens, drafted))
                for task, tokens in zip(schedule.decode, drafted.tokens, strict=True)
            ]
            params, draws = [one.task.params for one in verified], [one.task.draws for one in verified]
            rows = sum(ran.widths)
            if ran.choose is not None and runner.choose is self._choose:
                news = ran.choose().flatten()
            else:
                chosen = choose_rows(logits[:rows], ran.widths, drafted, params, draws, self._choose)
                news = ran.accept(chosen).flatten()
            logits, slots = logits[rows:], slots[len(verified) :]
        sequences.advance([*zip(decode, repeat(1)), *schedule.prefill])
        ready = [*decode, *filter(_is_through, (task for task, _ in schedule.prefill))]
        if schedule.forks:
            row = {task: number for number, task in enumerate(ready)}
            leaders = [*range(len(ready)), *(row[leader] for leader, _ in schedule.forks)]
            logits = logits[sent(leaders, torch.int64, logits.device, pin_memory=pinned)]
            ready = ready + self._fork(runner, schedule.forks)
            slots = sent([task.slot for task in ready], torch.int64, slots.device, pin_memory=pinned)
        if drafted is None and ran.choose is not None and runner.choose is self._choose:
            news = ran.choose()
        elif ready:
            tokens = self._choose(logits, [task.params for task in ready], [task.draws for task in ready])
            sequences.last_tokens.scatter_(0, slots, tokens.clamp(min=0))
            news = tokens if news is None else torch.cat([news, tokens])
        given = [(task, task.length - len(task.ids)) for task in ready]
        sent_news = Sent(slots[:0] if news is None else news, self._spare if pinned else None)
        if ran.verified is not None and self.drafts is not None:
            self.drafts.look_ahead(schedule.decode, ran.verified)
        return Flight(schedule.tasks, verified, given, sent_news, bool(schedule.prefill), launched)

    def _fork(self, runner: Runner, forks: list[tuple[Task, Task]]) -> list[Task]:
        """Copy the memory of each pair's first task to the second task; return the second tasks."""
        pages = [pair for leader, task in forks for pair in self.sequences.fork(leader, task)]
        runner.pools.copy(pages, [(leader.slot, task.slot) for leader, task in forks])
        return [task for _, task in forks]


def _state(task: Task, tokens: Sized, drafted: Drafted) -> Any:
    """See `Verification.state`."""
    is_drawn = drafted.probabilities is not None
    return task.draws.getstate() if len(tokens) and task.params.temperature > 0 and not is_drawn else None


def _is_through(task: Task) -> bool:
    """Whether the whole prompt of a task has been processed."""
    return task.length == len(task.ids)
