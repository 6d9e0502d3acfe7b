"""Where model definitions meet the operations that a platform can bring a function for.

A module's forward is bound to a function only where the platform has one: else the model definition's own
runs, as it is in transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch
from torch import nn
from torch.nn.functional import linear, sigmoid

from switchrail.engine.step import Running
from switchrail.platforms.operations import Experts, GatedRMSNorm, Operation, RMSNorm, Rotary, SiluAndMul
from switchrail.platforms.serving import Forward

ForwardOf = Callable[[type[Operation]], Forward | None]
"""Finds the function that serves an operation; None: the native one."""


@dataclass(frozen=True, slots=True)
class Binding:
    """How one class of a modelling module runs an operation.

    Attributes:
        operation: The operation.
        call: Does what the class's forward does: `call(function, module, *args)`, with the operation's
            function.
        suits: Whether a module of the class runs the operation; one that doesn't keeps its forward.
        padded: Whether the function is told, as `rows`, which rows are padding.
    """

    operation: type[Operation]
    call: Callable[..., Any]
    suits: Callable[[Any], bool] = lambda module: True
    padded: bool = False


_ATTRIBUTE: Final = "_switchrail_forward"
INNERMOST: Final = 1 - 2**31
"""The priority of that hook: whatever else is hooked to a module stays around the platform's function."""

_FIXED_FREQUENCIES: Final = ("default", "linear", "llama3", "yarn")


def bind(
    forward_of: ForwardOf, model: nn.Module, module: str, bindings: Mapping[str, Binding], running: Running
) -> list[str]:
    """Gives a platform's functions to the modules of a model; other models in the process stay as they are.

    Args:
        forward_of: Finds the function that serves an operation on the platform.
        model: The model.
        module: The dotted path of its modelling module.
        bindings: Class there -> the operation that it runs, and how.
        running: The step that runs.

    Returns:
        The classes whose `forward` is to be hooked with `forward`, so that the functions serve.
    """
    bound = []
    for name, binding in bindings.items():
        function = forward_of(binding.operation)
        if function is None:
            continue
        if binding.padded:
            function = partial(_with_rows, function, running)
        for part in model.modules():
            if (type(part).__module__, type(part).__name__) == (module, name) and binding.suits(part):
                part.__dict__[_ATTRIBUTE] = binding.call, function
                bound.append(name)
    return list(dict.fromkeys(bound))


def forward(original: Forward, *args: Any, **kwargs: Any) -> Any:
    """Hook: the platform's function where the module, which is the first argument, has one."""
    call, function = args[0].__dict__.get(_ATTRIBUTE, (None, None))
    return original(*args, **kwargs) if call is None else call(function, *args, **kwargs)


def _with_rows(function: Forward, running: Running, *args: Any, **kwargs: Any) -> Any:
    step = running.now
    return function(*args, **kwargs, rows=None if step is None else step.real_rows)


def _offset_rms_norm(function: Forward, module: Any, x: torch.Tensor) -> Any:
    return function(x, module.weight, eps=module.eps, weight_offset=1.0)


def _gated_rms_norm(function: Forward, module: Any, hidden_states: torch.Tensor, gate: torch.Tensor) -> Any:
    return function(hidden_states, gate, module.weight, eps=module.variance_epsilon)


def _rotary(function: Forward, module: Any, x: torch.Tensor, position_ids: torch.Tensor) -> Any:
    return function(position_ids, module.inv_freq, scaling=module.attention_scaling, dtype=x.dtype)


def _silu_and_mul(function: Forward, module: Any, x: torch.Tensor) -> Any:
    return module.down_proj(function(module.gate_proj(x), module.up_proj(x)))


def _sparse_block(function: Forward, module: Any, hidden_states: torch.Tensor) -> Any:
    x = hidden_states.reshape(-1, hidden_states.shape[-1])
    gate, experts = module.gate, module.experts
    out = function(
        x,
        linear(x, gate.weight),
        experts.gate_up_proj,
        experts.down_proj,
        top_k=gate.top_k,
        normalize=gate.norm_topk_prob,
        shared=0,
    )
    out = out + sigmoid(module.shared_expert_gate(x)) * module.shared_expert(x)
    return out.reshape(hidden_states.shape)


OFFSET_RMS_NORM: Final = Binding(RMSNorm, _offset_rms_norm)
"""Normalisation with weights around zero."""

GATED_RMS_NORM: Final = Binding(GatedRMSNorm, _gated_rms_norm, lambda module: module.activation == "silu")
"""Normalisation with weights around one, then the gate."""

ROTARY: Final = Binding(Rotary, _rotary, lambda module: module.rope_type in _FIXED_FREQUENCIES)
"""Angles by frequencies that don't depend on the length of the sequence."""

GATED_MLP: Final = Binding(
    SiluAndMul, _silu_and_mul, lambda module: module.config.hidden_act in ("silu", "swish")
)
"""A gated feed-forward layer."""

SPARSE_BLOCK: Final = Binding(
    Experts,
    _sparse_block,
    lambda module: module.shared_expert.config.hidden_act in ("silu", "swish"),
    padded=True,
)
"""Experts behind a router, and a shared one behind a gate; hooks on router and experts don't see it."""

__all__ = [
    "GATED_MLP",
    "GATED_RMS_NORM",
    "INNERMOST",
    "OFFSET_RMS_NORM",
    "ROTARY",
    "SPARSE_BLOCK",
    "Binding",
    "ForwardOf",
    "bind",
    "forward",
]
