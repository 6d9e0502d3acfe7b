"""Torch operators for the calls of a compiled layer that torch.compile doesn't look into.

Each op has an operator, `torch.ops.switchrail.<op>`, and `torch.ops.switchrail.module` runs a module of a
model as it is. An operator finds what it serves by a number in its first tensor, so that no layer is a
constant of what was compiled. It declares its results alone as written: some of torch's compilers copy whole
what is declared, and pools are too large for that.
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
"""Of all operators here."""


class Served(Protocol):
    """What the operator of an op serves: one layer of one engine's model."""

    def run(self, op: str, tensors: tuple[torch.Tensor | None, ...], written: list[torch.Tensor]) -> None:
        """Writes tokens into the layer's cache, then dispatches the call that has these tensors."""


_served: WeakValueDictionary[int, Any] = WeakValueDictionary()
_numbers = itertools.count()
_library = torch.library.Library(NAMESPACE, "DEF")  # type: ignore[no-untyped-call]


def number(served: object) -> torch.Tensor:
    """A tensor by which operators find a `Served`, or a module, for as long as it lives."""
    found = next(_numbers)
    _served[found] = served
    return torch.tensor(found)


def call(index: torch.Tensor, op: str, tensors: tuple[Any, ...], written: tuple[torch.Tensor, ...]) -> None:
    """Runs the operator of an op.

    Args:
        index: What `number` gave for the layer.
        op: The op.
        tensors: The tensors of the op's call, in their order.
        written: The tokens to be written into the cache first, as the pool's `write` takes them.
    """
    getattr(torch.ops.switchrail, op).default(index, written, *tensors)


def module(index: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Runs the forward of the module that `number` was given; its result has x's shape and dtype."""
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

__all__ = ["NAMESPACE", "Served", "call", "module", "number"]
