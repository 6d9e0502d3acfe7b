"""The serving part of a platform: the classes and defaults of engines on it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from switchrail.errors import PlatformError, RegistrationError
from switchrail.nearest import unknown
from switchrail.overrides import call_problem
from switchrail.platforms.identity import OUT_OF_TREE
from switchrail.platforms.operations import OPERATIONS, Operation

if TYPE_CHECKING:
    from torch import nn

    from switchrail.platforms.graph import Graph
    from switchrail.platforms.hardware import Hardware
    from switchrail.pools import FreeList, KVKind, KVPool, StatePool

Forward = Callable[..., Any]


class Serving:
    """The classes, defaults and functions that a platform provides for engines.

    A platform's serving class derives from this class and overrides methods as needed. The methods of this
    class suit any device on which torch can allocate. `initialize` is called once per platform. The methods
    that return classes, defaults and functions are called whenever an engine is created.

    Attributes:
        hardware: The device part of the platform.
    """

    def __init__(self, hardware: Hardware) -> None:
        self.hardware = hardware
        self._forwards: dict[str, Forward] = {}

    def initialize(self) -> None:
        """Prepares the process, before the first engine on this platform makes plans."""

    def engine_defaults(self) -> Mapping[str, Any]:
        """Default values of `EngineOptions`, by name."""
        return {}

    def default_backend(self, op: str, phase: str) -> str | None:
        """The backend for an op in a phase, if the user has not chosen one.

        If this backend can't serve the op, an error that names the platform is raised. None means that
        capabilities, measured times and priorities decide.
        """
        return None

    def after_weights_loaded(self, model: nn.Module) -> None:
        """Changes a loaded model in place. Called before pools are sized and before anything runs."""

    def kv_pool_class(self, kind: KVKind) -> type[KVPool[Any]]:
        """The class of the paged cache for softmax layers of a kind."""
        from switchrail.pools import LatentPool, MultiHeadPool

        return {"mha": MultiHeadPool, "mla": LatentPool}[kind]

    def state_pool_class(self) -> type[StatePool]:
        """The class of the pool that holds the states of linear layers in slots."""
        from switchrail.pools import StatePool

        return StatePool

    def paged_allocator_class(self) -> type[FreeList]:
        """The class that keeps track of free pages."""
        from switchrail.pools import FreeList

        return FreeList

    def graph_class(self) -> type[Graph] | None:
        """The class that captures and replays steps; None disables capturing."""
        return None

    def compile_backend(self) -> str | Callable[..., Any]:
        """The torch.compile backend for decoder layers, used if the option `compile` requests it."""
        return "inductor"

    def compiles(self, kind: str, *, fused: bool) -> bool:
        """Whether decoder layers of a kind (named as in layouts) gain from being compiled.

        `fused` is True if a function of the platform computes the layer.
        """
        return True

    def dispatch_key(self) -> str:
        """The key that selects the method `forward_<key>` of an operation.

        The default is the kind of the hardware without the prefix `oot:`. Each character that is not allowed
        in a method name is replaced by `_`: the kind `oot:acme-x1` gives `acme_x1`.
        """
        return re.sub(r"\W", "_", self.hardware.kind.removeprefix(OUT_OF_TREE))

    def register_oot_forward(self, op: str, forward: Forward, *, override: bool = False) -> None:
        """Registers a function for an operation, for engines created from now on.

        Args:
            op: A name in `switchrail.platforms.OPERATIONS`. The operation's class there documents the
                function's arguments.
            forward: The function.
            override: Whether `forward` may replace another registered function.

        Raises:
            RegistrationError: There is no such operation, it already has another function and `override` is
                False, or the signature of `forward` does not match the operation's `forward`.
        """
        if op not in OPERATIONS:
            raise unknown(RegistrationError, f"there is no operation {op!r}", op, OPERATIONS, name=op)
        problem = _call_problem(forward, OPERATIONS[op]) if callable(forward) else "; valid: a function"
        if problem:
            raise RegistrationError(
                f"{forward!r} can't serve operation {op!r}{problem}", name=op, found=forward
            )
        if self._forwards.get(op, forward) is not forward and not override:
            raise RegistrationError(
                f"operation {op!r} is served by {self._forwards[op]!r} on platform {self.hardware.kind!r}; "
                "override=True replaces it",
                name=op,
                found=self._forwards[op],
            )
        self._forwards[op] = forward

    def forward_of(self, operation: type[Operation]) -> Forward | None:
        """The platform's own function for an operation; None if it has none (see `operations`).

        Raises:
            PlatformError: The dispatch key can't be part of a method name, or the method's signature does not
                match the operation's `forward`.
        """
        registered = self._forwards.get(operation.name)
        if registered is not None:
            return registered
        key = self.dispatch_key()
        if not isinstance(key, str) or not f"forward_{key}".isidentifier():
            raise PlatformError(
                f"platform {self.hardware.kind!r} gives {key!r} for dispatch_key(); valid: the part after "
                "'forward_' in the name of a method, such as 'cpu'",
                found=key,
            )
        forward: Forward | None = getattr(operation, f"forward_{key}", None)
        problem = "" if forward is None else _call_problem(forward, operation)
        if problem:
            raise PlatformError(
                f"{operation.__name__}.forward_{key} can't serve {operation.name!r}{problem}", found=forward
            )
        return forward


def _call_problem(forward: Forward, operation: type[Operation]) -> str:
    problem = call_problem(forward, operation.forward)
    return "" if problem is None else f": it {problem}"
