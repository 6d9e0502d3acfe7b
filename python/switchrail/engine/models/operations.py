"""Makes model definitions call a platform's functions for operations.

A module's forward is replaced only if the platform has a function; otherwise transformers' forward runs
unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import Any, Final

import torch
from torch import nn

from switchrail.engine.compiled.functions import FUNCTIONS
from switchrail.engine.module_hooks import hooks_of, hooks_of_all
from switchrail.engine.step import Running
from switchrail.engine.watch import ENGINE
from switchrail.hooks import chain
from switchrail.platforms.operations import GatedRMSNorm, Operation, RMSNorm, Rotary, SiluAndMul
from switchrail.platforms.serving import Forward

ForwardOf = Callable[[type[Operation]], Forward | None]
"""Finds the platform's function for an operation; None keeps the model definition's own code."""


@dataclass(frozen=True, slots=True)
class Binding:
    """How the modules of one class run an operation.

    Attributes:
        operation: The operation.
        call: Replaces the modules' forward: `call(function, module, *args, **kwargs)`, where `function`
            computes the operation. None keeps the forward; then the binding consists of `prepare`.
        prepare: `prepare(function, module)` converts a loaded module's weights to the form that `call` needs.
            The result is stored with the module, for `prepared`. `prepare` must not keep a second copy of
            the weights.
        suits: Whether a given module of the class runs the operation; other modules keep their forward.
        padded: Whether the function receives the number of real rows as `rows`; see `Experts`.
        passes: The submodules whose work `call` does without calling them, as dotted attributes of the
            module. If one of them is hooked, the class's own forward runs.
        also: Other operations whose functions `call` receives as keyword arguments: the platform's function,
            or else the function in plain torch.
    """

    operation: type[Operation]
    call: Callable[..., Any] | None
    suits: Callable[[Any], bool] = lambda module: True
    prepare: Callable[[Forward, Any], Any] | None = None
    padded: bool = False
    passes: tuple[str, ...] = ()
    also: Mapping[str, type[Operation]] = field(default_factory=dict)


@dataclass(slots=True)
class _Bound:
    """The replacement of a module's forward.

    Attributes:
        call: See `Binding`.
        function: The platform's function.
        passed: The submodules whose work `call` does.
        traced: The operation in plain torch, for tracing by torch.compile. If None, the original forward is
            traced.
        is_passed_hooked: Whether one of `passed` had a hook at the last call of `look`.
    """

    call: Callable[..., Any]
    function: Forward
    passed: list[nn.Module]
    traced: Forward | None
    is_passed_hooked: bool = False


_ATTRIBUTE: Final = "_switchrail_forward"
_PREPARED: Final = "_switchrail_prepared"
_NORMAL: Final = "_switchrail_normal"
INNERMOST: Final = 1 - 2**31
"""The priority of the hook that calls a platform's function. All other hooks of a module run around it."""

_FIXED_FREQUENCIES: Final = ("default", "linear", "llama3", "yarn")


def prepare(
    forward_of: ForwardOf, model: nn.Module, module: str, bindings: Mapping[str, tuple[Binding, ...]]
) -> None:
    """Prepare the weights of the modules that run an operation for which the platform has a function.

    Args:
        forward_of: Finds the platform's function of an operation.
        model: The model.
        module: The dotted path of its modelling module.
        bindings: Name of a class in that modelling module, or dotted path of another class -> the class's
            bindings.
    """
    for path, binding in _each(module, bindings):
        function = forward_of(binding.operation)
        if function is not None and binding.prepare is not None:
            for part in _parts(model, path, binding):
                part.__dict__[_PREPARED] = binding.prepare(function, part)


def prepared(module: nn.Module) -> Any:
    """The module's prepared weights; None if nothing was prepared."""
    return module.__dict__.get(_PREPARED)


def bind(
    forward_of: ForwardOf,
    model: nn.Module,
    module: str,
    bindings: Mapping[str, tuple[Binding, ...]],
    running: Running,
) -> list[str]:
    """Give the modules of a model their platform's functions; other models in the process are not affected.

    Args:
        forward_of: Finds the platform's function for an operation.
        model: The model.
        module: The dotted path of its modelling module.
        bindings: Name of a class in that modelling module, or dotted path of another class -> the class's
            bindings.
        running: The current step.

    Returns:
        The dotted paths of the classes whose method `forward` needs the hook `operations.forward`. Without
        the hook, the functions aren't used.
    """
    bound = []
    for path, binding in _each(module, bindings):
        function, call = forward_of(binding.operation), binding.call
        if function is None or call is None:
            continue
        if binding.padded:
            function = partial(_with_rows, function, running)
        call = partial(call, **{key: either(forward_of(other), other) for key, other in binding.also.items()})
        for part in _parts(model, path, binding):
            passed = [attrgetter(path)(part) for path in binding.passes]
            traced = FUNCTIONS.get(binding.operation)
            part.__dict__[_ATTRIBUTE] = _Bound(call, function, passed, traced)
            bound.append(path)
    return list(dict.fromkeys(bound))


def _each(module: str, bindings: Mapping[str, tuple[Binding, ...]]) -> list[tuple[str, Binding]]:
    """Pairs of a class's dotted path and one of its bindings."""
    return [
        (name if "." in name else f"{module}.{name}", binding)
        for name, several in bindings.items()
        for binding in several
    ]


def _parts(model: nn.Module, path: str, binding: Binding) -> list[nn.Module]:
    """The modules of a class that run a binding's operation."""
    return [
        part
        for part in model.modules()
        if f"{type(part).__module__}.{type(part).__name__}" == path and binding.suits(part)
    ]


def forward(original: Forward, *args: Any, **kwargs: Any) -> Any:
    """Hook: runs the module's platform function, if it has one and no submodule in `passes` is hooked."""
    bound: _Bound | None = args[0].__dict__.get(_ATTRIBUTE)
    if bound is None:
        return original(*args, **kwargs)
    # Tracing would make the result of `_is_hooked` a constant. `look` keeps `is_passed_hooked` up to date.
    if torch.compiler.is_compiling():
        function = None if bound.is_passed_hooked else bound.traced
    else:
        function = None if any(map(_is_hooked, bound.passed)) else bound.function
    return original(*args, **kwargs) if function is None else bound.call(function, *args, **kwargs)


def look(model: nn.Module) -> None:
    """Record which modules have hooked submodules in `passes`, for later tracing by torch.compile."""
    for part in model.modules():
        bound: _Bound | None = part.__dict__.get(_ATTRIBUTE)
        if bound is not None:
            bound.is_passed_hooked = any(map(_is_hooked, bound.passed))


def _is_hooked(part: nn.Module) -> bool:
    """Whether a call of a module would run hooks other than the engines' own."""
    if any(hooks_of(part)) or any(hooks_of_all()):
        return True
    names = _hooked_names()
    if not names:
        return False
    owner = next(cls for cls in type(part).__mro__ if "forward" in vars(cls))
    return f"{owner.__module__}.{owner.__qualname__}.forward" in names


_found: tuple[object, frozenset[str]] = (None, frozenset())
"""The hooks at the last lookup, and the result of `_hooked_names` for them."""


def _hooked_names() -> frozenset[str]:
    """The functions and methods that have hooks other than engines' own."""
    global _found
    version, names = _found
    if version is not chain.version():
        table = chain.table()
        names = frozenset(
            site.name
            for site, found in table.chains.items()
            if any(hook.source != ENGINE for hook in found.running)
        )
        _found = table, names
    return names


def either(function: Forward | None, operation: type[Operation]) -> Forward:
    """The platform's function; plain torch if the platform has none, or while torch.compile traces."""
    return FUNCTIONS[operation] if function is None else partial(_either, function, FUNCTIONS[operation])


def _either(function: Forward, own: Forward, *args: Any, **kwargs: Any) -> Any:
    return (own if torch.compiler.is_compiling() else function)(*args, **kwargs)


def _with_rows(function: Forward, running: Running, *args: Any, **kwargs: Any) -> Any:
    step = running.now
    return function(*args, **kwargs, rows=None if step is None else step.real_rows)


def is_bound(part: nn.Module) -> bool:
    """Whether a platform's function is bound to the module."""
    return _ATTRIBUTE in part.__dict__


def serves(*parts: nn.Module) -> bool:
    """Whether platform functions are bound to all of these modules, and none of the modules has hooks."""
    return all(is_bound(part) and not _is_hooked(part) for part in parts)


def keep_normal(norm: nn.Module, x: torch.Tensor, normal: torch.Tensor) -> None:
    """Make the norm's next call return `normal`, which was already computed, if the call is with `x`."""
    norm.__dict__[_NORMAL] = x, normal


def _offset_rms_norm(function: Forward, module: Any, x: torch.Tensor) -> Any:
    if not torch.compiler.is_compiling():
        given, normal = module.__dict__.pop(_NORMAL, (None, None))
        if given is x:
            return normal
    return function(x, module.weight, eps=module.eps, weight_offset=1.0)


def _gated_rms_norm(function: Forward, module: Any, hidden_states: torch.Tensor, gate: torch.Tensor) -> Any:
    return function(hidden_states, gate, module.weight, eps=module.variance_epsilon)


def _rotary(function: Forward, module: Any, x: torch.Tensor, position_ids: torch.Tensor) -> Any:
    return function(position_ids, module.inv_freq, scaling=module.attention_scaling, dtype=x.dtype)


def _silu_and_mul(function: Forward, module: Any, x: torch.Tensor) -> Any:
    return module.down_proj(function(module.gate_proj(x), module.up_proj(x)))


OFFSET_RMS_NORM: Final = Binding(RMSNorm, _offset_rms_norm)
"""Normalisation with weights that are centred at zero."""

GATED_RMS_NORM: Final = Binding(GatedRMSNorm, _gated_rms_norm, lambda module: module.activation == "silu")
"""Normalisation with weights that are centred at one, then the gate."""

ROTARY: Final = Binding(Rotary, _rotary, lambda module: module.rope_type in _FIXED_FREQUENCIES)
"""Rotary embeddings whose frequencies don't depend on the sequence's length."""

GATED_MLP: Final = Binding(
    SiluAndMul, _silu_and_mul, lambda module: module.config.hidden_act in ("silu", "swish")
)
"""A gated feed-forward layer."""
