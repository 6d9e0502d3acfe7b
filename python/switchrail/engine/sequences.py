"""The memory and the progress of each sequence. No other module changes either.

This module is independent of models and prompts. Runners of several models (for example a target and a draft
model) can share one `Sequences`, if the pools of each have as many pages as the free list, and at least as
many slots.

The live sequences and their attributes are the source of truth; the free lists and the counts of holders are
derived from them. After an exception in the middle of a change, such as a KeyboardInterrupt, the next call
derives free lists and counts again. So no page or slot is ever lost, and nothing has to be undone.
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
    """Assigns slots and pages to sequences, and frees them.

    Attributes:
        live: The sequences with memory, in order of admission.
        page_table: [slots, pages] int32 on the device, the pages of the sequence in each slot; entries past a
            sequence's pages are undefined.
        last_tokens: [slots] int64 on the device, the newest token of the sequence in each slot. Slot 0 is for
            padding.
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
        """Take ownership of all pages and slots.

        Args:
            pages: The free list of pages; all pages must be free.
            slots: The free list of slots; all slots must be free.
            page_size: Page size in tokens.
            max_pages: Maximum pages per sequence.
            device: The device of the models.
            pin_memory: Whether the device copies from pinned memory asynchronously.
        """
        self._pin_memory = pin_memory
        self.live: dict[S, None] = {}
        self.page_table = torch.zeros(slots.capacity + 1, max_pages, dtype=torch.int32, device=device)
        self.last_tokens = torch.zeros(slots.capacity + 1, dtype=torch.int64, device=device)
        self._pages = pages
        self._slots = slots
        self._page_size = page_size
        self._holders = [0] * (pages.capacity + 1)  # for each page, the number of sequences that hold it
        self._whole = True  # False while free lists and holders may disagree with the live sequences

    def fits(self, pages: int) -> bool:
        """Whether a sequence with this number of new pages can be admitted."""
        return len(self._slots) > 0 and pages <= len(self._pages)

    def admit(self, sequence: S, pages: int, shared: Listing[int] = ()) -> None:
        """Assign a slot and pages to a sequence. The caller must have checked `fits`.

        Args:
            sequence: A sequence without memory. Its length becomes 0.
            pages: The number of new pages.
            shared: Pages of a live sequence, which become the first pages of this one. The two sequences may
                write only the same tokens to them.
        """
        self.repair()
        self._whole = False
        (slot,) = self._slots.take(1)
        numbers = [*shared, *self._pages.take(pages)]
        for page in numbers:
            self._holders[page] += 1
        table = self.page_table
        table[slot, : len(numbers)] = sent(numbers, torch.int32, table.device, pin_memory=self._pin_memory)
        # CPython 3.10 to 3.14 runs signal handlers only at calls, function entries and jumps, so no handler
        # can raise between these statements. Other threads, in free-threaded builds, wait for the engine's
        # lock.
        sequence.slot, sequence.pages, sequence.length, sequence.drafted = slot, numbers, 0, 0
        self.live[sequence] = None
        self._whole = True

    def advance(self, rows: Iterable[tuple[S, int]]) -> None:
        """Increase each sequence's number of tokens in memory."""
        for sequence, count in rows:
            sequence.length += count

    def advance_drafted(self, rows: Iterable[tuple[S, int]]) -> None:
        """Increase each sequence's number of tokens in the pools of the draft model."""
        for sequence, count in rows:
            sequence.drafted += count

    def rollback(self, sequence: S, count: int) -> None:
        """Discard the newest tokens in memory; later tokens overwrite them.

        The states in the sequence's slot are not rolled back; the backends' `commit` writes the right states.

        Args:
            sequence: A live sequence.
            count: The number of tokens.

        Raises:
            RequestError: The sequence has fewer tokens, or another sequence shares the page to write next.
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
        """Let a sequence continue from the current position of another one.

        Args:
            source: A live sequence.
            target: A live sequence of length 0 with enough pages for the tokens of `source`; it may share the
                full pages of `source` (see `admit`).

        Returns:
            Pairs of pages whose contents must be copied from the first to the second. The caller must also
            copy the contents of the slot of `source` to the slot of `target`.
        """
        used = pages_of(source.length, self._page_size)
        pairs = zip(source.pages[:used], target.pages, strict=False)
        copies = [(page, other) for page, other in pairs if page != other]
        self.last_tokens[target.slot] = self.last_tokens[source.slot]
        target.length = source.length
        return copies

    def release(self, sequence: S) -> None:
        """Free a sequence's slot and pages, if it has any. Pages that other sequences share stay in use."""
        self.repair()
        if not sequence.slot:
            return
        self._whole = False
        slot, pages = sequence.slot, sequence.pages
        # as in `admit`, no signal handler can raise between these statements
        del self.live[sequence]
        sequence.slot, sequence.pages = 0, []
        for page in pages:
            self._holders[page] -= 1
        self._pages.give([page for page in pages if not self._holders[page]])
        self._slots.give([slot])
        self._whole = True

    def repair(self) -> None:
        """Derive free lists and holders from the live sequences if an exception interrupted a change."""
        if self._whole:
            return
        self._holders[:] = [0] * len(self._holders)
        for sequence in self.live:
            for page in sequence.pages:
                self._holders[page] += 1
        self._pages.reset(page for page, holders in enumerate(self._holders) if holders)
        self._slots.reset(sequence.slot for sequence in self.live)
        self._whole = True
