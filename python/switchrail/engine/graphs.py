"""The captured steps of a model, by key."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from traceback import walk_tb

import torch

from switchrail.checks import shown
from switchrail.engine.capture import CapturePlan, GraphState
from switchrail.engine.capturer import Captured
from switchrail.engine.decodes import Decodes
from switchrail.engine.drafts import Verified
from switchrail.engine.keys import Key
from switchrail.engine.mixed import MixedSteps
from switchrail.engine.proposals import Lacking, Proposals
from switchrail.engine.scheduler import Schedule
from switchrail.engine.step import Ran
from switchrail.engine.verifications import Verifications
from switchrail.engine.watch import ENGINE, HookWatch
from switchrail.hooks import chain

_log = logging.getLogger("switchrail")
_length = attrgetter("length")


Progress = Callable[[int, int], None]
"""Receives the number of finished captures and the number of all captures."""


class Graphs:
    """The captured steps of a model. Steps without a graph run eagerly.

    Attributes:
        keys: All keys.
        captured: The captured steps, by key.
        refused: The reasons why keys could not be captured, by key.
    """

    def __init__(
        self,
        plan: CapturePlan,
        decodes: Decodes,
        mixed: MixedSteps,
        verifications: Verifications | None,
        proposals: Proposals | None,
        watch: HookWatch,
    ) -> None:
        """Store the arguments without capturing anything.

        Args:
            plan: The steps to capture.
            decodes: Captures and runs decodes.
            mixed: Captures and runs steps with prompt tokens.
            verifications: Captures and runs verifications; None if these are not captured.
            proposals: Captures and runs whole proposals; None if these are not captured.
            watch: Detects changes of hooks.
        """
        self.keys = plan.keys
        self._plan = plan
        self._decodes, self._mixed, self._verifications = decodes, mixed, verifications
        self._proposals = proposals
        self._watch = watch
        self.captured: dict[Key, Captured] = {}
        self.refused: dict[Key, str] = {}

    @property
    def in_order(self) -> list[Key]:
        """All keys, largest first, so that smaller captures share the working memory of larger ones."""
        return sorted(self.keys, key=_size, reverse=True)

    @torch.inference_mode()
    def capture(self, keys: Sequence[Key], progress: Progress = lambda done, total: None) -> None:
        """Capture keys. If this fails for a key, its steps run eagerly, and a warning is logged.

        Args:
            keys: The keys to capture, in this order.
            progress: Called before each capture and after the last, with the numbers of finished and of all
                captures.
        """
        for done, key in enumerate(keys):
            progress(done, len(keys))
            self._try(key)
        progress(len(keys), len(keys))

    def states(self) -> tuple[GraphState, ...]:
        """The state of each key."""
        return tuple(replace(state, reason=self.refused.get(key)) for key, state in self._plan.states())

    def run(self, schedule: Schedule) -> Ran | None:
        """Run a schedule's tokens.

        If hooks have changed since the schedule's key was captured, the key is captured again first.

        Returns:
            The launched step; None if the schedule has no graph.
        """
        key = self._key(schedule)
        captured = None if key is None else self._captured(key)
        if self._verifications is not None and (captured is None or captured.key.kind != "verify"):
            self._verifications.settle()
        if captured is None:
            return None
        if captured.key.kind == "decode":
            return self._decodes.run(captured, schedule.decode, fresh=schedule.fresh)
        if captured.key.kind == "mixed":
            return self._mixed.run(captured, schedule)
        assert self._verifications is not None
        return self._verifications.run(captured, schedule)

    def propose(self, lacking: Sequence[Lacking]) -> torch.Tensor | None:
        """Propose for sequences whose newest tokens the draft model's pools lack.

        Returns:
            As in `Proposals.follow`; None if there is no graph.
        """
        found = self._proposals_at([each.length for each in lacking])
        return None if found is None else found[0].run(found[1], lacking)

    def propose_after(self, verified: Verified, lengths: Sequence[int]) -> torch.Tensor | None:
        """Propose after a verification; None if there is no graph. See `Proposals.follow`."""
        found = self._proposals_at(lengths)
        return None if found is None else found[0].follow(found[1], verified, lengths)

    def _proposals_at(self, lengths: Sequence[int]) -> tuple[Proposals, Captured] | None:
        key = self.keys.propose(len(lengths), max(lengths))
        captured = None if key is None else self._captured(key)
        if captured is None or self._proposals is None:
            return None
        return self._proposals, captured

    def _captured(self, key: Key) -> Captured | None:
        if self._watch.has_changed():
            self._drop()
        if key not in self.captured and key not in self.refused:
            self._try(key)
        return self.captured.get(key)

    def _key(self, schedule: Schedule) -> Key | None:
        drafted = schedule.drafted
        if schedule.prefill:
            rows = len(schedule.decode) + sum(count for _, count in schedule.prefill)
            return self.keys.mixed(rows + (0 if drafted is None else sum(map(len, drafted.tokens))))
        longest = max(map(_length, schedule.decode)) + 1
        find = self.keys.decode if drafted is None else self.keys.verify
        return find(len(schedule.decode), longest)

    def _drop(self) -> None:
        self.captured.clear()
        self.refused.clear()
        self._watch.look()

    def _try(self, key: Key) -> None:
        try:
            kind = {
                "decode": self._decodes,
                "verify": self._verifications,
                "mixed": self._mixed,
                "propose": self._proposals,
            }[key.kind]
            assert kind is not None
            self.captured[key] = kind.capture(key)
        except Exception as error:
            self.refused[key] = f"{type(error).__name__}: {error}{_hooks_that_raised(error)}"
            _log.warning("%s run eagerly, because capturing one failed: %s", key.name, shown(error, None))


def capture_all(graphs: Sequence[Graphs], progress: Progress) -> None:
    """Capture all keys of several models, and report the progress of all of them together."""
    total, before = sum(len(each.in_order) for each in graphs), 0

    def report(before: int, done: int, _: int) -> None:
        progress(before + done, total)

    for each in graphs:
        each.capture(each.in_order, partial(report, before))
        before += len(each.in_order)


def _hooks_that_raised(error: Exception) -> str:
    """Describe the hooks in the traceback of an error."""
    codes = {frame.f_code for frame, _ in walk_tb(error.__traceback__)}
    found = [
        f"{hook.name} on {hook.target_name} by {hook.source}"
        for hook in chain.running()
        if hook.source != ENGINE and getattr(hook.fn, "__code__", None) in codes
    ]
    return f"; raised within the hook {', '.join(found)}" if found else ""


def _size(key: Key) -> tuple[int, int]:
    return key.rows, key.tokens or 0
