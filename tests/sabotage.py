"""Correct backends with one extra action."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def sabotaged(backend: type[Any], then: Callable[..., None]) -> Any:
    """A backend of this class that calls `then` with all arguments of each call after running it."""

    class Sabotaged(backend):  # type: ignore[misc]
        def run(self, call: Any, batch: Any, plan: Any) -> None:
            super().run(call, batch, plan)
            then(**call._asdict(), state=call.layer.state, batch=batch)

    return Sabotaged()
