"""Counts compilations of Triton kernels and of torch.compile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import torch


@dataclass
class Compiles:
    """The numbers of compilations.

    Attributes:
        triton: Kernels that Triton compiled, without those read from its cache.
        read: Kernels that Triton read from its cache.
        dynamo: Frames that torch.compile traced; set at the end of the block.
        names: The names of the kernels that Triton compiled.
    """

    triton: int = 0
    read: int = 0
    dynamo: int = 0
    names: list[str] = field(default_factory=list)


@contextmanager
def counted() -> Iterator[Compiles]:
    """Counts the compilations in the block, in this process."""
    found = Compiles()
    frames = torch._dynamo.utils.counters["frames"]
    before = frames["total"]
    listening = find_spec("triton") is not None
    if listening:
        from triton import knobs

        def listen(*, src: Any, cache_hit: bool, **_: Any) -> None:
            found.read += cache_hit
            if not cache_hit:
                found.triton += 1
                found.names.append(str(src.name))

        previous, knobs.compilation.listener = knobs.compilation.listener, listen
    try:
        yield found
    finally:
        found.dynamo = frames["total"] - before
        if listening:
            knobs.compilation.listener = previous
