"""A step that is captured in one or more pieces, with eager calls between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from switchrail.platforms.graph import Graph


class Pieces:
    """Consecutive graphs that share working memory, with an eager call between one graph and the next.

    The inputs and outputs of the calls are in that memory, at the same addresses in each step.

    Attributes:
        last: The last graph (`shares` before the first capture), whose memory a later graph may share. None
            if a capture failed to begin or to end.
    """

    def __init__(self, graph_class: type[Graph], shares: Graph | None) -> None:
        """Start without graphs.

        Args:
            graph_class: The class of the graphs.
            shares: The graph whose memory to reuse; see `Graph`.
        """
        self._graph_class = graph_class
        self._graphs: list[Graph] = []
        self._calls: list[Any] = []
        self._stack = ExitStack()
        self.last: Graph | None = shares

    @contextmanager
    def capture(self) -> Iterator[None]:
        """Capture the launches in the block, except the calls passed to `cut`.

        Raises:
            Exception: Something in the block can't be captured.
        """
        self._begin()
        try:
            yield
        except BaseException as error:
            self._end(error)
            raise
        self._end()

    def cut(self, call: Any) -> None:
        """End the current piece, and begin the next one. A replay makes `call` between the two."""
        self._end()
        layer, *tensors = call
        kept = [self._graphs[-1].kept(one) if isinstance(one, torch.Tensor) else one for one in tensors]
        self._calls.append(type(call)(layer, *kept))
        self._begin()

    def replay(self, run: Callable[[Any], None]) -> None:
        """Launch the pieces again.

        Args:
            run: Makes an eager call between two pieces.
        """
        self._graphs[0].replay()
        for call, graph in zip(self._calls, self._graphs[1:], strict=True):
            run(call)
            graph.replay()

    def _begin(self) -> None:
        shares, self.last = self.last, None  # keeps the previous graph until its memory is shared
        graph = self._graph_class(shares)
        self._stack.enter_context(graph.capture())
        self.last = graph
        self._graphs.append(graph)

    def _end(self, error: BaseException | None = None) -> None:
        last, self.last = self.last, None
        if error is None:
            self._stack.close()
        else:
            self._stack.__exit__(type(error), error, error.__traceback__)
        self.last = last
