"""Describes which parts of a model are served, and by which backends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from torch import nn

from switchrail._core import RoutePlan


def explain(plan: RoutePlan, base: nn.Module, served: Iterable[nn.Module]) -> str:
    """Describes which backends serve each layer and why, and which parts of the model transformers runs.

    Args:
        plan: The route plan of the model.
        base: The model without its head.
        served: The modules that Switchrail serves.
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
        f"stays with transformers: {listed}; projections and norms of served layers; head, sampling, losses",
        "torch.compile: the model without its head runs eagerly",
    ]
    return "\n".join(lines)
