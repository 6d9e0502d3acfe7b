"""Shows which steps an engine captures, the backends in these steps, and the hooks that replays skip."""

from __future__ import annotations

from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING, Any

from switchrail.cli.show import table
from switchrail.engine.capture import CapturePlan, GraphState
from switchrail.hooks import chain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console


def capture_document(capture: CapturePlan | str) -> dict[str, Any]:
    """The captured steps with their backends, reasons and hooks, or the reason why nothing is captured."""
    if isinstance(capture, str):
        return {"steps": [], "reason": capture, "hooks": []}
    states = [asdict(state) for _, state in capture.states()]
    return {"steps": states, "reason": None, "hooks": _hooks()}


def print_capture(out: Console, capture: CapturePlan | str) -> None:
    """Prints a table with a row per op and phase of a step. Steps that differ only in size share rows."""
    if isinstance(capture, str):
        out.print(f"no step is captured: {capture}")
        return
    rows = []
    for _, group in groupby((state for _, state in capture.states()), _served):
        states = list(group)
        steps = _steps(states)
        for call, name in states[0].backends.items():
            eager = states[0].eager.get(call)
            how = "captured" if eager is None else "eager"
            why = states[0].because[call] if eager is None else eager
            if call in states[0].commits:
                why = f"{why}; {states[0].commits[call]}"
            rows.append((steps, call, name, how, why))
            steps = ""
    columns = ("steps", "call", "backend", "runs", "why")
    out.print(table("captured steps", columns, rows, fold=("steps", "why")))
    for hook in _hooks():
        out.print(f"{hook} is called when a step is captured, but not when it is replayed")


def _hooks() -> list[str]:
    """The hooks on transformers' models, each with its target and its source, in words."""
    found = [hook for hook in chain.running() if hook.target_name.startswith("transformers.models.")]
    return [f"the hook on {hook.target_name} by {hook.source}" for hook in found]


def _served(state: GraphState) -> Any:
    """The data of a step, except its size, that determine its printed rows."""
    return state.kind, state.backends, state.because, state.eager, state.commits


def _steps(states: Sequence[GraphState]) -> str:
    width = states[0].width
    rows = ", ".join(map(str, dict.fromkeys(state.rows // width for state in states)))
    if states[0].kind == "mixed":
        return f"with prompt tokens, of {rows} rows"
    tokens = ", ".join(f"{one:,}" for one in dict.fromkeys(state.tokens or 0 for state in states))
    each = f", {width} rows each," if states[0].kind == "verify" else ""
    kind = "verifications" if each else "decodes"
    return f"{kind} of {rows} sequences{each} with caches of {tokens} tokens"
