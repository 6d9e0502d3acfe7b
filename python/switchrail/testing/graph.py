"""A graph class for the CPU, to test how engines and backends use graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from switchrail.platforms.graph import Graph


class RecordedGraph(Graph):
    """Records torch's operations with their tensors, and repeats them.

    As with a GPU's graph, a replay runs no host code: values that a backend took from the host's lengths
    or from Python stay as they were. Operations that need a tensor's value on the host can't be captured.
    """

    def __init__(self, shares: Graph | None = None) -> None:
        super().__init__(shares)
        self._calls: list[_Call] = []

    @contextmanager
    def capture(self) -> Iterator[None]:
        """Records the operations of the block, which also run."""
        self._calls.clear()
        with _Recorder(self._calls):
            yield

    @torch.inference_mode()
    def replay(self) -> None:
        """Repeats the operations, writing to the tensors of the capture."""
        for function, args, kwargs, results in self._calls:
            again = function(*args, **kwargs)
            if results:
                new = [again] if isinstance(again, torch.Tensor) else _tensors(again)
                for result, one in zip(results, new, strict=True):
                    result.copy_(one)


_Call = tuple[Callable[..., Any], Any, Any, list[torch.Tensor]]
"""An operation, its arguments, and the capture's results that a replay copies its own results to.

The list is empty if all results share memory with the arguments.
"""


@cache
def _writing(func: Any) -> tuple[Any, str] | None:
    """The variant of an operation that writes its only result to an argument, and this argument's name.

    Returns None if the operation has no such variant.
    """
    given = [(one.name, str(one.type)) for one in func._schema.arguments]
    for name in func.overloadpacket.overloads():
        variant = getattr(func.overloadpacket, name)
        outs = [one.name for one in variant._schema.arguments if one.is_out]
        others = [(one.name, str(one.type)) for one in variant._schema.arguments if not one.is_out]
        if len(outs) == 1 and others == given:
            return variant, outs[0]
    return None


def _tensors(found: Any) -> list[torch.Tensor]:
    """The tensors among an operation's arguments or results; faster than torch's `tree_leaves`."""
    if isinstance(found, torch.Tensor):
        return [found]
    if isinstance(found, dict):
        found = found.values()
    elif not isinstance(found, list | tuple):
        return []
    return [one for part in found for one in _tensors(part)]


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


_WAIT: Final = {
    torch.ops.aten.item.default,
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.nonzero.default,
    torch.ops.aten.equal.default,
}
"""Operations that wait for a device, because they return Python values or shapes that depend on values."""


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the operations with their results, except operations that only make views."""

    def __init__(self, calls: list[_Call]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._calls = calls

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _WAIT:
            raise RuntimeError(f"{func} needs values on the host, which a graph doesn't have")
        found = func(*args, **(kwargs or {}))
        results = _tensors(found)
        given = {_memory(one) for one in _tensors((args, kwargs))}
        is_view = bool(results) and func.is_view
        if all(_memory(one) in given for one in results):
            results = []
        kwargs = kwargs or {}
        if len(results) == 1 and (writing := _writing(func)):
            variant, name = writing
            self._calls.append((variant, args, {**kwargs, name: found}, []))
        elif results or not is_view:  # an operation without results may write to memory, or raise
            self._calls.append((func, args, kwargs, results))
        return found
