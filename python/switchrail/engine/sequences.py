"""Which memory each sequence has, and how far it has come: one owner for all of it.

It knows no model and no prompt. Runners of several models (a target and its drafts, say) can share one, as
long as their pools have pages and slots of the same numbers.

Its truth is which sequences are live, and their attributes. The free lists and the counts of holders follow
from that. An exception in the middle of a change, a KeyboardInterrupt say, leaves a mark, and the next call
computes both anew. So no page and no slot is ever lost, and there is nothing to undo.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Listing
from typing import Generic, TypeVar

import torch

from switchrail.engine.sequence import Sequence
from switchrail.engine.transfer import sent
from switchrail.errors import RequestError
from switchrail.pools import FreeList, pages_of

S = TypeVar("S", bound=Sequence)


class Sequences(Generic[S]):
    """Gives sequences slots and pages, and takes these back.

    Attributes:
        live: The sequences that have memory, in the order of their admission.
        page_table: [slots, pages] int32 on the device, the pages of the sequence in each slot; entries past a
            sequence's pages are undefined.
        last_tokens: [slots] int64 on the device, the newest token of the sequence in each slot. Slot 0 takes
            those of nobody.
    """

    def __init__(
        self,
        pages: FreeList,
        slots: FreeList,
        *,
        page_size: int,
        max_pages: int,
        device: torch.device,
        pin_memory: bool = False,
    ) -> None:
        """Owns all pages and slots from here on.

        Args:
            pages: Which pages are free: all of them.
            slots: Which slots are free: all of them.
            page_size: Tokens in a page.
            max_pages: Pages of the longest sequence.
            device: Where the models run.
            pin_memory: Whether it copies from pinned memory.
        """
        self._pin_memory = pin_memory
        self.live: dict[S, None] = {}
        self.page_table = torch.zeros(slots.capacity + 1, max_pages, dtype=torch.int32, device=device)
        self.last_tokens = torch.zeros(slots.capacity + 1, dtype=torch.int64, device=device)
        self._pages = pages
        self._slots = slots
        self._page_size = page_size
        self._holders = [0] * (pages.capacity + 1)  # of each page: how many sequences have it
        self._whole = True  # whether free lists and holders agree with the live sequences

    def fits(self, pages: int) -> bool:
        """Whether a sequence with that many new pages can be admitted."""
        return len(self._slots) > 0 and pages <= len(self._pages)

    def admit(self, sequence: S, pages: int, shared: Listing[int] = ()) -> None:
        """Gives a sequence a slot and pages. The caller has checked with `fits`.

        Args:
            sequence: One that has none. Its length is 0 afterwards.
            pages: New pages.
            shared: Pages of a live sequence, which become this one's first. Both may write the same tokens to
                them, and nothing else.
        """
        self.repair()
        self._whole = False
        (slot,) = self._slots.take(1)
        numbers = [*shared, *self._pages.take(pages)]
        for page in numbers:
            self._holders[page] += 1
        table = self.page_table
        table[slot, : len(numbers)] = sent(numbers, torch.int32, table.device, pin_memory=self._pin_memory)
        # CPython 3.10 to 3.14 looks for signals where it calls, enters a function or jumps, so none raises
        # between these. Other threads, which free-threaded builds run meanwhile, wait for the engine's lock.
        sequence.slot, sequence.pages, sequence.length = slot, numbers, 0
        self.live[sequence] = None
        self._whole = True

    def advance(self, rows: Iterable[tuple[S, int]]) -> None:
        """Notes for each sequence how many more of its tokens are in memory."""
        for sequence, count in rows:
            sequence.length += count

    def rollback(self, sequence: S, count: int) -> None:
        """Forgets the newest tokens in memory; what comes next overwrites them there.

        The states in a sequence's slot are not rolled back: that is their op's `commit`.

        Args:
            sequence: A live sequence.
            count: How many tokens.

        Raises:
            RequestError: It has fewer tokens, or another sequence shares the page that would be written next.
        """
        length = sequence.length - count
        if not 0 <= length <= sequence.length:
            raise RequestError(
                f"can't roll back {count} tokens; valid: 0 to {sequence.length}",
                found=count,
                valid=(0, sequence.length),
            )
        if count and self._holders[sequence.pages[length // self._page_size]] > 1:
            raise RequestError(
                f"can't roll back {count} tokens: the page of token {length} is shared", found=count
            )
        sequence.length = length

    def fork(self, source: S, target: S) -> list[tuple[int, int]]:
        """Lets a sequence go on where another one is.

        Args:
            source: A live sequence.
            target: A live sequence of length 0 with pages for as many tokens; those of `source` that are full
                can be shared with it (`admit`).

        Returns:
            Pairs of pages: the first one's contents have to be copied to the second one. The contents of
            the slot of `source` have to be copied as well.
        """
        used = pages_of(source.length, self._page_size)
        pairs = zip(source.pages[:used], target.pages, strict=False)
        copies = [(page, other) for page, other in pairs if page != other]
        self.last_tokens[target.slot] = self.last_tokens[source.slot]
        target.length = source.length
        return copies

    def release(self, sequence: S) -> None:
        """Frees a sequence's slot and pages, if it has any; pages that other sequences share stay taken."""
        self.repair()
        if not sequence.slot:
            return
        self._whole = False
        slot, pages = sequence.slot, sequence.pages
        # as in `admit`, no exception of a signal comes between these
        del self.live[sequence]
        sequence.slot, sequence.pages = 0, []
        for page in pages:
            self._holders[page] -= 1
        self._pages.give([page for page in pages if not self._holders[page]])
        self._slots.give([slot])
        self._whole = True

    def repair(self) -> None:
        """Computes free lists and holders anew, if an exception broke a change off."""
        if self._whole:
            return
        self._holders[:] = [0] * len(self._holders)
        for sequence in self.live:
            for page in sequence.pages:
                self._holders[page] += 1
        self._pages.reset(page for page, holders in enumerate(self._holders) if holders)
        self._slots.reset(sequence.slot for sequence in self.live)
        self._whole = True


__all__ = ["Sequences"]
