"""The loop of the engine: what it does step by step, without locks and without text."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from itertools import repeat
from typing import Any

import torch

from switchrail.engine.options import EngineOptions
from switchrail.engine.runner import Runner
from switchrail.engine.sampling import choose
from switchrail.engine.scheduler import Schedule, Scheduler
from switchrail.engine.sequences import Sequences
from switchrail.engine.stats import Stats
from switchrail.engine.task import FinishReason, Task
from switchrail.errors import EngineError, RequestError
from switchrail.platforms import Hardware


class EngineCore:
    """Runs tasks, one step at a time.

    `step` and `settle` are for one thread at a time; `add` and `unwanted` for any thread, at any time, from
    within a step too. An exception at any place, a KeyboardInterrupt say, leaves it whole: the tasks whose
    step was not over have then ended, and what could not be done about that is done first by whoever comes
    next.

    Attributes:
        runner: What runs the model; None ends the core.
        sequences: The memory of the tasks.
        stats: Counts.
        unwanted: Tasks that are to be cancelled between two steps: whoever wants that adds them, and calls
            `settle` if it can't wait for the next step.
    """

    def __init__(
        self,
        runner: Runner,
        sequences: Sequences[Task],
        options: EngineOptions,
        *,
        hardware: Hardware,
        choose_tokens: Callable[..., Any] | None = None,
    ) -> None:
        """Starts without tasks.

        Args:
            runner: What runs the model.
            sequences: The memory of the tasks.
            options: Sizes.
            hardware: Where the model runs.
            choose_tokens: Chooses tokens, as `switchrail.engine.sampling.choose` does; None: that one.
        """
        self.runner: Runner | None = runner
        self.sequences = sequences
        self.stats = Stats()
        self.unwanted: deque[Task] = deque()
        self._scheduler = Scheduler(sequences, options)
        self._hardware = hardware
        self._choose = choose_tokens or choose
        self._inside = False  # whether `step` or `settle` runs
        self._running: deque[Task] = deque()  # the tasks whose step is not over, or failed
        self._error: BaseException | None = None  # why it failed

    @property
    def busy(self) -> bool:
        """Whether any task waits or runs."""
        return bool(self._scheduler.waiting or self.sequences.live)

    @property
    def inside(self) -> bool:
        """Whether a step runs."""
        return self._inside

    @property
    def tasks(self) -> list[Task]:
        """The tasks that run, then those in line."""
        return [*self.sequences.live, *self._scheduler.waiting]

    def add(self, tasks: Iterable[Task]) -> None:
        """Puts tasks in line, all or none."""
        self._scheduler.waiting.update(dict.fromkeys(tasks))

    def step(self) -> None:
        """Runs one forward pass, if any task waits or runs.

        Raises:
            EngineError: It is called from within a step.
            BaseException: What a backend raised. The tasks of the step have then ended with reason `error`
                and `step_failed`; all others go on with the next step.
        """
        if self._inside:
            raise EngineError(
                "a step was asked for from within a step; only submit and cancel can be called there"
            )
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
        """Cancels what is unwanted, and finishes what an exception broke off; does nothing within a step."""
        if self._inside:
            return
        self._inside = True
        try:
            self._settle()
        finally:
            self._inside = False

    def _settle(self) -> None:
        """Every part of it can be done again, so an exception in the midst of it costs nothing."""
        self.sequences.repair()
        for task in self._running:
            task.step_failed = task.step_failed or task.finish_reason is None
            self._end(task, "error", self._error)
        self._running, self._error = deque(), None
        while self.unwanted:
            self._end(self.unwanted[0], "cancelled")
            self.unwanted.popleft()
        self._scheduler.drop()

    def _end(self, task: Task, reason: FinishReason, error: BaseException | None = None) -> None:
        """Takes a task out, wherever it is, and frees what it holds."""
        self._scheduler.waiting.pop(task, None)
        self.sequences.release(task)
        if task.finish_reason is None:
            task.note(None, reason, error)

    def _advance(self) -> None:
        schedule = self._scheduler.schedule()
        tasks = schedule.tasks
        if not tasks:
            return
        self._running = deque(tasks)
        try:
            self._run(schedule)
        except BaseException as error:
            self._error = error
            self.stats.failed_steps += 1
            raise

    def _run(self, schedule: Schedule) -> None:
        start = time.perf_counter()
        ready, tokens = self._choose_tokens(schedule)
        seconds = time.perf_counter() - start
        self.stats.add(
            prefill=sum(count for _, count in schedule.prefill), decode=len(schedule.decode), seconds=seconds
        )
        self.sequences.append(ready, [token or 0 for token in tokens])
        self._running = deque(ready)  # the others go on with their prompts, whatever comes
        for task, token in zip(ready, tokens, strict=True):
            try:
                if token is None:
                    raise RequestError("the model's logits are not finite")
                task.accept(token)
            except Exception as error:  # a tokenizer's, say: it ends this task and no other
                task.note(None, "error", error)
            if task.finish_reason is not None:
                self.sequences.release(task)
            self._running.popleft()

    @torch.inference_mode()
    def _choose_tokens(self, schedule: Schedule) -> tuple[list[Task], list[int | None]]:
        """Runs the model; returns the tasks that got a token, and their tokens."""
        runner, sequences = self.runner, self.sequences
        if runner is None:
            raise EngineError("the engine is closed")
        with self._hardware.active():
            logits = runner.run(schedule, sequences.page_table)
            sequences.advance([*zip(schedule.decode, repeat(1)), *schedule.prefill])
            ready = [*schedule.decode, *filter(_is_through, (task for task, _ in schedule.prefill))]
            if schedule.forks:
                row = {task: number for number, task in enumerate(ready)}
                logits = logits[[*range(len(ready)), *(row[leader] for leader, _ in schedule.forks)]]
                ready = ready + self._fork(runner, schedule.forks)
            if not ready:
                return [], []
            return ready, self._choose(
                logits, [task.params for task in ready], [task.draws for task in ready]
            )

    def _fork(self, runner: Runner, forks: list[tuple[Task, Task]]) -> list[Task]:
        """Lets the second of each pair go on where the first one is; returns these."""
        pages = [pair for leader, task in forks for pair in self.sequences.fork(leader, task)]
        runner.pools.copy(pages, [(leader.slot, task.slot) for leader, task in forks])
        return [task for _, task in forks]


def _is_through(task: Task) -> bool:
    """Whether all of its prompt is done."""
    return task.length == len(task.ids)


__all__ = ["EngineCore"]
