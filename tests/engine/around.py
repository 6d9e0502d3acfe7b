"""Wraps the runs of a dispatcher's backends in a function."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from switchrail.dispatch import Dispatcher

Around = Callable[[tuple[int, str], str, Callable[[], Any]], Any]
"""Receives the layer's id and op, the phase, and a function that runs the backend."""


def around_backends(dispatcher: Dispatcher, around: Around) -> None:
    """Call `around` instead of each backend's `run`; it must return the result of `run`."""
    dispatch = dispatcher.dispatch

    def watched(call: Any) -> None:
        step = dispatcher._step
        place = dispatcher._layers[call.layer]

        def wrap(run: Callable[..., Any], phase: str) -> Callable[..., Any]:
            return lambda *given: around(place, phase, partial(run, *given))

        targets = step.left[call.layer]
        wrapped = tuple(
            (wrap(run, part.phase), index, commits)
            for (run, index, commits), part in zip(
                (targets,) if step.is_single else targets, step.prepared.parts, strict=True
            )
        )
        step.left[call.layer] = wrapped[0] if step.is_single else wrapped
        dispatch(call)

    dispatcher.dispatch = watched  # type: ignore[method-assign]


__all__ = ["around_backends"]
