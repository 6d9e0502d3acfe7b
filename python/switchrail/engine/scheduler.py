"""Chooses the tokens of the next step."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from operator import attrgetter

from switchrail.engine.drafts import Drafted
from switchrail.engine.options import EngineOptions
from switchrail.engine.sequences import Sequences
from switchrail.engine.task import Task

_slot = attrgetter("slot")


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The tasks of one step.

    Attributes:
        decode: Tasks that run their newest token, sorted by slot, so that a backend can use a slice of its
            pool.
        prefill: Tasks that run prompt tokens, each with its number of tokens in this step.
        forks: Pairs of tasks with the same prompt. The prompt of the first task ends in this step, and the
            second task continues from there.
        drafted: The drafted tokens that run after the newest tokens of `decode`; None if no task has any.
        fresh: Whether decodes of a draft model, whose pools have two slots per sequence, read states from the
            first slots.
    """

    decode: list[Task]
    prefill: list[tuple[Task, int]]
    forks: list[tuple[Task, Task]]
    drafted: Drafted | None = None
    fresh: bool = False

    @property
    def tasks(self) -> list[Task]:
        """All tasks in the order of their rows, then the tasks without rows."""
        return [*self.decode, *(task for task, _ in self.prefill), *(task for _, task in self.forks)]


class Scheduler:
    """Admits tasks first come, first served, with continuous batching and chunked prefill.

    A task is admitted when a slot and enough pages for its prompt and all its new tokens are free. It then
    runs to its end without preemption, so nothing is computed twice, and tasks never wait for each other's
    pages. If a task generates fewer tokens, its remaining pages stay unused. Tasks never overtake each other:
    if the first task in the queue does not fit, the others wait too. So no task waits forever.

    While sequences decode, a prompt that arrives soon after others may be delayed (`hold`), because running
    many prompts in a few steps takes less time than running them in many steps.

    If several samples of one prompt are admitted before its prefill ends, the first sample runs the prompt.
    The other samples share its full pages, wait, and then continue from its state. A sample that is admitted
    later runs the prompt itself.

    Attributes:
        waiting: The queue of tasks, in which any task can be removed without a search.
    """

    def __init__(self, sequences: Sequences[Task], options: EngineOptions, ahead: int = 0) -> None:
        """Start with an empty queue.

        Args:
            sequences: The memory of the tasks.
            options: The engine's options.
            ahead: See `Drafts`.
        """
        self.waiting: OrderedDict[Task, None] = OrderedDict()
        self._sequences = sequences
        self._rows = options.max_tokens_per_step
        self._each = 1 if options.draft is None else 1 + options.draft_tokens  # the rows of a decoding task
        self._chunk = options.prefill_chunk or options.max_tokens_per_step
        self._page_size = options.page_size
        self._ahead = ahead
        self._was_full = False  # whether prompts stayed in the queue because a step had no rows for them

    def schedule(self, hold: bool = False) -> Schedule:
        """Choose the next step: one token of each decoding task, then prompt tokens in order of admission.

        A task is left out once its last token was computed, even if the host has not read that token yet.

        Args:
            hold: Whether prompts stay in the queue while other tasks decode. Prompts are admitted all the
                same if they fill the step, if an admitted prompt is unfinished, or if they wait only because
                the last step was full.
        """
        decode, prompts = list[Task](), list[Task]()
        for task in self._sequences.live:
            earlier = task.length - len(task.ids)
            if earlier < 0:
                prompts.append(task)
            elif earlier + 1 < task.params.max_new_tokens:
                decode.append(task)
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
            alike = max(0, len(task.ids) - self._ahead)  # tokens whose memory is the same in all samples
            shared = [] if leader is task else leader.pages[: alike // self._page_size]
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
        """Remove the first task of the queue if an exception left it there after its admission."""
        task = next(iter(self.waiting), None)
        if task is not None and task.slot:
            del self.waiting[task]

    def _fills(self, rows: int) -> bool:
        """Whether the prompts in the queue have at least `rows` tokens."""
        for task in list(self.waiting):  # a copy, since a signal handler may submit tasks meanwhile
            rows -= len(task.ids)
            if rows <= 0:
                return True
        return False

    def _leader(self, task: Task, leaders: dict[int, Task]) -> Task:
        """The task that runs the prompt for this task; usually the task itself."""
        return task if task.group is None else leaders.setdefault(task.group, task)

    def _place(self, task: Task, rows: int, prefill: list[tuple[Task, int]]) -> int:
        """Give at most `rows` rows of the step to a task; return the number of rows given."""
        count = min(len(task.ids) - task.length, self._chunk, rows)
        prefill.append((task, count))
        return count
