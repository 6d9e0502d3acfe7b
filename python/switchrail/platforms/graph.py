"""What captures the launches of a step, and launches them again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class Graph:
    """What was launched in a block, to be launched again as a whole, without the host's part.

    Launched again, everything reads and writes the memory that it did while it was captured. So what a step
    is told lies in tensors that stay where they are, and what it returns is overwritten by the next one.
    It may be let go of while it still runs.
    """

    def __init__(self, shares: Graph | None = None) -> None:
        """Captures nothing yet.

        Args:
            shares: One whose working memory this one uses too: the two never run at one time, and no capture
                with that memory has failed.
        """

    @contextmanager
    def capture(self) -> Iterator[None]:
        """Keeps what this thread launches in the block; whether it also runs is left open.

        Raises:
            Exception: Something in the block can't be captured.
        """
        raise NotImplementedError
        yield

    def replay(self) -> None:
        """Launches it again, behind what this thread has launched before."""
        raise NotImplementedError

    def kept(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of the block, for use between this graph's replay and that of one that shares its memory.

        It may be one that doesn't keep the memory from being used for other tensors of later blocks, where
        the memory lives as long as the graph.
        """
        return tensor


__all__ = ["Graph"]
