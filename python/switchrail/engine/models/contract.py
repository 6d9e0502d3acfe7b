"""The connection of a kind of mixer to the dispatcher."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import update_wrapper
from typing import Any, Final

import torch
from torch import nn

from switchrail.dispatch import Dispatcher
from switchrail.engine.compiled import operators
from switchrail.engine.memory import KINDS, Pools
from switchrail.engine.step import Running
from switchrail.errors import DispatchError
from switchrail.ops.call import Layer
from switchrail.ops.catalog import CONTRACTS
from switchrail.pools import Shape

KEYWORD: Final = "switchrail"
"""The keyword argument that passes a `Connected` from a mixer to the functions that it calls."""


@dataclass(frozen=True, slots=True)
class Connection:
    """The engine's objects that a model's layers use.

    Attributes:
        dispatcher: Dispatches the layers' ops.
        pools: The layers' memory.
        running: The current step.
    """

    dispatcher: Dispatcher
    pools: Pools
    running: Running


@dataclass(frozen=True, eq=False)
class Connected:
    """One layer of an engine's model, for the functions that the layer's mixer calls.

    Attributes:
        id: The layer id.
        layers: By op, the constant arguments of the layer's calls.
        connection: The connection of the layer's model.
        index: The tensor by which torch operators identify the layer.
    """

    id: int
    layers: Mapping[str, Any]
    connection: Connection
    index: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "index", operators.number(self))

    def dispatch(self, op: str, *tensors: torch.Tensor, written: Sequence[torch.Tensor] = ()) -> None:
        """Dispatch the layer's call of an op. While torch.compile traces, call the torch operator instead.

        Args:
            op: The op.
            *tensors: The tensors of the call, in order.
            written: The values to write to the layer's cache before the call, as in the pool's method
                `write`. No other code may access a pool while torch.compile traces.
        """
        if torch.compiler.is_compiling():
            operators.call(self.index, op, tensors, tuple(written))
        else:
            self.run(op, tensors, written)

    def run(self, op: str, tensors: Sequence[torch.Tensor | None], written: Sequence[torch.Tensor]) -> None:
        """Dispatch the layer's call of an op; see `dispatch`."""
        connection = self.connection
        if written:
            connection.pools.kv[KINDS[op]].write(self.id, connection.running.step.kv_rows, *written)
        connection.dispatcher.dispatch(CONTRACTS[op].call(self.layers[op], *tensors))

    def refuse(self, op: str, what: str, found: object, bound: object) -> DispatchError:
        """The error for a call whose argument differs from the one that the layer was connected with."""
        return DispatchError(
            f"layer {self.id} ran its {op} with {what} {found!r}, but was connected with {bound!r}",
            layer=self.id,
            op=op,
            found=found,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Keyword:
    """A forward pre-hook for a mixer, which adds the argument `KEYWORD`, and `seq_idx` if `packed` is set."""

    connected: Connected
    packed: bool

    def __call__(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Add the keyword arguments to a call."""
        kwargs[KEYWORD] = self.connected
        if self.packed:
            kwargs["seq_idx"] = self.connected.connection.running.step.sequence_ids
        return args, kwargs


def in_engines(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns an `around` hook that calls `function` for an engine's layers, and otherwise the original."""

    def hook(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return (original if kwargs.get(KEYWORD) is None else function)(*args, **kwargs)

    made: Any = update_wrapper(hook, function)
    del made.__wrapped__  # otherwise `signature` would miss the parameter `original`
    return hook


Memory = Callable[[str], tuple[torch.Tensor, ...]]
"""A function that returns the memory for a mixer's op."""


@dataclass(frozen=True, kw_only=True)
class MixerContract:
    """A kind of mixer: its memory and calls, and the functions that the engine replaces.

    Attributes:
        shapes: Returns the shapes of a mixer's memory, by op. Raises CheckpointError for something that the
            engine does not support; the caller adds the layer's name to the message.
        layers: Returns the constant arguments of a mixer's calls by op, given its memory by op.
        window: Returns the maximum number of tokens that the mixer's softmax attention attends to; None for
            no limit.
        hooks: Name of a function of the modelling module -> an `around` hook, `hook(original, *args,
            **kwargs)`, which calls the original if `KEYWORD` is missing.
        methods: Name of a method -> the function that replaces it on the mixers of this model only.
        packed: Whether calls of the mixer get `seq_idx`, the sequence of each row. Then the mixer's own
            functions must refuse packed sequences, in case the hooks are missing.
    """

    shapes: Callable[[Any], dict[str, Shape]]
    layers: Callable[[Any, Memory], dict[str, Layer]]
    window: Callable[[Any], int | None] = lambda mixer: None
    hooks: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    methods: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    packed: bool = False
