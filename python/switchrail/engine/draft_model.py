"""Drafts proposed by a second, smaller model."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch

from switchrail.checks import is_count
from switchrail.engine.checkpoint import read_config
from switchrail.engine.drafts import Drafted, Drafts, Verified
from switchrail.engine.graphs import Graphs
from switchrail.engine.hub import find_checkpoint
from switchrail.engine.loading import LoadedModel, load_model
from switchrail.engine.memory import Needs
from switchrail.engine.models.families import Family
from switchrail.engine.options import MTP, NGRAM, EngineOptions
from switchrail.engine.proposals import Form, Lacking
from switchrail.engine.runner import Capture, Runner
from switchrail.engine.sampling import Choose, draw, probabilities
from switchrail.engine.scheduler import Schedule
from switchrail.engine.step import Step
from switchrail.engine.task import Task
from switchrail.engine.transfer import sent
from switchrail.errors import ConfigError
from switchrail.platforms import Platform
from switchrail.runtime import Runtime


@dataclass(slots=True)
class Text:
    """The attributes of a task that a step builder reads.

    Attributes:
        slot: The slot of the sequence's states.
        length: The number of tokens before the step's rows.
        ids: The input tokens of the sequence's rows, from its first to the last one to run; empty for
            decodes.
    """

    slot: int
    length: int
    ids: npt.NDArray[np.int64]


class DraftModel(Drafts):
    """Proposes the tokens that a second model generates.

    The draft model has its own layout, routes, pools and hooks, and uses the slots, pages and page table of
    the engine's sequences. Its pools keep accepted tokens only; `Sequence.drafted` counts these tokens.

    The draft model first runs the accepted tokens that its pools lack. If these don't fit in one step (as in
    a long prompt), later proposals run the rest, and the sequence gets no drafts until then. The logits after
    the newest token give the first draft. Each later draft is the result of a decode of the draft before it.
    Keys and values of decoded drafts are overwritten later, and their states go to the sequence's second
    slot. So nothing needs a rollback, whichever kinds of layers the model has.

    For greedy tasks with few missing tokens, one captured graph runs all of these steps. After a captured
    verification, `look_ahead` launches this graph before the host knows which drafts were accepted.

    Attributes:
        runner: Runs the draft model; for an MTP head, its first step.
        runners: All runners; an MTP head has one for each of its steps.
        siblings: Tokens proposed for each position of the chain. The chain continues with the first of them;
            the others are leaves.
        branches: See `Form`.
        kept_newest: See `Form`.
    """

    siblings = 1
    branches = 1
    kept_newest: ClassVar[int] = 1
    _form: Form | None = None
    _begun: _Proposed | None = None

    def __init__(self, runner: Runner, options: EngineOptions, choose_tokens: Choose) -> None:
        """Use a runner whose pools have two slots per sequence.

        Args:
            runner: Runs the model.
            options: The engine's options.
            choose_tokens: Chooses the tokens of sampled requests.
        """
        self.runner, self.runners = runner, [runner]
        self._choose_tokens = choose_tokens
        self._most, self._rows = options.draft_tokens, options.max_tokens_per_step
        self._slots = options.max_sequences  # the difference between a sequence's second slot and its first
        self._pin_memory = runner.pin_memory
        self._newest = torch.zeros_like(runner.sequences.last_tokens)

    @torch.inference_mode()
    def propose(self, tasks: Sequence[Task], limits: Sequence[int]) -> Drafted:
        """Propose the tokens that the draft model generates.

        Only an MTP head with several steps waits for the device, since the host reads its drafts. For
        sampled tasks, the tokens are drawn from the draft model's distribution.
        """
        found = self._captured(tasks, limits)
        known = {task for each in found for task in each.rows}
        left = [task for task in _wanted(tasks, limits) if task not in known]
        if left or not found:
            found.append(self._step_by_step(left, dict(zip(tasks, limits, strict=True))))
        return self._drafted(tasks, limits, _Proposed.joined(found))

    def _captured(self, tasks: Sequence[Task], limits: Sequence[int]) -> list[_Proposed]:
        """The proposals that `look_ahead` launched, and a graph's results for tasks that lack few tokens."""
        begun, self._begun = self._begun, None
        form = self._form
        if form is None:
            return []
        graphs, sequences = self.runner.graphs, self.runner.sequences
        assert graphs is not None
        found: list[_Proposed] = []
        rows = {} if begun is None else {task: begun.rows[task] for task in tasks if task in begun.rows}
        if begun is not None and rows:  # the launched graph runs the accepted tokens of these tasks
            sequences.advance_drafted([(task, self._lacks(task)) for task in rows])
            found.append(replace(begun, rows=rows))
        few = [task for task in _wanted(tasks, limits) if task not in rows and self._lacks_few(task, form)]
        if not few:
            return found
        lacking = [
            Lacking(task.slot, task.drafted, len(task.pages), task.tokens[-self._lacks(task) - form.held :])
            for task in few
        ]
        kept = [replace(each, table=each.table.clone()) for each in found]  # the next replay overwrites it
        table = graphs.propose(lacking)
        if table is None:
            return found
        sequences.advance_drafted([(task, self._lacks(task)) for task in few])
        return [*kept, _Proposed(table, {task: row for row, task in enumerate(few)})]

    def look_ahead(self, tasks: Sequence[Task], verified: Verified) -> None:
        """Launch the captured proposal, if there is one.

        This does nothing if the draft model's pools lack earlier tokens of a task that continues after the
        running step.
        """
        form, self._begun = self._form, None
        if form is None or any(self._lacks(task) and not _is_ending(task) for task in tasks):
            return
        assert self.runner.graphs is not None
        lengths = [task.length + self.kept_newest for task in tasks]
        table = self.runner.graphs.propose_after(verified, lengths)
        if table is not None:
            self._begun = _Proposed(table, {task: row for row, task in enumerate(tasks)})

    def _lacks(self, task: Task) -> int:
        """The number of a task's tokens that the draft model's pools lack."""
        return task.length + self.kept_newest - task.drafted

    def _lacks_few(self, task: Task, form: Form) -> bool:
        count = self._lacks(task) + form.held
        is_short = form.held < count <= min(form.width, len(task.tokens))
        return is_short and task.drafted > 0 and task.params.temperature == 0

    def _drafted(self, tasks: Sequence[Task], limits: Sequence[int], known: _Proposed) -> Drafted:
        """Convert proposals to the result of `propose`; tasks without a row get no drafts."""
        counts = [limit if task in known.rows else 0 for task, limit in zip(tasks, limits, strict=True)]
        parents = [*map(cache(self._parents), counts)] if self.are_trees else None
        if not any(counts):
            return Drafted([()] * len(tasks), parents=parents)
        rows, table, odds = [known.rows.get(task, 0) for task in tasks], known.table, known.odds
        if rows != [*range(len(table))]:
            index = self._sent(rows)
            table = table.index_select(0, index)
            odds = None if odds is None else odds.index_select(0, index)
        most = table.shape[1]
        each = zip(table.unbind(0), counts, strict=True)
        tokens = [row if count == most else row[:count] for row, count in each]
        if odds is not None:
            odds = odds.flatten(0, 1)
            if min(counts) < most:
                kept = [row * most + place for row, count in enumerate(counts) for place in range(count)]
                odds = odds.index_select(0, self._sent(kept))
        return Drafted(tokens, odds, parents, table)

    def _step_by_step(self, tasks: Sequence[Task], limit: Mapping[Task, int]) -> _Proposed:
        """Propose by running the steps one at a time. Tasks that still lack tokens get no row."""
        active, logits = self._extend(tasks)
        # the tasks with the most drafts come first, since each later decode runs only the first few tasks
        order = sorted(range(len(active)), key=lambda i: -limit[active[i]])
        if order != [*range(len(active))]:
            logits = logits[self._sent(order)]
        active = [active[i] for i in order]
        found = _Proposed.empty(active, self._most, logits)
        slots = self._sent([task.slot for task in active])
        for place in range(0, limit[active[0]] if active else 0, self.siblings):
            if place:
                active = [task for task in active if limit[task] > place]
                drafted = found.table[: len(active), : place : self.siblings]
                logits = self._decode(active, place // self.siblings, drafted)
            for number in range(place, min(place + self.siblings, self._most)):
                chosen, q = self._choose(active, logits)
                if number == place:
                    self._newest[slots[: len(active)]] = chosen
                found.table[: len(active), number] = chosen
                if found.odds is not None:
                    found.odds[: len(active), number] = q
                if number + 1 < place + self.siblings:
                    logits = _without(logits, chosen)
        return found

    def _parents(self, count: int) -> list[int]:
        """The index of each token's parent: all siblings follow the first token of the previous position."""
        return [max(-1, (i // self.siblings - 1) * self.siblings) for i in range(count)]

    def _extend(self, tasks: Sequence[Task]) -> tuple[list[Task], torch.Tensor]:
        """Run missing tokens, as many as fit in a step; tasks that lack few come first.

        Returns:
            The tasks without missing tokens after this step, and the logits after each one's newest token.
        """
        texts = {task: self._text(task) for task in sorted(tasks, key=lambda task: task.slot)}
        lacks = {task: len(text) - task.drafted for task, text in texts.items()}
        left, counts = self._rows, dict.fromkeys(lacks, 0)
        for task in sorted(lacks, key=lambda task: lacks[task]):
            counts[task] = min(left, lacks[task])
            left -= counts[task]
        rows = [(task, count) for task, count in counts.items() if count]
        prefill: Any = [(Text(task.slot, task.drafted, texts[task]), count) for task, count in rows]
        logits = self._run(Schedule(decode=[], prefill=prefill, forks=[])) if rows else self._newest[:0]
        self.runner.sequences.advance_drafted(rows)
        return [task for task in counts if counts[task] == lacks[task]], logits

    def _text(self, task: Task) -> npt.NDArray[np.int64]:
        """All tokens that the draft model must run before it can propose."""
        return np.concatenate([task.ids, np.array(task.tokens, dtype=np.int64)])

    def _decode(self, tasks: Sequence[Task], turn: int, drafted: torch.Tensor) -> torch.Tensor:
        """Run draft number `turn` of each task, counted from 1; return the logits after this draft."""
        none = np.zeros(0, dtype=np.int64)
        decode: Any = [Text(task.slot, task.length + turn, none) for task in tasks]
        return self._run(Schedule(decode=decode, prefill=[], forks=[], fresh=turn == 1))

    def _run(self, schedule: Schedule) -> torch.Tensor:
        runner = self.runner
        ran = None if runner.graphs is None else runner.graphs.run(schedule)
        if ran is not None:
            return ran.logits
        step = runner.builder.build(schedule, runner.sequences.page_table, self._newest)
        return runner.forward(self._on_second_slots(step, schedule.fresh) if schedule.decode else step)

    def _on_second_slots(self, step: Step, fresh: bool) -> Step:
        """The step with its states in second slots; if `fresh`, states are read from the first slots."""
        (part,) = step.parts
        assert part.states is not None
        write = part.states.write_slots + self._slots
        states = replace(
            part.states, read_slots=part.states.read_slots if fresh else write, write_slots=write
        )
        return replace(step, parts=(replace(part, states=states),))

    def _choose(self, tasks: Sequence[Task], logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Choose a draft for each task.

        Returns:
            The drafts, [N] int64, and the distributions that they were drawn from, [N, vocabulary] float64;
            zeros for greedy tasks.
        """
        tokens = logits.argmax(-1)
        sampled = [row for row, task in enumerate(tasks) if task.params.temperature > 0]
        q = torch.zeros(logits.shape if sampled else (), dtype=torch.float64, device=logits.device)
        if sampled:
            index, own = self._sent(sampled), [tasks[row] for row in sampled]
            q[index] = odds = probabilities(logits[index], [task.params for task in own])
            tokens[index] = draw(odds, [task.draws for task in own], self._choose_tokens)
        return tokens, q.expand(logits.shape)

    def prepare_graphs(self, capture: Capture) -> Graphs:
        """Create the graphs of the model's steps, without capturing anything yet."""
        if capture.propose is not None:
            self._form = Form(self._most, self.siblings, self.branches, self.kept_newest)
        return self.runner.prepare_graphs(
            capture, last_tokens=self._newest, apart=self._slots, form=self._form
        )

    def _sent(self, values: Sequence[int]) -> torch.Tensor:
        return sent(values, torch.int64, self._newest.device, pin_memory=self._pin_memory)


class DraftTrees(DraftModel):
    """Proposes trees: several chains (branches), which begin with different tokens.

    The first tokens of the branches are drawn without replacement. To extend the branches, the draft model
    runs a verification of the newest accepted token, which its pools lack, and of the whole tree after it.
    The verification is not committed and writes no states, so branches need no slots of their own.
    """

    are_trees = True
    kept_newest = 0

    def __init__(self, runner: Runner, options: EngineOptions, choose_tokens: Choose) -> None:
        """Same arguments as `DraftModel`."""
        super().__init__(runner, options, choose_tokens)
        self.branches = options.draft_branches

    def _step_by_step(self, tasks: Sequence[Task], limit: Mapping[Task, int]) -> _Proposed:
        active, logits = self._extend(tasks)
        found = _Proposed.empty(active, self._most, logits)
        counts, tokens = dict.fromkeys(active, 0), found.table.unbind(0)
        while active:
            drafted = {task: tokens[found.rows[task]][: counts[task]] for task in active}
            is_first = not counts[active[0]]
            owners, logits = self._verify(active, drafted, limit)
            for _ in range(self.branches if is_first else 1):
                chosen, q = self._choose(owners, logits)
                kept, places = list[int](), list[int]()
                for number, task in enumerate(owners):
                    if counts[task] < limit[task]:
                        kept.append(number)
                        places.append(found.rows[task] * self._most + counts[task])
                        counts[task] += 1
                own, place = self._sent(kept), self._sent(places)
                found.table.view(-1)[place] = chosen[own]
                if found.odds is not None:
                    found.odds.flatten(0, 1)[place] = q[own]
                if is_first:
                    logits = _without(logits, chosen)
            active = [task for task in active if counts[task] < limit[task]]
        return found

    def _text(self, task: Task) -> npt.NDArray[np.int64]:
        return super()._text(task)[:-1]

    def _verify(
        self, tasks: Sequence[Task], drafted: Mapping[Task, torch.Tensor], limit: Mapping[Task, int]
    ) -> tuple[list[Task], torch.Tensor]:
        """Run all trees; return the task of each branch to continue, and the logits after the branch."""
        none = np.zeros(0, dtype=np.int64)
        trees = Drafted(
            [drafted[task] for task in tasks],
            parents=[self._parents(len(drafted[task])) for task in tasks],
        )
        decode: Any = [Text(task.slot, task.length, none) for task in tasks]
        schedule = Schedule(decode=decode, prefill=[], forks=[], drafted=trees)
        runner, sequences = self.runner, self.runner.sequences
        step = runner.builder.build(schedule, sequences.page_table, sequences.last_tokens)
        owners, rows, start = list[Task](), list[int](), 0
        for task in tasks:
            count = len(drafted[task])
            first = max(0, 1 + count - self.branches) if count else 0
            own = range(first, 1 + count)[: limit[task] - count]
            owners += [task] * len(own)
            rows += [start + row for row in own]
            start += 1 + count
        return owners, runner.forward(step)[self._sent(rows)]

    def _parents(self, count: int) -> list[int]:
        return [max(-1, i - self.branches) for i in range(count)]


def _without(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """The logits [N, vocabulary] with the chosen tokens [N] int64 excluded."""
    return logits.scatter(1, tokens.unsqueeze(1), -torch.inf)


def _wanted(tasks: Sequence[Task], limits: Sequence[int]) -> list[Task]:
    """The tasks that need proposals."""
    return [task for task, limit in zip(tasks, limits, strict=True) if limit]


def _is_ending(task: Task) -> bool:
    """Whether the running step gives a task its last token."""
    return task.params.max_new_tokens - len(task.tokens) <= 1


@dataclass(frozen=True, slots=True)
class _Proposed:
    """Proposals for some tasks.

    Attributes:
        table: [N, tokens] int64, the proposals.
        rows: The row of each task.
        odds: [N, tokens, vocabulary] float64, the distributions from which the proposals were drawn; zeros
            for greedy tasks. None if all tasks are greedy.
    """

    table: torch.Tensor
    rows: Mapping[Task, int]
    odds: torch.Tensor | None = None

    @classmethod
    def empty(cls, tasks: Sequence[Task], tokens: int, logits: torch.Tensor) -> _Proposed:
        """Zeros to fill in. `logits`, [..., vocabulary], gives the device and the vocabulary's size."""
        shape = len(tasks), tokens
        odds = None
        if any(task.params.temperature > 0 for task in tasks):
            odds = logits.new_zeros((*shape, logits.shape[-1]), dtype=torch.float64)
        rows = {task: row for row, task in enumerate(tasks)}
        return cls(logits.new_zeros(shape, dtype=torch.int64), rows, odds)

    @classmethod
    def joined(cls, groups: Sequence[_Proposed]) -> _Proposed:
        """Concatenate groups. Only the last group may have sampled tasks."""
        joined = groups[0]
        for other in groups[1:]:
            count, odds = len(joined.table), other.odds
            rows = {**joined.rows, **{task: count + row for task, row in other.rows.items()}}
            if odds is not None:
                odds = torch.cat([odds.new_zeros((count, *odds.shape[1:])), odds])
            joined = cls(torch.cat([joined.table, other.table]), rows, odds)
        return joined


@dataclass(frozen=True, slots=True)
class DraftCheckpoint:
    """The checkpoint of a draft model that is not loaded yet.

    Attributes:
        path: The folder.
        config: The config from `read_config`.
        family: The model's family.
    """

    path: Path
    config: dict[str, Any]
    family: Family


def find_draft(
    runtime: Runtime,
    checkpoint: str | os.PathLike[str],
    target: Mapping[str, Any],
    max_length: int | None,
) -> DraftCheckpoint:
    """Find a draft model's checkpoint, and compare its config with the config of the engine's model.

    Args:
        runtime: The runtime with the families.
        checkpoint: The folder or name, as for `Engine`.
        target: The config of the engine's model.
        max_length: Maximum tokens per sequence; None for the limit of the engine's model.

    Raises:
        ConfigError: The draft model's vocabulary differs, or its maximum length is smaller than needed.
        CheckpointError: There is no such checkpoint, or no family runs it.
    """
    path = find_checkpoint(os.fsdecode(checkpoint), words=(NGRAM, MTP))
    config, family = read_config(path, runtime.family_of)
    _check_sizes(
        path,
        _size(config, "vocab_size"),
        _size(target, "vocab_size"),
        _size(config, "max_position_embeddings"),
        max_length or _size(target, "max_position_embeddings"),
    )
    return DraftCheckpoint(path, config, family)


def _size(config: Mapping[str, Any], name: str) -> int | None:
    """A size from a config, or from the `text_config` of a multimodal model; None if it is missing."""
    text = config.get("text_config")
    found = config.get(name, text.get(name) if isinstance(text, dict) else None)
    return found if is_count(found) else None


def _check_sizes(
    path: Path, vocabulary: int | None, wanted: int | None, length: int | None, needed: int | None
) -> None:
    """Compare the sizes of a draft model with the sizes that the engine needs; None stands for unknown.

    Raises:
        ConfigError: The vocabulary differs, or the draft model's maximum length is smaller than needed.
    """
    if vocabulary is not None and wanted is not None and vocabulary != wanted:
        what, valid = f"a vocabulary of {vocabulary} tokens", f"{wanted} tokens, as in the engine's model"
    elif length is not None and needed is not None and length < needed:
        what = f"a maximum length of {length} tokens"
        valid = (
            f"at least {needed}, the maximum length of the engine; or an engine with a max_length of at most "
            f"{length}"
        )
    else:
        return
    raise ConfigError(
        f"the draft model in {path} has {what}; valid: {valid}",
        problems={"draft": f"found {what}"},
        valid={"draft": valid},
    )


@dataclass(frozen=True, slots=True)
class LoadedDraft:
    """A loaded draft model, or the loaded steps of a draft head, without pools.

    Attributes:
        models: The model, or the steps, with their routes.
        options: The options of the models' runners; `make` sets `num_pages`.
        needs: The memory of the models' pools, and of hidden states kept for a head.
        capture: The steps to capture; None to capture nothing.
        max_length: Maximum tokens per sequence.
        propose: Makes the `DraftModel` from the runner of the engine's model and the models' runners.
    """

    models: Sequence[LoadedModel]
    options: EngineOptions
    needs: Needs
    capture: Capture | None
    max_length: int
    propose: Callable[[Runner, Sequence[Runner]], DraftModel]

    def make(self, target: Runner) -> DraftModel:
        """Allocate pools with as many pages as the engine's model has, and connect the models."""
        options = replace(self.options, num_pages=target.pools.pages.capacity + 1)
        with ExitStack() as undo:
            runners = []
            for model in self.models:
                runners.append(model.make(options, max_length=self.max_length, sequences=target.sequences))
                undo.callback(runners[-1].disconnect)
            drafts = self.propose(target, runners)
            undo.pop_all()
            return drafts


def runner_options(options: EngineOptions) -> EngineOptions:
    """The options of a draft model's runner, which has two slots per sequence of the engine."""
    sequences = 2 * options.max_sequences
    return replace(
        options,
        max_sequences=sequences,
        max_tokens_per_step=max(options.max_tokens_per_step, sequences),
        draft=None,
        draft_branches=1,
    )


def load_draft(
    runtime: Runtime,
    draft: DraftCheckpoint,
    *,
    platform: Platform,
    dtype: torch.dtype,
    options: EngineOptions,
    max_length: int,
    vocab_size: int,
    choose_tokens: Choose,
) -> LoadedDraft:
    """Load a draft model.

    Args:
        runtime: The runtime with the backends.
        draft: The result of `find_draft`.
        platform: The engine's platform.
        dtype: The dtype of weights and activations.
        options: The engine's options.
        max_length: Maximum tokens per sequence.
        vocab_size: The number of tokens in the vocabulary of the engine's model.
        choose_tokens: Chooses the tokens of sampled requests.

    Raises:
        ConfigError: The draft model's vocabulary differs, or its maximum length is smaller than needed.
        SwitchrailError: As for `Engine`.
    """
    own, sequences = runner_options(options), options.max_sequences
    kind = DraftTrees if options.draft_branches > 1 else DraftModel
    loaded = load_model(
        runtime,
        draft.path,
        draft.config,
        draft.family,
        platform=platform,
        dtype=dtype,
        are_trees=kind.are_trees,
        options=own,
        max_length=max_length,
    )
    model = loaded.checkpoint
    _check_sizes(draft.path, model.vocab_size, vocab_size, model.max_length, max_length)
    return LoadedDraft(
        [loaded],
        own,
        loaded.needs(own),
        loaded.capture(
            replace(own, max_sequences=sequences),
            max_length=max_length,
            proposes="trees" if kind.are_trees else "chains",
        ),
        max_length,
        lambda target, runners: kind(runners[0], options, choose_tokens),
    )
