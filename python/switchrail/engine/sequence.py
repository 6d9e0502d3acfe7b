"""A sequence's slot, pages and length."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(eq=False, slots=True, kw_only=True)
class Sequence:
    """A sequence's slot, pages and length; only `Sequences` changes them.

    Attributes:
        slot: The slot of the sequence's states; 0 if the sequence has no memory.
        pages: The sequence's pages, in the order of its tokens.
        length: The number of tokens in memory. The newest generated token gets there in the next step.
        drafted: The number of tokens in the pools of a draft model, which may include the newest token; for
            an MTP head, the number of its entries.
    """

    slot: int = 0
    pages: list[int] = field(default_factory=list)
    length: int = 0
    drafted: int = 0
