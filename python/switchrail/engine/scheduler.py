"""Which tokens run in the next step."""

from __future__ import annotations

from bisect import insort
from collections import deque
from dataclasses import dataclass
from operator import attrgetter

from switchrail.engine.options import EngineOptions
from switchrail.engine.pools import FreeList
from switchrail.engine.request import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The requests of one step.

    Attributes:
        decode: Requests that run their last token.
        prefill: Requests that run prompt tokens, with their number.
    """

    decode: list[Request]
    prefill: list[tuple[Request, int]]

    @property
    def requests(self) -> list[Request]:
        """All of them, decode first."""
        return self.decode + [request for request, _ in self.prefill]


class Scheduler:
    """First come, first served, with continuous batching and chunked prefill.

    A request is admitted when a slot is free and all the pages that it can ever need are: those of its
    prompt and of every new token. It then runs to its end and is never preempted, so nothing is computed
    twice and no two requests can wait for each other's pages; the price is that pages for tokens which a
    request stops short of stay unused. Nobody overtakes: when the first in line does not fit, the others
    wait behind it, so each request's turn comes.

    Attributes:
        waiting: Requests in line.
        prefilling: Requests with prompt tokens left, in order of admission.
        decoding: Requests that run their last token, by slot: where slots follow one another, a backend can
            work on a slice of its pool.
    """

    def __init__(self, pages: FreeList, slots: FreeList, options: EngineOptions) -> None:
        self.waiting: deque[Request] = deque()
        self.prefilling: list[Request] = []
        self.decoding: list[Request] = []
        self._pages = pages
        self._slots = slots
        self._rows = options.max_tokens_per_step
        self._chunk = options.prefill_chunk or options.max_tokens_per_step

    @property
    def busy(self) -> bool:
        """Whether any request waits or runs."""
        return bool(self.waiting or self.prefilling or self.decoding)

    def schedule(self) -> tuple[Schedule, list[Request]]:
        """Takes the next step's tokens: each decoding request's, then prompt tokens in order of admission.

        Returns:
            The step, and the requests that it admitted.
        """
        rows = self._rows - len(self.decoding)
        prefill = []
        admitted = []
        for request in self.prefilling:
            if not rows:
                break
            count = min(len(request.ids) - request.prefilled, self._chunk, rows)
            prefill.append((request, count))
            rows -= count
        pages, slots = self._pages, self._slots
        while rows and self.waiting and len(slots) and self.waiting[0].needed_pages <= len(pages):
            request = self.waiting.popleft()
            request.slot = slots.take(1)[0]
            request.pages = pages.take(request.needed_pages)
            self.prefilling.append(request)
            admitted.append(request)
            count = min(len(request.ids), self._chunk, rows)
            prefill.append((request, count))
            rows -= count
        return Schedule(decode=list(self.decoding), prefill=prefill), admitted

    def advance(self, schedule: Schedule) -> list[Request]:
        """Notes that a step ran.

        Returns:
            The requests for which it gave logits, decode first, in row order.
        """
        ready = list(schedule.decode)
        for request, count in schedule.prefill:
            request.prefilled += count
            if request.prefilled == len(request.ids):
                self.prefilling.remove(request)
                insort(self.decoding, request, key=attrgetter("slot"))
                ready.append(request)
        return ready

    def remove(self, request: Request) -> None:
        """Takes a request out, wherever it is, and frees what it held."""
        if not request.slot:
            self.waiting.remove(request)
            return
        (self.decoding if request in self.decoding else self.prefilling).remove(request)
        self._slots.give([request.slot])
        self._pages.give(request.pages)
        request.slot = 0
        request.pages = []


__all__ = ["Schedule", "Scheduler"]
