"""The connection of one kind of mixer to the dispatcher."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import nn

from switchrail.dispatch import Dispatcher
from switchrail.engine.memory import KINDS, Pools
from switchrail.engine.step import Running
from switchrail.errors import DispatchError
from switchrail.ops.call import Layer
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


@dataclass(frozen=True, slots=True)
class Connected:
    """One layer of an engine's model, as the functions that its mixer calls see it.

    Attributes:
        id: The layer id.
        layers: By op, the half of its calls that never changes.
        connection: The connection of its model.
    """

    id: int
    layers: Mapping[str, Any]
    connection: Connection

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


@dataclass(frozen=True, kw_only=True)
class MixerContract:
    """A mixer whose functions the engine takes over.

    Attributes:
        shapes: Reads from a mixer what each op that it runs keeps, by op; a mixer that asks for something
            which the engine can't do raises CheckpointError.
        layers: Makes of a mixer the half of its calls that never changes, by op; it is given the op's
            memory by the op's name.
        hooks: Name of a function of the modelling module -> an `around` hook, `hook(original, *args,
            **kwargs)`, which leaves calls without `KEYWORD` to the original.
        packed: Whether the mixer's functions refuse packed sequences (by `seq_idx`) where the hooks are
            missing.
    """

    shapes: Callable[[nn.Module], dict[str, Shape]]
    layers: Callable[[nn.Module, Callable[[str], tuple[torch.Tensor, ...]]], dict[str, Layer]]
    hooks: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    packed: bool = False


__all__ = ["ENGINE", "KEYWORD", "Connected", "Connection", "MixerContract"]
