"""The interface for capturing the launches of a step and replaying them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class Graph:
    """The launches of a block of code, which can be replayed as a whole without the host's part.

    A replay reads and writes the same memory as the capture. So a step's inputs must be in tensors that keep
    their addresses, and the next replay overwrites its results. A graph may be released while it still runs.
    """

    def __init__(self, shares: Graph | None = None) -> None:
        """Captures nothing yet.

        Args:
            shares: A graph whose working memory this one reuses. The two must never run at the same time, and
                no capture with that memory may have failed.
        """

    @contextmanager
    def capture(self) -> Iterator[None]:
        """Captures the launches of this thread in the block. Implementations decide whether they also run.

        Raises:
            Exception: Something in the block can't be captured.
        """
        raise NotImplementedError
        yield

    def replay(self) -> None:
        """Launches the captured work on the device, after this thread's earlier launches."""
        raise NotImplementedError

    def kept(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of the block, for use between the replays of this graph and of one that shares its memory.

        An implementation may return a tensor that lets later blocks use the memory, if the memory lives as
        long as the graph.
        """
        return tensor


__all__ = ["Graph"]
