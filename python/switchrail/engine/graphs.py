"""The steps of a model that were captured, by their keys."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from switchrail.engine.capturer import Captured
from switchrail.engine.decodes import Decodes
from switchrail.engine.keys import Key, Keys, StepKind
from switchrail.engine.mixed import MixedSteps
from switchrail.engine.scheduler import Schedule
from switchrail.engine.watch import HookWatch

_log = logging.getLogger("switchrail")


Progress = Callable[[int, int], None]
"""Is told how much is done, and how much there is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphState:
    """What became of a key.

    Attributes:
        kind: `decode`, or `mixed` with prompt tokens.
        rows: Rows, padding included; in a decode one for each sequence.
        tokens: Tokens of the longest cache; None: any number.
        backends: Which captured backends serve it, by op and phase.
        eager: The calls that run eagerly between captured pieces, by op and phase, and why they do.
        reason: Why nothing is captured, so that such steps run eagerly; None where something is, or will be
            when it is needed.
    """

    kind: StepKind
    rows: int
    tokens: int | None
    backends: Mapping[str, str]
    eager: Mapping[str, str]
    reason: str | None

    @property
    def name(self) -> str:
        """Which steps these are, in words."""
        return Key(self.kind, self.rows, self.tokens).name


class Graphs:
    """The captured steps of a model; one that none of them serves runs eagerly.

    Attributes:
        keys: All keys.
        captured: The step of each key that could be captured.
        refused: Why the others could not.
    """

    def __init__(
        self,
        keys: Keys,
        decodes: Decodes,
        mixed: MixedSteps,
        watch: HookWatch,
        eager: Mapping[StepKind, Mapping[str, str]],
    ) -> None:
        """Captures nothing yet.

        Args:
            keys: All keys.
            decodes: Captures and runs decodes.
            mixed: Captures and runs steps with prompt tokens.
            watch: Tells when hooks have changed.
            eager: Of each kind of step the calls that run eagerly, by op and phase, and why.
        """
        self.keys = keys
        self._decodes = decodes
        self._mixed = mixed
        self._watch = watch
        self._eager = eager
        self.captured: dict[Key, Captured] = {}
        self.refused: dict[Key, str] = {}

    @property
    def in_order(self) -> list[Key]:
        """All keys, the largest first, whose working memory the others then share."""
        return sorted(self.keys, key=_size, reverse=True)

    @torch.inference_mode()
    def capture(self, keys: Sequence[Key], progress: Progress = lambda done, total: None) -> None:
        """Captures keys.

        Args:
            keys: Which, in this order.
            progress: Is called before each and after the last, with how many are done and how many there are.
        """
        for done, key in enumerate(keys):
            progress(done, len(keys))
            self._try(key)
        progress(len(keys), len(keys))

    def states(self) -> tuple[GraphState, ...]:
        """What became of each key."""
        return tuple(
            GraphState(
                kind=key.kind,
                rows=key.rows,
                tokens=key.tokens,
                backends=self.captured[key].prepared.backends if key in self.captured else {},
                eager=self._eager[key.kind] if key in self.captured else {},
                reason=self.refused.get(key),
            )
            for key in self.keys
        )

    def run(self, schedule: Schedule) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Runs a schedule's tokens.

        Where hooks have changed since a key was captured, it is captured again first.

        Returns:
            [R, vocabulary] and the R slots, overwritten by the next step; None where no graph serves it.
        """
        key = self._key(schedule)
        if key is None:
            return None
        if self._watch.has_changed():
            self._drop()
        if key not in self.captured and key not in self.refused:
            self._try(key)
        captured = self.captured.get(key)
        if captured is None:
            return None
        if key.kind == "decode":
            return self._decodes.run(captured, schedule.decode)
        return self._mixed.run(captured, schedule)

    def _key(self, schedule: Schedule) -> Key | None:
        if not schedule.prefill:
            longest = max(task.length for task in schedule.decode) + 1
            return self.keys.decode(len(schedule.decode), longest)
        return self.keys.mixed(len(schedule.decode) + sum(count for _, count in schedule.prefill))

    def _drop(self) -> None:
        self.captured.clear()
        self.refused.clear()
        self._watch.look()

    def _try(self, key: Key) -> None:
        try:
            kind = self._decodes if key.kind == "decode" else self._mixed
            self.captured[key] = kind.capture(key)
        except Exception as error:
            self.refused[key] = f"{type(error).__name__}: {error}"
            _log.warning("%s run eagerly, capturing one failed: %s", key.name, repr(error))


def _size(key: Key) -> tuple[int, int]:
    return key.rows, key.tokens or 0


__all__ = ["GraphState", "Graphs", "Progress"]
