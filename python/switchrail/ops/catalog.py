"""The definitions of all ops, and mappings from an op to one part of its definition."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, TypeVar

from switchrail._core import OPS
from switchrail.ops.definition import OpDefinition

if TYPE_CHECKING:
    from switchrail.ops.contract import Contract

T = TypeVar("T")

DEFINITIONS: Mapping[str, OpDefinition] = {op: import_module(f"switchrail.ops.{op}").DEFINITION for op in OPS}


class OfEach(Mapping[str, T]):
    """A mapping from each op to one part of its definition, imported on lookup.

    Args:
        part: Returns the part of a definition.
    """

    def __init__(self, part: Callable[[OpDefinition], T]) -> None:
        self._part = part

    def __getitem__(self, op: str) -> T:
        return self._part(DEFINITIONS[op])

    def __iter__(self) -> Iterator[str]:
        return iter(DEFINITIONS)

    def __len__(self) -> int:
        return len(DEFINITIONS)


CONTRACTS: Mapping[str, Contract] = OfEach(lambda definition: definition.contract)
