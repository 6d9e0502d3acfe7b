"""Torch operators for the calls in compiled layers that torch.compile must not trace.

Each op has an operator, `torch.ops.switchrail.<op>`, and `torch.ops.switchrail.module` runs a module of a
model unchanged. An operator's first argument identifies the layer or module by a number, so that compiled
code has no layer as a constant. Operators declare only their results as mutated, because some of torch's
compilers copy mutated tensors, and pools are too large to copy.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Final, Protocol
from weakref import WeakValueDictionary

import torch

from switchrail.ops.catalog import CONTRACTS
from switchrail.ops.contract import Contract

NAMESPACE: Final = "switchrail"
"""The namespace of all operators in this module."""


class Served(Protocol):
    """The object that an op's operator calls: one layer of one engine's model."""

    def run(self, op: str, tensors: tuple[torch.Tensor | None, ...], written: list[torch.Tensor]) -> None:
        """Write `written` to the layer's cache, then dispatch the call with `tensors`."""


_served: WeakValueDictionary[int, Any] = WeakValueDictionary()
_numbers = itertools.count()
_library = torch.library.Library(NAMESPACE, "DEF")  # type: ignore[no-untyped-call]


def number(served: object) -> torch.Tensor:
    """A tensor that identifies a `Served` or a module to operators, as long as that object lives."""
    found = next(_numbers)
    _served[found] = served
    return torch.tensor(found)


def call(index: torch.Tensor, op: str, tensors: tuple[Any, ...], written: tuple[torch.Tensor, ...]) -> None:
    """Run the operator of an op.

    Args:
        index: The layer's tensor from `number`.
        op: The op.
        tensors: The tensors of the op's call, in order.
        written: The values to write to the cache first, as in the pool's method `write`.
    """
    getattr(torch.ops.switchrail, op).default(index, written, *tensors)


def module(index: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Run the forward of a module registered with `number`. The result has x's shape and dtype."""
    result: torch.Tensor = torch.ops.switchrail.module.default(index, x)
    return result


def _define(signature: str, run: Callable[..., Any], fake: Callable[..., Any]) -> None:
    name = signature.partition("(")[0]
    _library.define(signature)  # type: ignore[no-untyped-call]
    _library.impl(name, run, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=_library)


def _define_op(op: str, contract: Contract) -> None:
    kind: Any = contract.call
    arguments = []
    for position, name in enumerate(kind._fields[1:]):
        alias = f"({chr(ord('a') + position)}!)" if contract.tensors[name].mutated else ""
        is_optional = name in kind._field_defaults
        arguments.append(f"Tensor{alias}{'?' * is_optional} {name}{'=None' * is_optional}")

    def run(index: torch.Tensor, written: list[torch.Tensor], *tensors: torch.Tensor | None) -> None:
        _served[int(index)].run(op, tensors, written)

    _define(f"{op}(Tensor layer, Tensor[] written, {', '.join(arguments)}) -> ()", run, lambda *_: None)


def _run_module(index: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    part = _served[int(index)]
    found: torch.Tensor = type(part).forward(part, x)
    return found


for _op, _contract in CONTRACTS.items():
    _define_op(_op, _contract)
_define("module(Tensor module, Tensor x) -> Tensor", _run_module, lambda index, x: torch.empty_like(x))
