"""Registers the backends of this distribution by class path: nothing is imported for it, not even torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from switchrail.registration import Registry

FLOATS = ("float64", "float32", "float16", "bfloat16")

_RECURRENT = {
    "state_dtypes": ("float64", "float32", "bfloat16"),
    "state_layouts": ("VK",),
    "features": ("checkpoints",),
}

_CAPABILITIES: dict[str, dict[str, Any]] = {
    "attention": {"features": ("lse", "sinks", "soft_cap", "trees", "window")},
    "gated_delta": {**_RECURRENT, "features": ("checkpoints", "raw_gates")},
    "kda": {**_RECURRENT, "features": ("checkpoints", "raw_gates")},
    "lightning": _RECURRENT,
    "mamba2": _RECURRENT,
    "mla": {"features": ("lse", "trees")},
    "short_conv": {"state_dtypes": FLOATS, "features": ("checkpoints",)},
}


def register_builtins(registry: Registry) -> None:
    """Registers `torch`, the default, and `reference`, which is never chosen unasked, for each op.

    Args:
        registry: An open transaction.
    """
    for op, capabilities in _CAPABILITIES.items():
        for name, prefix, priority in (("torch", "Torch", 0), ("reference", "Reference", -100)):
            suffix = "".join(part.capitalize() for part in op.split("_"))
            registry.register(
                name,
                f"switchrail.ops.{op}.{name}:{prefix}{suffix}",
                op=op,
                phases=("prefill", "decode", "verify"),
                devices=("cpu", "cuda"),
                dtypes=FLOATS,
                priority=priority,
                **capabilities,
            )


__all__ = ["register_builtins"]
