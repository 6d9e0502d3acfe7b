"""The connection of one kind of mixer to the dispatcher."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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
"""The keyword that carries a `Connected` from a mixer's call to the functions that it calls."""

ENGINE: Final = "switchrail"
"""The source of the hooks of engines."""


@dataclass(frozen=True, slots=True)
class Connection:
    """What a model's layers are connected to.

    Attributes:
        dispatcher: Serves their ops.
        pools: Where their memory is.
        running: The step that runs.
    """

    dispatcher: Dispatcher
    pools: Pools
    running: Running


@dataclass(frozen=True, eq=False)
class Connected:
    """One layer of an engine's model, as the functions that its mixer calls see it.

    Attributes:
        id: The layer id.
        layers: By op, the half of its calls that never changes.
        connection: The connection of its model.
        index: The number by which torch operators find it.
    """

    id: int
    layers: Mapping[str, Any]
    connection: Connection
    index: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "index", operators.number(self))

    def dispatch(self, op: str, *tensors: torch.Tensor, written: Sequence[torch.Tensor] = ()) -> None:
        """Dispatches the layer's call of an op; where torch.compile traces it, through the op's operator.

        Args:
            op: The op.
            *tensors: The tensors of the call, in their order.
            written: What the step's tokens keep in the layer's cache, as the pool's `write` takes it; it is
                written first. Nothing else may touch a pool where torch.compile traces.
        """
        if torch.compiler.is_compiling():
            operators.call(self.index, op, tensors, tuple(written))
        else:
            self.run(op, tensors, written)

    def run(self, op: str, tensors: Sequence[torch.Tensor | None], written: Sequence[torch.Tensor]) -> None:
        """Dispatches the layer's call of an op, as `dispatch` says."""
        if written:
            self.write(op, *written)
        self.connection.dispatcher.dispatch(CONTRACTS[op].call(self.layers[op], *tensors))

    def write(self, op: str, *values: torch.Tensor) -> None:
        """Keeps the step's tokens in the layer's cache; `values` as the pool's `write` takes them."""
        pools, rows = self.connection.pools, self.connection.running.step.kv_rows
        pools.kv[KINDS[op]].write(self.id, rows, *values)

    def refuse(self, op: str, what: str, found: object, bound: object) -> DispatchError:
        """The error for a call that differs from what the layer was connected with."""
        return DispatchError(
            f"layer {self.id} ran its {op} with {what} {found!r}, and was connected with {bound!r}",
            layer=self.id,
            op=op,
            found=found,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Keyword:
    """A forward pre-hook for a mixer: its functions get `KEYWORD`, and where it is `packed`, `seq_idx`."""

    connected: Connected
    packed: bool

    def __call__(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Adds them to the arguments of a call."""
        kwargs[KEYWORD] = self.connected
        if self.packed:
            kwargs["seq_idx"] = self.connected.connection.running.step.sequence_ids
        return args, kwargs


@dataclass(frozen=True, kw_only=True)
class MixerContract:
    """A mixer whose functions the engine takes over.

    Attributes:
        shapes: Reads from a mixer what each op that it runs keeps, by op; a mixer that asks for something
            which the engine can't do raises CheckpointError, whose text goes on after the layer's name.
        layers: Makes of a mixer the half of its calls that never changes, by op; it is given the op's
            memory by the op's name.
        window: Reads from a mixer how many tokens its softmax attention sees at most; None: all.
        hooks: Name of a function of the modelling module -> an `around` hook, `hook(original, *args,
            **kwargs)`, which leaves calls without `KEYWORD` to the original.
        methods: Name of a method -> the function that takes its place on each mixer of the model alone.
        packed: Whether the mixer's functions refuse packed sequences (by `seq_idx`) where the hooks are
            missing.
    """

    shapes: Callable[[nn.Module], dict[str, Shape]]
    layers: Callable[[nn.Module, Callable[[str], tuple[torch.Tensor, ...]]], dict[str, Layer]]
    window: Callable[[Any], int | None] = lambda mixer: None
    hooks: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    methods: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    packed: bool = False


__all__ = ["ENGINE", "KEYWORD", "Connected", "Connection", "Keyword", "MixerContract"]
