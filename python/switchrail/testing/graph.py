"""A graph for devices that have none: what engines and backends do with graphs, tried on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from switchrail.platforms.graph import Graph


class RecordedGraph(Graph):
    """Keeps torch's own operations with the tensors that they were called with, and calls them again.

    As with a graph of a GPU, nothing on the host runs again: what a backend took from the host's lengths, or
    from Python, stays as it was. What needs a tensor's value on the host can't be captured.
    """

    def __init__(self, shares: Graph | None = None) -> None:
        super().__init__(shares)
        self._calls: list[tuple[Callable[..., Any], Any, Any, list[torch.Tensor]]] = []

    @contextmanager
    def capture(self) -> Iterator[None]:
        """Keeps the operations of the block, which also run."""
        self._calls.clear()
        with _Recorder(self._calls):
            yield

    @torch.inference_mode()
    def replay(self) -> None:
        """Calls them again, into the tensors of the first time."""
        for function, args, kwargs, results in self._calls:
            again = [one for one in tree_leaves(function(*args, **kwargs)) if isinstance(one, torch.Tensor)]
            for result, new in zip(results, again, strict=True):
                if new.untyped_storage().data_ptr() != result.untyped_storage().data_ptr():
                    result.copy_(new)


_WAIT: Final = {
    torch.ops.aten.item.default,
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.nonzero.default,
    torch.ops.aten.equal.default,
}
"""What would wait for a device: their results are Python's, or their shapes follow from values."""


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes down each operation with its results."""

    def __init__(self, calls: list[tuple[Callable[..., Any], Any, Any, list[torch.Tensor]]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._calls = calls

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _WAIT:
            raise RuntimeError(f"{func} needs values on the host, which a graph doesn't have")
        found = func(*args, **(kwargs or {}))
        results = [one for one in tree_leaves(found) if isinstance(one, torch.Tensor)]
        self._calls.append((func, args, kwargs or {}, results))
        return found


__all__ = ["RecordedGraph"]
