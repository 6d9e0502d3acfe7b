"""Drafts of a model's own MTP (NEXTN) head."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from switchrail._core import Layout
from switchrail.engine.capture import has_trees
from switchrail.engine.checkpoint import Checkpoint
from switchrail.engine.draft_model import DraftModel, Text, proposing, runner_options
from switchrail.engine.drafts import NONE
from switchrail.engine.loading import LoadedModel, ready_model
from switchrail.engine.memory import Needs
from switchrail.engine.models.binding import check_shapes, find_mixers
from switchrail.engine.models.mtp import load_head
from switchrail.engine.options import EngineOptions
from switchrail.engine.runner import Capture, Runner
from switchrail.engine.sampling import Choose
from switchrail.engine.scheduler import Schedule
from switchrail.engine.step import Ran, Running
from switchrail.engine.task import Task
from switchrail.platforms import Platform
from switchrail.pools.pool import PagedPool
from switchrail.runtime import Runtime


class HiddenPool(PagedPool):
    """The hidden states of tokens, in pages with the same numbers as the pages of the tokens' keys.

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


class HeadModel(nn.Module):
    """A step of a head, with the arguments and results that a runner's model has.

    Attributes:
        newest: [R, hidden], each sequence's last result, after a step that isn't a decode.
    """

    newest: torch.Tensor

    def __init__(
        self,
        step: nn.Module,
        target: Any,
        running: Running,
        *,
        hidden: torch.Tensor,
        results: torch.Tensor | None,
        newest: torch.Tensor,
    ) -> None:
        """Use the embeddings and the output layer of a model.

        Args:
            step: The step of the head.
            target: The engine's model.
            running: The current step of the runner.
            hidden: [pages * page, hidden], the hidden state of each entry.
            results: [pages * page, hidden], receives the result of each entry, for another step of the head;
                None if this is the last one.
            newest: [slots, hidden], by slot, the hidden state that a sequence's next decode reads. A decode
                writes its result there.
        """
        super().__init__()
        self.step = step
        self.embed, self.head = target.get_input_embeddings(), target.get_output_embeddings()
        self.rotary = target.get_decoder().rotary_emb
        self._running = running
        self._hidden, self._results, self._of_slots = hidden, results, newest
        most = 2 * len(newest)  # captured steps have rows of logits for two slots per sequence
        self.register_buffer("newest", newest.new_zeros(most, newest.shape[1]), persistent=False)

    def forward(
        self, *, input_ids: torch.Tensor, position_ids: torch.Tensor, logits_to_keep: torch.Tensor, **_: Any
    ) -> SimpleNamespace:
        """Run the entries of the current step; return their `logits`, [1, R, vocabulary]."""
        now = self._running.step
        is_decode = bool(now.parts) and now.parts[0].phase == "decode"
        slots = now.logit_slots.clamp(min=0)
        hidden = self._of_slots[slots] if is_decode else self._hidden[now.kv_rows]
        if now.drafts is not None:  # padding reads the places of later tokens, with any contents
            hidden = hidden.masked_fill((now.drafts.parents == NONE).view(-1, 1), 0)
        embeddings = self.embed(input_ids)
        result = self.step(
            embeddings,
            hidden.unsqueeze(0),
            self.rotary(embeddings, position_ids),
            attention_mask=None,
            position_ids=position_ids,
        ).squeeze(0)
        if self._results is not None:
            self._results.index_copy_(0, now.kv_rows, result)
        newest = result[logits_to_keep]
        if is_decode or now.drafts is not None:
            self._of_slots.index_copy_(0, slots, newest)
        else:
            self.newest[: len(newest)].copy_(newest)
        return SimpleNamespace(logits=self.head(newest).unsqueeze(0))


class MtpDrafts(DraftModel):
    """Proposes the tokens that a model's own head predicts.

    Each step of the head has a layout, routes and pools of its own, and uses the sequences of the model: the
    memory of entry i is in the page of token i. See `switchrail.engine.models.mtp` for the inputs of an
    entry. The model's last hidden states are also stored in pages. To propose, step 0 first runs the entries
    that are not yet in its memory (it has `Sequence.drafted` entries), on these hidden states. Entries that
    depend on drafted tokens are run again later, which overwrites their keys; their states are in the second
    slot of the sequence.

    Attributes:
        runners: The runners of the steps.
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
        most: int,
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
            most: Maximum tokens per proposal.
            pin_memory: Whether the device copies from pinned memory.
            choose_tokens: Chooses the tokens of sampled requests.
        """
        super().__init__(
            runners[0],
            slots=slots,
            rows=rows,
            most=most,
            pin_memory=pin_memory,
            choose_tokens=choose_tokens,
        )
        self.runners, self.ahead = list(runners), len(runners)
        model: Any = target.model
        weight: torch.Tensor = model.get_input_embeddings().weight
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
        hidden = [pool.rows for pool in pools]  # the hidden states that each step reads
        for own in hidden:
            own[:page_size] = 0  # padding reads page 0
        self._newest_hidden = weight.new_zeros(len(self._newest), weight.shape[1], dtype=model.dtype)
        for runner, own, results in zip(runners, hidden, [*hidden[1:], None], strict=True):
            runner.model = HeadModel(
                runner.model, model, runner.running, hidden=own, results=results, newest=self._newest_hidden
            )
        self._done = np.zeros((len(runners), len(self._newest)), dtype=np.int64)
        keep = model.get_decoder().register_forward_hook(partial(_keep, hidden[0], target.running))
        with ExitStack() as undo:
            undo.callback(keep.remove)
            for runner in runners:
                undo.callback(runner.disconnect)
            self.runner.disconnect = undo.pop_all().close

    first = 0

    def _text(self, task: Task) -> npt.NDArray[np.int64]:
        """The token after each entry's own token; the entry joins it with a hidden state of the model."""
        return super()._text(task)[1:]

    def _extend(self, tasks: Sequence[Task]) -> tuple[list[Task], torch.Tensor]:
        for task in tasks:
            if not task.drafted:
                self._done[:, task.slot] = 0
        return super()._extend(tasks)

    def _run(self, schedule: Schedule) -> torch.Tensor:
        return self._run_step(0, schedule)

    def _decode(self, tasks: Sequence[Task], turn: int, drafted: torch.Tensor) -> torch.Tensor:
        steps = len(self.runners)
        if turn < steps:
            return self._run_later_step(tasks, turn, drafted)
        none = np.zeros(0, dtype=np.int64)
        decode: Any = [Text(task.slot, task.length + turn - steps, none) for task in tasks]
        schedule = Schedule(decode=decode, prefill=[], forks=[], fresh=turn == 1)
        return self._run_step(steps - 1, schedule, second=True)

    def _run_later_step(self, tasks: Sequence[Task], number: int, drafted: torch.Tensor) -> torch.Tensor:
        """Run the entries that a later step lacks; return the logits after the last entry of each task.

        The last `number` entries depend on drafted tokens, which the host reads.
        """
        done, found = self._done[number], dict[Task, torch.Tensor]()
        texts = [
            np.concatenate([self._text(task), own])[number:]
            for task, own in zip(tasks, drafted.tolist(), strict=True)
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
                schedule = Schedule(decode=[], prefill=rows, forks=[], fresh=True)
                logits = self._run_step(number, schedule, second=second)
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

    def _run_step(self, number: int, schedule: Schedule, *, second: bool = False) -> torch.Tensor:
        """Run entries of a step of the head; return the logits after the last one of each sequence.

        Args:
            number: The step of the head.
            schedule: The entries. If it is fresh, states are read from the first slots.
            second: Whether states are written to the second slots.
        """
        runner = self.runners[number]
        ran = None if runner.graphs is None else runner.graphs.run(schedule)
        if ran is None:
            step = runner.builder.build(schedule, runner.sequences.page_table, self._newest)
            logits = runner.forward(self._on_second_slots(step, schedule.fresh) if second else step)
            ran = Ran(logits, step.logit_slots)
        if not schedule.decode:
            self._newest_hidden[ran.slots] = runner.model.newest[: len(ran.slots)]
        return ran.logits


class MtpTrees(MtpDrafts):
    """Proposes a chain of tokens; the next best tokens of each place are leaves beside the chain.

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

    Attributes:
        steps: The steps with their routes.
        options: The options of the steps' runners, except for `num_pages`.
        needs: The memory of the steps' pools and of the hidden states.
        max_length: Maximum tokens per sequence.
        propose: Makes the drafts from the model's runner and the steps' runners.
        capture: The steps to capture; None to capture nothing.
    """

    steps: list[LoadedModel]
    options: EngineOptions
    needs: Needs
    max_length: int
    propose: Callable[[Runner, Sequence[Runner]], MtpDrafts]
    capture: Capture | None

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
        drafts: The result of `heads.find_mtp`.
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
        _capture(steps, replace(own, max_sequences=options.max_sequences), max_length),
    )


def _capture(steps: Sequence[LoadedModel], options: EngineOptions, max_length: int) -> Capture | None:
    """The captures of a head with one step. Several steps run eagerly, since the host reads their drafts."""
    if len(steps) > 1:
        return None
    return steps[0].capture(options, max_length=max_length, preferences=None, proposes="chains")


__all__ = ["LoadedMtp", "MtpDrafts", "MtpTrees", "load_mtp"]
