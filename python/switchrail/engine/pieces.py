"""A step that was captured in one piece, or in several with calls between them that run eagerly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from switchrail.platforms.graph import Graph


class Pieces:
    """Graphs that follow one another in one working memory, with an eager call between any two of them.

    What a call reads and writes lies in that memory, at the same place in each step.
    """

    def __init__(self, graph_class: type[Graph], shares: Graph | None) -> None:
        """Captures nothing yet.

        Args:
            graph_class: What captures.
            shares: As in `Graph`.
        """
        self._graph_class = graph_class
        self._graphs: list[Graph] = []
        self._calls: list[Any] = []
        self._stack = ExitStack()
        self.last = shares

    @contextmanager
    def capture(self) -> Iterator[None]:
        """Keeps what is launched in the block, but for what `cut` is given.

        Raises:
            Exception: Something in the block can't be captured.
        """
        with self._stack:
            self._begin()
            yield

    def cut(self, call: Any) -> None:
        """Ends a piece; begins another one behind a call, which isn't made now."""
        self._stack.close()
        layer, *tensors = call
        kept = [self._graphs[-1].kept(one) if isinstance(one, torch.Tensor) else one for one in tensors]
        self._calls.append(type(call)(layer, *kept))
        self._begin()

    def replay(self, run: Callable[[Any], None]) -> None:
        """Launches it again.

        Args:
            run: Makes a call.
        """
        self._graphs[0].replay()
        for call, graph in zip(self._calls, self._graphs[1:], strict=True):
            run(call)
            graph.replay()

    def _begin(self) -> None:
        self.last = graph = self._graph_class(self.last)
        self._stack.enter_context(graph.capture())
        self._graphs.append(graph)


__all__ = ["Pieces"]
