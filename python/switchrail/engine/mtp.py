"""Drafts proposed by a model's own MTP (NEXTN) head.

`switchrail.engine.models.mtp` describes a head's steps and their entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
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
from switchrail.engine.draft_model import DraftModel, LoadedDraft, Text, runner_options
from switchrail.engine.drafts import NONE
from switchrail.engine.loading import ready_model
from switchrail.engine.memory import Needs
from switchrail.engine.models.binding import check_shapes, find_mixers
from switchrail.engine.models.mtp import load_head, step_family
from switchrail.engine.options import EngineOptions
from switchrail.engine.runner import Runner
from switchrail.engine.sampling import Choose
from switchrail.engine.scheduler import Schedule
from switchrail.engine.step import Ran, Running
from switchrail.engine.task import Task
from switchrail.platforms import Platform
from switchrail.pools.pool import PagedPool
from switchrail.runtime import Runtime


class HiddenPool(PagedPool):
    """The hidden states of tokens, in the same pages as the tokens' keys.

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
    """One step of a draft head, which a runner calls like a model.

    Attributes:
        newest: [rows, hidden]; its first rows are the results that gave the last prefill's logits.
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
        of_slots: torch.Tensor,
    ) -> None:
        """Use the embeddings and the output layer of a model.

        Args:
            step: The step of the head.
            target: The engine's model.
            running: The runner's current step.
            hidden: [pages * page, hidden], the hidden state that each entry reads.
            results: [pages * page, hidden], receives the result of each entry, for the head's next step; None
                for the last step.
            of_slots: [slots, hidden], the hidden state that the next decode of each slot's sequence reads.
                Decodes and verifications write their newest results there.
        """
        super().__init__()
        self.step = step
        self.embed, self.head = target.get_input_embeddings(), target.get_output_embeddings()
        self.rotary = target.get_decoder().rotary_emb
        self._running = running
        self._hidden, self._results, self._of_slots = hidden, results, of_slots
        most = 2 * len(of_slots)  # the most rows of logits that a captured step has
        self.register_buffer("newest", of_slots.new_zeros(most, of_slots.shape[1]), persistent=False)

    def forward(
        self, *, input_ids: torch.Tensor, position_ids: torch.Tensor, logits_to_keep: torch.Tensor, **_: Any
    ) -> SimpleNamespace:
        """Run the entries of the runner's current step; return their `logits`, [1, R, vocabulary]."""
        now = self._running.step
        is_decode = bool(now.parts) and now.parts[0].phase == "decode"
        slots = now.logit_slots.clamp(min=0)
        hidden = self._of_slots[slots] if is_decode else self._hidden[now.kv_rows]
        if now.drafts is not None:  # padding rows read hidden states of later tokens, which are undefined
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

    Each step of the head has its own layout, routes and pools, and uses the model's sequences: entry i is
    stored in the page of token i. The model's last hidden states are stored in pages too. Each proposal
    begins with step 0, which runs the entries that its pools lack; the pools have `Sequence.drafted` entries.
    Entries that depend on drafted tokens are run again later. This overwrites their keys and values; their
    states are in the sequence's second slot.

    Attributes:
        runners: The runners of the head's steps.
        ahead: The number of steps: entry i of step k, counted from 0, depends on token i + 1 + k.
    """

    def __init__(
        self,
        target: Runner,
        runners: Sequence[Runner],
        options: EngineOptions,
        choose_tokens: Choose,
    ) -> None:
        """Allocate memory for the model's hidden states, and connect the steps.

        Args:
            target: Runs the model.
            runners: Run the head's steps. Their pools have two slots per sequence.
            options: The engine's options.
            choose_tokens: Chooses the tokens of sampled requests.
        """
        super().__init__(runners[0], options, choose_tokens)
        self.runners, self.ahead = list(runners), len(runners)
        model: Any = target.model
        weight: torch.Tensor = model.get_input_embeddings().weight
        pages = target.pools.pages.capacity + 1
        pools = [
            HiddenPool(pages, options.page_size, weight.shape[1], model.dtype, weight.device) for _ in runners
        ]
        target.pools.more += pools  # forks copy them too
        hidden = [pool.rows for pool in pools]  # the hidden states that each step reads
        for own in hidden:
            own[: options.page_size] = 0  # padding reads page 0
        self._newest_hidden = weight.new_zeros(len(self._newest), weight.shape[1], dtype=model.dtype)
        for runner, own, results in zip(runners, hidden, [*hidden[1:], None], strict=True):
            runner.model = HeadModel(
                runner.model, model, runner.running, hidden=own, results=results, of_slots=self._newest_hidden
            )
        self._done = np.zeros((len(runners), len(self._newest)), dtype=np.int64)
        keep = model.get_decoder().register_forward_hook(partial(_keep, hidden[0], target.running))
        with ExitStack() as undo:
            undo.callback(keep.remove)
            for runner in runners:
                undo.callback(runner.disconnect)
            self.runner.disconnect = undo.pop_all().close

    kept_newest = 0

    def _text(self, task: Task) -> npt.NDArray[np.int64]:
        """For each entry i, the token i + 1 that the entry joins with a hidden state of the model."""
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
        """Run the entries that step `number` lacks; return the logits after the last entry of each task.

        The last `number` entries depend on drafted tokens, which the host reads. Their states go to the
        second slots.
        """
        done, found = self._done[number], dict[Task, torch.Tensor]()
        accepted, pending = list[tuple[Task, Text]](), list[tuple[Task, Text]]()
        for task, own in zip(tasks, drafted.tolist(), strict=True):
            ids = np.concatenate([self._text(task), own])[number:]
            known = max(0, task.length - number)
            accepted.append((task, Text(task.slot, int(done[task.slot]), ids[:known])))
            pending.append((task, Text(task.slot, known, ids[: task.length])))
            done[task.slot] = known
        for entries, second in ((accepted, False), (pending, True)):
            left = [(task, text) for task, text in entries if text.length < len(text.ids)]
            while left:
                free, rows = self._rows, list[Any]()
                for _, text in left:
                    count = min(free, len(text.ids) - text.length)
                    free -= count
                    if count:
                        rows.append((text, count))
                schedule = Schedule(decode=[], prefill=rows, forks=[], fresh=True)
                logits = self._run_step(number, schedule, second=second)
                for text, count in rows:
                    text.length += count
                ended = [task for task, text in left if text.length == len(text.ids)]
                found.update(zip(ended, logits, strict=True))
                left = [(task, text) for task, text in left if text.length < len(text.ids)]
        return torch.stack([found[task] for task in tasks])

    def _run_step(self, number: int, schedule: Schedule, *, second: bool = False) -> torch.Tensor:
        """Run entries of a step of the head; return the logits after the last one of each sequence.

        Args:
            number: The step of the head.
            schedule: The entries. With `fresh`, states are read from the first slots.
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
    """Proposes a chain of tokens, and for each position of the chain further tokens as leaves.

    The head runs the chain only. The tokens of a position are drawn without replacement.
    """

    are_trees = True

    def __init__(
        self, target: Runner, runners: Sequence[Runner], options: EngineOptions, choose_tokens: Choose
    ) -> None:
        """Same arguments as `MtpDrafts`."""
        super().__init__(target, runners, options, choose_tokens)
        self.siblings = options.draft_branches


def _keep(rows: torch.Tensor, running: Running, module: nn.Module, args: Any, output: Any) -> None:
    """Forward hook of the engine's decoder: stores the hidden states of the step's tokens."""
    rows.index_copy_(0, running.step.kv_rows, output.last_hidden_state.squeeze(0))


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
) -> LoadedDraft:
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
    family = step_family(target.family)
    steps = []
    for layout, step in zip(drafts, load_head(target.path, target.model, drafts), strict=True):
        check_shapes(find_mixers(step, family, layout.layers), layout)
        steps.append(
            ready_model(
                runtime,
                layout,
                partial(replace, target, model=step, family=family),
                platform=platform,
                dtype=dtype,
                options=own,
            )
        )
    each = [step.needs(own) for step in steps]
    kind = MtpTrees if has_trees(options) else MtpDrafts
    hidden = options.page_size * target.model.get_input_embeddings().weight.shape[1] * dtype.itemsize
    capture = None
    if len(steps) == 1:  # heads with several steps run eagerly, since the host reads their drafts
        captured = replace(own, max_sequences=options.max_sequences)
        capture = steps[0].capture(captured, max_length=max_length, proposes="chains")
    return LoadedDraft(
        steps,
        own,
        Needs(sum(one.page + hidden for one in each), sum(one.slots for one in each)),
        capture,
        max_length,
        lambda target, runners: kind(target, runners, options, choose_tokens),
    )


__all__ = ["MtpDrafts", "MtpTrees", "load_mtp"]
