"""Registers the backends of this distribution by class path, without importing them or torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from switchrail.ops.catalog import DEFINITIONS
from switchrail.ops.definition import FLOATS

if TYPE_CHECKING:
    from switchrail.registration import Registry


def register_builtins(registry: Registry) -> None:
    """Registers for each op `torch`, the default, and `reference`, which is only used if a user chooses it.

    Args:
        registry: An open transaction.
    """
    for op, definition in DEFINITIONS.items():
        for name, priority in (("torch", 0), ("reference", -100)):
            registry.register(
                name,
                f"switchrail.ops.{op}.{name}:{name.capitalize()}{definition.stem}",
                op=op,
                phases=("prefill", "decode", "verify"),
                devices=("cpu", "cuda"),
                dtypes=FLOATS,
                priority=priority,
                **definition.claims,
            )


__all__ = ["register_builtins"]
