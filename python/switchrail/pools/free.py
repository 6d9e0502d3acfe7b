"""Keeps track of free pages and slots."""

from __future__ import annotations

from collections.abc import Iterable


class FreeList:
    """The numbers 1 to `count` - 1 of pages or slots, each free or taken. Number 0 is reserved.

    A platform's own class can override `__init__`, `__len__`, `take` and `give`.

    Attributes:
        capacity: The number of pages or slots, without the reserved one.
    """

    def __init__(self, count: int) -> None:
        self.capacity = count - 1
        self._free = list(range(count - 1, 0, -1))
        self._taken = bytearray(count)

    def __len__(self) -> int:
        """How many numbers are free."""
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """Takes and returns `count` free numbers. The caller must first check that so many are free."""
        assert count <= len(self._free), f"{count} wanted, {len(self._free)} free"
        split = len(self._free) - count
        numbers = self._free[split:]
        del self._free[split:]
        for number in numbers:
            self._taken[number] = True
        return numbers

    def give(self, numbers: Iterable[int]) -> None:
        """Makes taken numbers free again."""
        for number in numbers:
            assert self._taken[number], f"{number} is not taken"
            self._taken[number] = False
            self._free.append(number)

    def reset(self, taken: Iterable[int]) -> None:
        """Marks exactly these numbers as taken, even after an interrupted `take` or `give`."""
        kept = set(taken)
        initialize = type(self).__init__
        initialize(self, self.capacity + 1)
        self.give([number for number in self.take(self.capacity) if number not in kept])
