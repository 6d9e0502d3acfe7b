"""Drafts of a model's own MTP (NEXTN) head."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from switchrail._core import Layout
from switchrail.engine.capture import has_trees
from switchrail.engine.checkpoint import Checkpoint
from switchrail.engine.draft_model import DraftModel, Text, proposing, runner_options
from switchrail.engine.loading import LoadedModel, ready_model
from switchrail.engine.memory import Needs
from switchrail.engine.models.binding import check_shapes, find_mixers
from switchrail.engine.models.mtp import load_head
from switchrail.engine.options import EngineOptions
from switchrail.engine.runner import Capture, Runner
from switchrail.engine.sampling import Choose
from switchrail.engine.scheduler import Schedule
from switchrail.engine.step import Running, Step
from switchrail.engine.task import Task
from switchrail.platforms import Platform
from switchrail.pools.pool import PagedPool
from switchrail.runtime import Runtime


class HiddenPool(PagedPool):
    """The hidden states of tokens, in the pages of their keys.

    Attributes:
        rows: [pages * page, hidden].
    """

    def __init__(
        self, pages: int, page_size: int, size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._tensor = self.allocate((pages, page_size, size), dtype, device)
        self.rows = self._tensor.flatten(0, 1)

    def tensors(self) -> list[torch.Tensor]:
        """The pool's only tensor."""
        return [self._tensor]


class MtpDrafts(DraftModel):
    """Proposes the tokens that a model's own head predicts.

    Each step of the head has a layout, routes and pools of its own, and the sequences of the model: entry
    i of a step is in memory where token i is. See `switchrail.engine.models.mtp` for the inputs of an entry.
    The model's last hidden states are kept in pages too. To propose, step 0 first runs the entries that it
    lacks on them (`Sequence.drafted` of them are in memory). Entries that depend on drafted tokens are run
    again later: their keys are overwritten, and their states go to the second slot of the sequence.

    Attributes:
        runners: Run the steps.
        ahead: Entry i of step k depends on token i + 1 + k, counted from 0.
    """

    def __init__(
        self,
        target: Runner,
        runners: Sequence[Runner],
        *,
        page_size: int,
        slots: int,
        rows: int,
        pin_memory: bool,
        choose_tokens: Choose,
    ) -> None:
        """Keep the hidden states of a model, and use runners whose pools have two slots per sequence.

        Args:
            target: Runs the model.
            runners: Run the steps.
            page_size: Page size in tokens.
            slots: The distance from the slot of a sequence to its second one.
            rows: Maximum rows of a step.
            pin_memory: Whether the device copies from pinned memory.
            choose_tokens: Chooses the tokens of sampled requests.
        """
        super().__init__(
            runners[0], slots=slots, rows=rows, pin_memory=pin_memory, choose_tokens=choose_tokens
        )
        self.runners, self.ahead = list(runners), len(runners)
        model: Any = target.model
        self._embed, self._head = model.get_input_embeddings(), model.get_output_embeddings()
        self._rotary = model.get_decoder().rotary_emb
        weight: torch.Tensor = self._embed.weight
        pools = [
            HiddenPool(
                target.pools.pages.capacity + 1,
                page_size,
                weight.shape[1],
                model.dtype,
                weight.device,
            )
            for _ in runners
        ]
        target.pools.more += pools  # copied with the pages of a fork
        self._hidden = [pool.rows for pool in pools]  # what each step reads
        self._newest_hidden = weight.new_zeros(len(self._newest), weight.shape[1], dtype=model.dtype)
        self._done = np.zeros((len(runners), len(self._newest)), dtype=np.int64)
        keep = model.get_decoder().register_forward_hook(partial(_keep, self._hidden[0], target.running))
        with ExitStack() as undo:
            undo.callback(keep.remove)
            for runner in runners:
                undo.callback(runner.disconnect)
            self.runner.disconnect = undo.pop_all().close

    def _text(self, task: Task) -> npt.NDArray[np.int64]:
        """The token that each entry joins with a hidden state of the model: the one after the entry's."""
        return super()._text(task)[1:]

    def _extend(self, tasks: Sequence[Task]) -> tuple[list[Task], torch.Tensor]:
        for task in tasks:
            if not task.drafted:
                self._done[:, task.slot] = 0
        return super()._extend(tasks)

    def _run(self, schedule: Schedule) -> torch.Tensor:
        return self._run_step(0, schedule)

    def _decode(
        self, tasks: Sequence[Task], turn: int, drafted: Mapping[Task, list[torch.Tensor]]
    ) -> torch.Tensor:
        steps = len(self.runners)
        if turn < steps:
            return self._run_later_step(tasks, turn, drafted)
        none = np.zeros(0, dtype=np.int64)
        decode: Any = [Text(task.slot, task.length + turn - steps, none) for task in tasks]
        schedule = Schedule(decode=decode, prefill=[], forks=[])
        return self._run_step(steps - 1, schedule, second=True, first=turn == 1)

    def _run_later_step(
        self, tasks: Sequence[Task], number: int, drafted: Mapping[Task, list[torch.Tensor]]
    ) -> torch.Tensor:
        """Run the entries that a step lacks; return the logits after the last one of each task.

        Its last `number` entries depend on drafted tokens, which the host reads.
        """
        done, found = self._done[number], dict[Task, torch.Tensor]()
        texts = [
            np.concatenate([self._text(task), torch.stack(drafted[task]).tolist()])[number:] for task in tasks
        ]
        known = [max(0, task.length - number) for task in tasks]
        for second in (False, True):
            left = [
                (task, start, text[:end])
                for task, text, start, end in (
                    (task, text, end, task.length) if second else (task, text, int(done[task.slot]), end)
                    for task, text, end in zip(tasks, texts, known, strict=True)
                )
                if start < end
            ]
            while left:
                room, rows, rest = self._rows, list[Any](), []
                for task, start, text in left:
                    count = min(room, len(text) - start)
                    room -= count
                    if count:
                        rows.append((Text(task.slot, start, text), count))
                    if start + count < len(text):
                        rest.append((task, start + count, text))
                logits = self._run_step(
                    number, Schedule(decode=[], prefill=rows, forks=[]), second=second, first=True
                )
                found.update(
                    zip(
                        (task for task, *_ in left if task not in {one for one, *_ in rest}),
                        logits,
                        strict=True,
                    )
                )
                left = rest
        for task, end in zip(tasks, known, strict=True):
            done[task.slot] = end
        return torch.stack([found[task] for task in tasks])

    def _run_step(
        self, number: int, schedule: Schedule, *, second: bool = False, first: bool = False
    ) -> torch.Tensor:
        """Run entries of a step of the head; return the logits after the last one of each sequence.

        Args:
            number: The step of the head.
            schedule: The entries.
            second: Whether states are written to the second slots.
            first: Whether states are nevertheless read from the first ones.
        """
        runner = self.runners[number]
        step = runner.builder.build(schedule, runner.sequences.page_table, self._newest)
        if second:
            step = self._on_second_slots(step, first)
        slots = step.logit_slots
        hidden = self._newest_hidden[slots] if schedule.decode else self._hidden[number][step.kv_rows]
        result = self._forward(runner, step, hidden)
        if number + 1 < len(self.runners):
            self._hidden[number + 1].index_copy_(0, step.kv_rows, result)
        newest = result[step.logit_rows]
        self._newest_hidden[slots] = newest
        logits: torch.Tensor = self._head(newest)
        return logits

    def _forward(self, runner: Runner, step: Step, hidden: torch.Tensor) -> torch.Tensor:
        """Run a step's entries; return [T, hidden]."""
        embeddings = self._embed(step.input_ids)
        try:
            runner.running.now = step
            with runner.dispatcher.running(step.parts, None):
                result: torch.Tensor = runner.model(
                    embeddings,
                    hidden.unsqueeze(0),
                    self._rotary(embeddings, step.position_ids),
                    attention_mask=None,
                    position_ids=step.position_ids,
                )
        finally:
            runner.running.now = None
        return result.squeeze(0)


class MtpTrees(MtpDrafts):
    """Proposes a chain, and beside each of its tokens the next best ones, as leaves.

    The head runs the chain only. Siblings are drawn without replacement.
    """

    are_trees = True

    def __init__(self, siblings: int, target: Runner, runners: Sequence[Runner], **given: Any) -> None:
        """Keep the hidden states of a model.

        Args:
            siblings: Tokens proposed for each place of the chain.
            target: Runs the model.
            runners: Run the steps.
            **given: See `MtpDrafts`.
        """
        super().__init__(target, runners, **given)
        self.siblings = siblings


def _keep(rows: torch.Tensor, running: Running, module: nn.Module, args: Any, output: Any) -> None:
    """Write the hidden states of the step's tokens; a hook on the decoder of the engine's model."""
    rows.index_copy_(0, running.step.kv_rows, output.last_hidden_state.squeeze(0))


@dataclass(frozen=True, slots=True)
class LoadedMtp:
    """A loaded draft head, for which there is no memory yet.

    Its steps run eagerly.

    Attributes:
        steps: The steps with their routes.
        options: The options of their runners, except for `num_pages`.
        needs: The memory of their pools and of the hidden states.
        max_length: Maximum tokens per sequence.
        propose: Makes the drafts from the model's runner and those of the steps.
        capture: The steps to capture; none yet.
    """

    steps: list[LoadedModel]
    options: EngineOptions
    needs: Needs
    max_length: int
    propose: Callable[[Runner, Sequence[Runner]], MtpDrafts]
    capture: Capture | None = None

    def make(self, target: Runner) -> MtpDrafts:
        """Allocate pools with as many pages as the engine's model has, and connect the steps."""
        options = replace(self.options, num_pages=target.pools.pages.capacity + 1)
        with ExitStack() as undo:
            runners = []
            for step in self.steps:
                runners.append(step.make(options, max_length=self.max_length, sequences=target.sequences))
                undo.callback(runners[-1].disconnect)
            drafts = self.propose(target, runners)
            undo.pop_all()
            return drafts


def load_mtp(
    runtime: Runtime,
    target: Checkpoint,
    drafts: Sequence[Layout],
    *,
    platform: Platform,
    dtype: torch.dtype,
    options: EngineOptions,
    max_length: int,
    choose_tokens: Choose,
) -> LoadedMtp:
    """Load the draft head of a loaded model.

    Args:
        runtime: The runtime with the backends.
        target: The loaded model.
        drafts: `heads.find_mtp` of the checkpoint.
        platform: The engine's platform.
        dtype: The dtype of weights and activations.
        options: The engine's options.
        max_length: Maximum tokens per sequence.
        choose_tokens: Chooses the tokens of sampled requests.

    Raises:
        SwitchrailError: As for `Engine`.
    """
    own = runner_options(options)
    head = load_head(target.path, target.model, target.family, drafts)
    steps = []
    for layout, step in zip(drafts, head.steps, strict=True):
        check_shapes(find_mixers(step, head.family, layout.layers), layout)
        steps.append(
            ready_model(
                runtime,
                layout,
                partial(replace, target, model=step, family=head.family),
                platform=platform,
                dtype=dtype,
                options=own,
                backends=None,
                phases=("prefill", "decode"),
            )
        )
    each = [step.needs(own) for step in steps]
    kind = partial(MtpTrees, options.draft_branches) if has_trees(options) else MtpDrafts
    hidden = options.page_size * target.model.get_input_embeddings().weight.shape[1] * dtype.itemsize
    return LoadedMtp(
        steps,
        own,
        Needs(sum(one.page + hidden for one in each), sum(one.slots for one in each)),
        max_length,
        partial(kind, page_size=options.page_size, **proposing(options, platform, choose_tokens)),
    )


__all__ = ["LoadedMtp", "MtpDrafts", "MtpTrees", "load_mtp"]
