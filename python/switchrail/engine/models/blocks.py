"""Compiled decoder layers. Identical layers share their compiled code."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Final

import torch
from torch import nn

from switchrail.engine.models import operations
from switchrail.engine.models.contract import Keyword
from switchrail.engine.module_hooks import hooks_of
from switchrail.engine.watch import ENGINE, HookWatch
from switchrail.hooks import chain
from switchrail.hooks.hook import Hook
from switchrail.hooks.table import Table
from switchrail.platforms.serving import Serving

_log = logging.getLogger("switchrail")

_ATTRIBUTE: Final = "_switchrail_block"

INNER: Final = operations.INNERMOST + 1
"""The priority of the hook `forward`: around the platform's function, inside all other hooks of a layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockState:
    """The state of a group of identical decoder layers.

    Attributes:
        kind: The layers' kind, as in the layout.
        layers: The layers' ids.
        reason: Why the layers run eagerly; None if they are compiled, or will be compiled at their first run.
    """

    kind: str
    layers: tuple[int, ...]
    reason: str | None


class _Block:
    """Identical layers, which share compiled functions. If compiling fails, the layers run eagerly.

    Integers in a layer's arguments (such as the layer's number in Zamba2) can become constants of compiled
    code. Torch recompiles a function for a few values only. After that, each other value gets a new function.
    """

    def __init__(self, kind: str, backend: str | Callable[..., Any], reason: str | None) -> None:
        self.kind = kind
        self.layers: list[int] = []
        self.reason = reason
        self._backend = backend
        self._compiled: dict[tuple[int, ...], Callable[..., Any]] = {(): self._compile()}

    def _compile(self) -> Callable[..., Any]:
        # torch stores compiled code with a function's code object. This copy of the code object is dropped
        # together with the block.
        own = FunctionType(_run.__code__.replace(), _run.__globals__)
        return torch.compile(own, fullgraph=True, dynamic=False, backend=self._backend)

    def run(
        self, original: Callable[..., Any], layer: nn.Module, x: torch.Tensor, /, *args: Any, **kwargs: Any
    ) -> Any:
        """Run a decoder layer on x [1, T, H]."""
        if self.reason is not None or torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
            # torch compiles nothing in a dispatch mode, such as a recorder of operations
            return original(layer, x, *args, **kwargs)
        _mark_rows(x.shape[1], (x, *args, *kwargs.values()))
        numbers = tuple(one for one in (*args, *kwargs.values()) if type(one) is int)
        try:
            compiled = self._compiled.get(numbers, self._compiled[()])
            return compiled(original, layer, x, *args, **kwargs)
        except Exception as error:
            if not _is_of_compiler(error):
                raise
            if type(error).__name__ == "FailOnRecompileLimitHit" and numbers not in self._compiled:
                self._compiled[numbers] = self._compile()
                return self.run(original, layer, x, *args, **kwargs)
            text = " ".join(str(error).split())
            self.reason = f"{type(error).__name__}: {text:.300}{_hooks_within(layer)}"
            _log.warning("%s layers run eagerly, because compiling one failed: %s", self.kind, self.reason)
        return original(layer, x, *args, **kwargs)


def _run(original: Callable[..., Any], layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
    return original(layer, *args, **kwargs)


def _is_of_compiler(error: Exception) -> bool:
    """Whether an error comes from torch's compiler, which runs before any code of the layer.

    The compiler's error classes are not imported for this check, because that is slow.
    """
    return any(cls.__module__ == "torch._dynamo.exc" for cls in type(error).__mro__)


def _mark_rows(rows: int, given: Iterable[Any]) -> None:
    """Mark the row dimension as dynamic, so that one compilation serves all numbers of rows from 2 on."""
    if rows == 1:  # torch always compiles size 1 separately
        return
    for one in given:
        if isinstance(one, torch.Tensor):
            if one.dim() > 1 and one.shape[1] == rows:
                torch._dynamo.mark_dynamic(one, 1)
        elif isinstance(one, (tuple, list)):
            _mark_rows(rows, one)


def _hooks_within(layer: nn.Module) -> str:
    """Describe the hooks that may have caused a layer's compilation to fail."""
    found = [f"{hook.fn!r} on {hook.target_name}" for hook in chain.running() if hook.source != ENGINE]
    found += [f"{hook!r} on {name or type(layer).__name__}" for name, _, hook in _hooks_of(layer)]
    return f"; hooks: {', '.join(found)}" if found else ""


def _hooks_of(layer: nn.Module) -> list[tuple[str, int, object]]:
    """Torch's hooks on a layer's modules, except the engine's: (module name, hook number, hook)."""
    return [
        (name, number, hook)
        for name, part in layer.named_modules()
        for hooks in hooks_of(part)
        for number, hook in hooks.items()
        if not isinstance(hook, Keyword)
    ]


def forward(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Hook: calls the module's compiled layer, if the module has one."""
    block: _Block | None = args[0].__dict__.get(_ATTRIBUTE)
    return original(*args, **kwargs) if block is None else block.run(original, *args, **kwargs)


class Blocks:
    """The compiled decoder layers of a model. Layers are compiled when they first run.

    Layers share compiled code if they have the same kind, the same classes of modules, and the same torch
    hooks on these modules. Hooks are part of the traced code, so all compiled layers are dropped when hooks
    change.
    """

    def __init__(
        self,
        model: nn.Module,
        layers: Sequence[nn.Module],
        kinds: Sequence[str],
        serving: Serving,
    ) -> None:
        """Group the layers without compiling them.

        Args:
            model: The model with its head.
            layers: The model's decoder layers.
            kinds: The layers' kinds, as in the layout.
            serving: The platform's settings: the compiler, and the kinds of layers to compile.
        """
        self._model = model
        self._layers = list(zip(layers, kinds, strict=True))
        self._backend = serving.compile_backend()
        self._eager = {
            kind: "the platform leaves this kind eager"
            for layer, kind in self._layers
            if not serving.compiles(kind, fused=operations.is_bound(layer))
        }
        self._watch = HookWatch(model)
        self._version: Table
        self._own: list[tuple[Hook, ...]]
        self._make()

    def look(self) -> None:
        """Drop the compiled layers if hooks on them have changed, including the engine's own hooks.

        Torch itself would notice changes of the engine's hooks, but recompiles only a few times.
        """
        version = chain.version()
        if self._watch.has_changed() or (version is not self._version and self._hooks(version) != self._own):
            self._make()
        self._version = version

    def states(self) -> tuple[BlockState, ...]:
        """The states of the layers."""
        return tuple(
            BlockState(kind=block.kind, layers=tuple(block.layers), reason=block.reason)
            for block in self._blocks
        )

    def _hooks(self, table: Table) -> list[tuple[Hook, ...]]:
        """The hooks on functions and methods of the modelling module."""
        module = f"{type(self._layers[0][0]).__module__}."
        return [one.running for site, one in table.chains.items() if site.name.startswith(module)]

    def _make(self) -> None:
        self._version = chain.table()
        self._own = self._hooks(self._version)
        self._watch.look()
        operations.look(self._model)
        blocks: dict[Any, _Block] = {}
        for number, (layer, kind) in enumerate(self._layers):
            hooks = tuple((name, number) for name, number, _ in _hooks_of(layer))
            key = kind, tuple(type(part) for part in layer.modules()), hooks
            if key not in blocks:
                blocks[key] = _Block(kind, self._backend, self._eager.get(kind))
            blocks[key].layers.append(number)
            layer.__dict__[_ATTRIBUTE] = blocks[key]
        self._blocks = list(blocks.values())
