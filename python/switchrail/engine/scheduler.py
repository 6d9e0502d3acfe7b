"""Choosing the tokens of the next step."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

from switchrail.engine.options import EngineOptions
from switchrail.engine.sequences import Sequences
from switchrail.engine.task import Task

if TYPE_CHECKING:
    import torch

_slot = attrgetter("slot")


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The tasks of one step.

    Attributes:
        decode: Tasks that run their last token, ordered by slot, so that a backend can use a slice of its
            pool.
        prefill: Tasks that run prompt tokens, each with the number of tokens.
        forks: Pairs of tasks with the same prompt. The first one's prompt ends in this step, and the second
            one continues from there.
        drafted: For each task of `decode`, drafted tokens that run after its last token; empty if no task has
            any.
        probabilities: See `Drafted`.
    """

    decode: list[Task]
    prefill: list[tuple[Task, int]]
    forks: list[tuple[Task, Task]]
    drafted: Sequence[Sequence[int]] = ()
    probabilities: torch.Tensor | None = None

    @property
    def tasks(self) -> list[Task]:
        """All tasks in the order of their rows; those without rows last."""
        return [*self.decode, *(task for task, _ in self.prefill), *(task for _, task in self.forks)]


class Scheduler:
    """First come, first served, with continuous batching and chunked prefill.

    A task is admitted when a slot and all pages that it can ever need are free: those of its prompt and of
    every new token. It then runs to its end without preemption, so nothing is computed twice and tasks can't
    wait for each other's pages. The price is that pages for tokens that a task doesn't generate stay unused.
    Tasks never overtake each other: if the first in the queue does not fit, the others wait too, so no task
    waits forever.

    While sequences decode, a prompt that arrives soon after others may be delayed (`hold`): a few steps with
    many prompts take less time than many steps with few.

    If several samples of one prompt are admitted before its prefill ends, the first one runs the prompt. The
    others share its full pages, wait, and are forked from it. A sample that is admitted later runs the prompt
    itself.

    Attributes:
        waiting: The queue of tasks. Removing a task takes no search. Which of the live sequences are in
            prefill follows from their lengths.
    """

    def __init__(self, sequences: Sequences[Task], options: EngineOptions) -> None:
        self.waiting: OrderedDict[Task, None] = OrderedDict()
        self._sequences = sequences
        self._rows = options.max_tokens_per_step
        self._each = 1 if options.draft is None else 1 + options.draft_tokens  # the rows of a decoding task
        self._chunk = options.prefill_chunk or options.max_tokens_per_step
        self._page_size = options.page_size
        self._was_full = False  # whether prompts stayed in the queue because a step had no rows for them

    def schedule(self, unread: Collection[Task] = (), hold: bool = False) -> Schedule:
        """Choose the next step's tokens: those of decoding tasks, then prompt tokens in order of admission.

        Args:
            unread: The tasks with a token that has not been delivered. Tasks for which it is the last
                possible token are left out.
            hold: Whether prompts stay in the queue while others decode, unless they fill the step or a full
                step left them there.
        """
        live = self._sequences.live
        through = [task for task in live if task.length >= len(task.ids)]
        prompts = [task for task in live if task.length < len(task.ids)] if len(through) < len(live) else []
        decode = [
            task for task in through if len(task.tokens) + (task in unread) < task.params.max_new_tokens
        ]
        decode.sort(key=_slot)
        rows = self._rows - len(decode) * self._each
        prefill: list[tuple[Task, int]] = []
        followers: list[tuple[Task, Task]] = []
        leaders: dict[int, Task] = {}
        for task in prompts:
            leader = self._leader(task, leaders)
            if leader is not task:
                followers.append((leader, task))
            elif rows:
                rows -= self._place(task, rows, prefill)
        held = hold and decode and not prompts and not self._was_full and not self._fills(rows)
        self._was_full = False
        while self.waiting and not held:
            task = next(iter(self.waiting))
            leader = self._leader(task, leaders)
            if leader is task and not rows:
                self._was_full = True
                break
            shared = [] if leader is task else leader.pages[: len(task.ids) // self._page_size]
            new = task.needed_pages - len(shared)
            if not self._sequences.fits(new):
                break
            self._sequences.admit(task, new, shared)
            del self.waiting[task]
            if leader is not task:
                followers.append((leader, task))
            else:
                rows -= self._place(task, rows, prefill)
        ends = {task for task, count in prefill if task.length + count == len(task.ids)} if followers else ()
        forks = [(leader, task) for leader, task in followers if leader in ends]
        return Schedule(decode=decode, prefill=prefill, forks=forks)

    def drop(self) -> None:
        """Remove an admitted task that an exception has left at the front of the queue."""
        task = next(iter(self.waiting), None)
        if task is not None and task.slot:
            del self.waiting[task]

    def _fills(self, rows: int) -> bool:
        """Whether the queue's prompts have at least this many tokens."""
        for task in list(self.waiting):  # meanwhile a signal handler may submit other tasks
            rows -= len(task.ids)
            if rows <= 0:
                return True
        return False

    def _leader(self, task: Task, leaders: dict[int, Task]) -> Task:
        """The task that runs the prompt of this task, usually the task itself."""
        return task if task.group is None else leaders.setdefault(task.group, task)

    def _place(self, task: Task, rows: int, prefill: list[tuple[Task, int]]) -> int:
        """Assign rows to a task within its limits; return their number."""
        count = min(len(task.ids) - task.length, self._chunk, rows)
        prefill.append((task, count))
        return count


__all__ = ["Schedule", "Scheduler"]
