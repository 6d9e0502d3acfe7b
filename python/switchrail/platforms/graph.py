"""The interface to capture the launches of a step and to replay them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class Graph:
    """The launches of a block of code, which can be replayed as a whole without the host code.

    A replay reads and writes the same memory as the capture. So a step's inputs must be in tensors that keep
    their addresses, and the next replay overwrites a step's results. A graph may be released while it still
    runs.
    """

    def __init__(self, shares: Graph | None = None) -> None:
        """Creates an empty graph.

        Args:
            shares: A graph whose working memory the new graph reuses. The two must never run at the same
                time, and no capture with that memory may have failed.
        """

    @contextmanager
    def capture(self) -> Iterator[None]:
        """Captures the launches of this thread in the block. An implementation may also run them.

        Raises:
            Exception: Something in the block can't be captured.
        """
        raise NotImplementedError
        yield

    def replay(self) -> None:
        """Launches the captured work on the device, after this thread's earlier launches."""
        raise NotImplementedError

    def kept(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor at the address of `tensor`, for eager code that runs between replays.

        If the memory lives as long as the graph, an implementation may return a tensor that does not own the
        memory. Then later captures can use this memory too.
        """
        return tensor
