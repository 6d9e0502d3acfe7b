"""The serving part of a platform: what its engine is made of."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from switchrail.errors import PlatformError, RegistrationError
from switchrail.nearest import nearest
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
    """What engines on a platform are made of. A family derives from it and changes what it wants otherwise.

    Each method has an answer that suits any device torch can allocate on, and each is called by the engine:
    `initialize` once a platform, the others whenever an engine is made.

    Attributes:
        hardware: The device that the engine runs on.
    """

    def __init__(self, hardware: Hardware) -> None:
        self.hardware = hardware
        self._forwards: dict[str, Forward] = {}

    def initialize(self) -> None:
        """Prepares the process, before the first engine on this platform plans anything."""

    def engine_defaults(self) -> Mapping[str, Any]:
        """Values of `EngineOptions` by name, for what the user leaves open."""
        return {}

    def default_backend(self, op: str, phase: str) -> str | None:
        """The backend that serves an op in a phase where the user has chosen none.

        It is a choice like the user's: a backend that can't serve is an error that says who chose it. None
        leaves it to the capabilities and priorities of what is registered.
        """
        return None

    def after_weights_loaded(self, model: nn.Module) -> None:
        """Changes a model with its weights in place: before pools are sized, and before anything is run."""

    def kv_pool_class(self, kind: KVKind) -> type[KVPool[Any]]:
        """The class of the pages that softmax layers of a kind keep their tokens in."""
        from switchrail.pools import LatentPool, MultiHeadPool

        return {"mha": MultiHeadPool, "mla": LatentPool}[kind]

    def state_pool_class(self) -> type[StatePool]:
        """The class of the slots that linear layers keep their states in."""
        from switchrail.pools import StatePool

        return StatePool

    def paged_allocator_class(self) -> type[FreeList]:
        """The class that knows which pages are free."""
        from switchrail.pools import FreeList

        return FreeList

    def graph_class(self) -> type[Graph] | None:
        """The class that captures a step and runs it again as a whole; None: nothing is captured."""
        return None

    def dispatch_key(self) -> str:
        """Which `forward_<dispatch key>` of an operation serves; the family's name, unless changed.

        What can't be in the name of a method is `_` in it: `acme_x1` for the kind `oot:acme-x1`.
        """
        return re.sub(r"\W", "_", self.hardware.kind.removeprefix(OUT_OF_TREE))

    def register_oot_forward(self, op: str, forward: Forward, *, override: bool = False) -> None:
        """Lets a function serve an operation in engines that are made from now on.

        Args:
            op: A name in `switchrail.platforms.OPERATIONS`, whose class says how the function is called.
            forward: The function.
            override: Whether it may take the place of another one.

        Raises:
            RegistrationError: There is no such operation, it has another function, or this can't be called as
                the operation's `forward`.
        """
        if op not in OPERATIONS:
            names, hint = nearest(op, OPERATIONS)
            raise RegistrationError(
                f"there is no operation {op!r}{hint}; valid: {', '.join(OPERATIONS)}",
                name=op,
                valid=tuple(OPERATIONS),
                nearest=names,
            )
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
        """The function that serves an operation; None: the native one.

        Raises:
            PlatformError: The dispatch key can't be in the name of a method, or the method can't be called as
                the operation's `forward`.
        """
        registered = self._forwards.get(operation.name)
        if registered is not None:
            return registered
        key = self.dispatch_key()
        if not isinstance(key, str) or not f"forward_{key}".isidentifier():
            raise PlatformError(
                f"platform {self.hardware.kind!r} gives {key!r} for dispatch_key(); valid: what follows "
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


__all__ = ["Forward", "Serving"]
