"""Describes which parts of a served model run where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from torch import nn

from switchrail._core import RoutePlan


def explain(plan: RoutePlan, base: nn.Module, served: Iterable[nn.Module]) -> str:
    """Describe the backends of each layer with reasons, and what stays with transformers.

    Args:
        plan: The routes.
        base: The model without its head.
        served: Its mixers.
    """
    lines = [f"{plan.layout.model} in transformers, served by Switchrail"]
    for route in plan.routes:
        decision = route.decision
        lines.append(
            f"{decision.op} {decision.phase}, layers {', '.join(map(str, route.layers))}: "
            f"{decision.chosen} of {decision.origin}, {decision.because}"
        )
        lines += [f"  {other.name}: {'; '.join(other.reasons)}" for other in decision.rejected]
    own = {part for mixer in served for part in mixer.modules()}
    left = Counter(
        type(part).__name__
        for part in base.modules()
        if part not in own and (list(part.parameters(recurse=False)) or not list(part.children()))
    )
    listed = ", ".join(f"{count} {name}" for name, count in sorted(left.items()))
    lines += [
        f"stays with transformers: {listed}; products and norms of the layers above; head, sampling, losses",
        "torch.compile: the model without its head runs eagerly",
    ]
    return "\n".join(lines)


__all__ = ["explain"]
