"""Registers this distribution's own backends by class path, without importing them or torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from switchrail.ops.catalog import DEFINITIONS
from switchrail.ops.definition import FLOATS

if TYPE_CHECKING:
    from switchrail.registration import Registry


def register_builtins(registry: Registry) -> None:
    """Registers two backends for each op: `torch`, the default, and `reference`, the oracle for tests.

    Args:
        registry: An open transaction.
    """
    for op, definition in DEFINITIONS.items():
        features = definition.claims["features"]
        for name, priority, steps in (("torch", 0, definition.steps), ("reference", -100, ())):
            registry.register(
                name,
                f"switchrail.ops.{op}.{name}:{name.capitalize()}{definition.stem}",
                op=op,
                phases=("prefill", "decode", "verify"),
                devices=("cpu", "cuda"),
                dtypes=FLOATS,
                priority=priority,
                **{**definition.claims, "features": (*features, *steps)},
            )
