"""Registers the backends of this distribution by class path: nothing is imported for it, not even torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from switchrail.ops.catalog import DEFINITIONS
from switchrail.ops.definition import FLOATS

if TYPE_CHECKING:
    from switchrail.registration import Registry


def register_builtins(registry: Registry) -> None:
    """Registers `torch`, the default, and `reference`, which is never chosen unasked, for each op.

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
