"""Captured proposals of a draft model: one graph runs all steps of a proposal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from switchrail._core import PAGED_OPS, BoundPlan
from switchrail.dispatch import Dispatcher, Prepared
from switchrail.engine.capturer import Captured, Capturer
from switchrail.engine.drafts import Verified
from switchrail.engine.inputs import DecodeInputs, Tables
from switchrail.engine.keys import Key
from switchrail.engine.pieces import Pieces
from switchrail.engine.step import Step
from switchrail.engine.transfer import transfer
from switchrail.engine.verify_inputs import VerifyInputs
from switchrail.ops.batch import Bounds
from switchrail.platforms import serving

_LENGTH, _SLOT, _PAGES, _COUNT = range(4)

Forward = Callable[[Step, Prepared], torch.Tensor]
"""Runs a step of the draft model; returns the logits of its `logit_rows`, [R, vocabulary]."""


@dataclass(frozen=True, slots=True)
class Form:
    """How a draft model proposes.

    Attributes:
        tokens: Drafted tokens per sequence.
        siblings: Tokens for each position of a chain; the chain continues with the first of them.
        branches: Chains per sequence, which begin with different tokens. Above 1, the model verifies the
            whole tree to extend it.
        kept_newest: 1 if the model's pools keep an entry for the newest token between proposals; 0 if not.
    """

    tokens: int
    siblings: int
    branches: int
    kept_newest: int

    @property
    def held(self) -> int:
        """1 if proposals run the newest token without keeping it in the model's pools; 0 if not."""
        return int(self.branches > 1)

    @property
    def width(self) -> int:
        """Rows per sequence of the step that runs accepted tokens."""
        return 1 + self.tokens + self.held


@dataclass(frozen=True, slots=True)
class Lacking:
    """A sequence whose newest tokens the draft model's pools lack.

    Attributes:
        slot: The slot of the sequence's states.
        length: The number of the sequence's entries in the pools.
        pages: The number of the sequence's pages.
        tokens: The tokens to run after these entries, the newest included.
    """

    slot: int
    length: int
    pages: int
    tokens: Sequence[int]


class Proposals:
    """Proposals for greedy requests, captured as one graph for each number of sequences and length of caches.

    The graph first runs the accepted tokens that the model's pools lack, as a verification, and commits them.
    Then it runs the steps that `DraftModel` or `DraftTrees` describes. Tokens, lengths and states stay on the
    device, so the graph can also follow a verification before the host knows which drafts are accepted.

    Attributes:
        form: How the model proposes.
    """

    def __init__(
        self,
        form: Form,
        capturer: Capturer,
        forward: Forward,
        dispatcher: Dispatcher,
        routes: tuple[BoundPlan, BoundPlan],
        decodes: DecodeInputs,
        tables: Tables,
        derived: serving.Forward,
    ) -> None:
        """Allocate the inputs. This captures nothing.

        Args:
            form: How the model proposes.
            capturer: Captures steps.
            forward: Runs a step.
            dispatcher: Dispatches the layers' calls to backends.
            routes: The routes of decodes and of verifications.
            decodes: Inputs of decodes with second slots.
            tables: The tables of `decodes`; `last_tokens` receives the newest draft of each sequence.
            derived: The function for the operation `VerifyRows`.
        """
        sequences, newest, device = tables.sequences, tables.last_tokens, tables.device
        self.form = form
        self._capturer, self._forward, self._dispatcher = capturer, forward, dispatcher
        self._decode_routes, self._verify_routes = routes
        self._decodes, self._newest = decodes, newest
        self._page_size, self._device, self._pin_memory = tables.page_size, device, tables.pin_memory
        self._most_cached = tables.page_table.shape[1] * tables.page_size
        self._has_states = not dispatcher.ops <= {*PAGED_OPS}
        self._first = torch.zeros_like(newest)
        first = replace(tables, last_tokens=self._first)
        self._extended = VerifyInputs(first, width=form.width, are_trees=False, derived=derived)
        widths = range(1 + form.branches, 1 + form.tokens, form.branches) if form.held else ()
        self._trees = [VerifyInputs(tables, width=width, are_trees=True, derived=derived) for width in widths]
        self._extended.set_branches(1)
        for inputs in self._trees:
            inputs.set_branches(form.branches)
        self._rows = torch.zeros(4, sequences, dtype=torch.int64, device=device)
        self._rows[_SLOT] = -1
        self._tokens = torch.zeros(sequences, form.width, dtype=torch.int64, device=device)
        self._starts = torch.arange(sequences, dtype=torch.int64, device=device) * form.width
        self._last = torch.zeros(sequences, dtype=torch.int64, device=device)
        self._found = torch.zeros(sequences, form.tokens, dtype=torch.int64, device=device)
        self._link: Pieces | None = None

    def capture(self, key: Key) -> Captured:
        """Capture the proposals of a key."""
        assert key.tokens is not None
        count, dispatcher = key.rows, self._dispatcher
        self._fill(())
        made = self._extended.step(count, key.tokens + self.form.width)
        extended = replace(made, logit_rows=self._last[:count])
        steps, prepared = [extended], [self._prepare(extended, self._verify_routes, count)]
        for inputs in self._trees:
            tree = self._tree_step(inputs, count, key.tokens + 2 * self.form.width)
            steps.append(tree)
            prepared.append(self._prepare(tree, self._verify_routes, count))
        if not self.form.held:
            most = min(key.tokens + 2 * self.form.width, self._most_cached)
            decode = self._decodes.bounded_step(count, most)
            steps.append(decode)
            prepared.append(self._prepare(decode, self._decode_routes, count, most))

        def work() -> None:
            propose = self._grow_trees if self.form.held else self._grow_chains
            propose(steps, prepared, count)

        try:
            pieces = self._capturer.capture_after(work)
        finally:
            dispatcher.forget()
        return Captured(key, pieces, extended, prepared[0], others=tuple(zip(steps, prepared, strict=True)))

    def _prepare(self, step: Step, routes: BoundPlan, count: int, tokens: int | None = None) -> Prepared:
        (part,) = step.parts
        assert part.pages is not None
        columns = part.pages.page_table.shape[1]
        bounds = Bounds(sequences=count, rows=len(step.kv_rows), tokens=tokens or columns * self._page_size)
        return self._dispatcher.prepare(step.parts, bounds, routes)

    def run(self, captured: Captured, lacking: Sequence[Lacking]) -> torch.Tensor:
        """Propose after tokens that the host knows; return the drafts as `follow` does."""
        self._fill(lacking)
        return self._replay(captured, [each.length for each in lacking])

    def follow(self, captured: Captured, verified: Verified, lengths: Sequence[int]) -> torch.Tensor:
        """Propose after a verification whose accepted tokens only the device knows.

        Args:
            captured: The captured proposals.
            verified: The verification, with the same tensors in all calls.
            lengths: The number of each sequence's entries in the model's pools.

        Returns:
            [N, tokens] int64, which the next proposal overwrites. Drafts past the sequence's last page are
            undefined.
        """
        if self._link is None:
            self._link = self._capturer.capture_after(lambda: self._take(verified))
        self._link.replay(self._dispatcher.dispatch)
        return self._replay(captured, lengths)

    def _fill(self, lacking: Sequence[Lacking]) -> None:
        numbers = np.zeros(self._rows.shape, dtype=np.int64)
        numbers[_SLOT] = -1
        tokens = np.zeros(self._tokens.shape, dtype=np.int64)
        for place, each in enumerate(lacking):
            numbers[:, place] = each.length, each.slot, each.pages, len(each.tokens)
            tokens[place, : len(each.tokens)] = each.tokens
        rows, table = transfer([numbers.ravel(), tokens.ravel()], self._device, self._pin_memory)
        self._rows.copy_(rows.view_as(self._rows))
        self._tokens.copy_(table.view_as(self._tokens))

    def _take(self, verified: Verified) -> None:
        """Copy the tokens that a verification accepted; padding has slot -1."""
        form, count = self.form, verified.rows.shape[1]
        rows, tokens = self._rows[:, :count], self._tokens[:count]
        rows[:3].copy_(verified.rows)
        rows[_LENGTH] += form.kept_newest * (verified.rows[_SLOT] >= 0)
        accepted = verified.news[:, 0]
        rows[_COUNT].copy_((accepted + 1 + form.held).masked_fill(verified.rows[_SLOT] < 0, 0))
        if form.held:
            tokens[:, 0].copy_(verified.before)
        tokens[:, form.held :].copy_(verified.news[:, 1:].clamp(min=0))  # -1 if logits are not finite

    def _replay(self, captured: Captured, lengths: Sequence[int]) -> torch.Tensor:
        form, dispatcher = self.form, self._dispatcher
        for number, (step, prepared) in enumerate(captured.others):
            if number == 0:
                part = self._extended.part(step, lengths)
            elif form.held:
                bounds = [length + form.width for length in lengths]
                part = self._trees[number - 1].part(step, bounds, bounded=True)
            else:
                bounds = [min(length + 2 * form.width, self._most_cached) for length in lengths]
                part = self._decodes.bounded_part(step, bounds)
            dispatcher.refresh(prepared, (part,))
        captured.pieces.replay(dispatcher.dispatch)
        return self._found[: len(lengths)]

    def _extend(self, step: Step, prepared: Prepared, count: int) -> torch.Tensor:
        """Run the accepted tokens; return the logits after the newest one of each sequence."""
        _, slots, _, counts = self._rows[:, :count]
        last = (counts - 1).clamp(min=0)
        torch.add(self._starts[:count], last, out=self._last[:count])
        self._first.scatter_(0, slots.clamp(min=0), self._tokens[:count, 0])
        self._extended.take(self._rows[:3, :count], self._tokens[:count], counts)
        self._extended.derive(step)
        logits = self._forward(step, prepared)
        self._dispatcher.commit((last - self.form.held).clamp(min=0))
        return logits

    def _grow_chains(self, steps: Sequence[Step], prepared: Sequence[Prepared], count: int) -> None:
        form, decode = self.form, self._decodes
        logits = self._extend(steps[0], prepared[0], count)
        lengths, slots, pages, counts = self._rows[:, :count]
        ends = lengths + counts
        free = pages * self._page_size - ends
        decode.begin(ends, slots, states=self._has_states)
        owners = slots.clamp(min=0)
        for place in range(0, form.tokens, form.siblings):
            if place:
                decode.pad(free < place // form.siblings)
                decode.derive(steps[1])
                logits = self._forward(steps[1], prepared[1])
                if place == form.siblings and self._has_states:
                    decode.read_second(count)
            for sibling in range(min(form.siblings, form.tokens - place)):
                chosen = logits.argmax(-1)
                self._found[:count, place + sibling].copy_(chosen)
                if sibling == 0:
                    self._newest.scatter_(0, owners, chosen)
                if sibling + 1 < form.siblings:
                    logits = logits.scatter(1, chosen.unsqueeze(1), -torch.inf)

    def _grow_trees(self, steps: Sequence[Step], prepared: Sequence[Prepared], count: int) -> None:
        form = self.form
        logits = self._extend(steps[0], prepared[0], count)
        lengths, slots, pages, counts = self._rows[:, :count]
        numbers = torch.stack([(lengths + counts - 1).clamp(min=0), slots, pages])
        newest = self._tokens[:count].gather(1, (counts - 1).clamp(min=0).unsqueeze(1)).squeeze(1)
        self._newest.scatter_(0, slots.clamp(min=0), newest)
        for place in range(form.branches):
            chosen = logits.argmax(-1)
            self._found[:count, place].copy_(chosen)
            logits = logits.scatter(1, chosen.unsqueeze(1), -torch.inf)
        done = form.branches
        for inputs, step, plan in zip(self._trees, steps[1:], prepared[1:], strict=True):
            inputs.take(numbers, torch.cat([newest.unsqueeze(1), self._found[:count, :done]], 1))
            inputs.derive(step)
            own = self._forward(step, plan).argmax(-1).view(count, -1)
            more = own.shape[1]
            self._found[:count, done : done + more].copy_(own)
            done += more

    def _tree_step(self, inputs: VerifyInputs, count: int, tokens: int) -> Step:
        """The step that runs a tree and returns the logits of the nodes to continue."""
        step = inputs.step(count, tokens)
        form, width = self.form, len(step.kv_rows) // count
        ends = range(width - form.branches, width)[: form.tokens + 1 - width]
        rows = [width * sequence + row for sequence in range(count) for row in ends]
        return replace(step, logit_rows=torch.tensor(rows, dtype=torch.int64, device=self._device))
