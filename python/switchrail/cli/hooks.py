"""Prints each target's hooks in the order in which a call runs them."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from rich.text import Text

from switchrail.checks import shown
from switchrail.cli.show import console, print_json, table
from switchrail.errors import HookError
from switchrail.foreign import one_line
from switchrail.hooks.target import modules_of
from switchrail.plugins.environment import seconds_allowed
from switchrail.waiting import PATIENCE, within

if TYPE_CHECKING:
    from switchrail.hooks import Explanation, Hooks, Step

_COLUMNS = ("kind", "hook", "plugin", "distribution", "version", "priority", "state", "reason")


def explain_hook(hooks: Hooks, target: str, *, as_json: bool) -> None:
    """Imports a target's module and shows the target's hooks.

    Raises:
        HookError: The target does not exist, or its module can't be imported.
    """
    for module in modules_of(target):
        try:
            seconds = seconds_allowed(None, PATIENCE)
            within(seconds, partial(importlib.import_module, module), f"module {module}", "its import")
        except ModuleNotFoundError as error:
            if error.name == module:  # `explain` reports a path that does not exist
                break
            raise HookError(f"{module} can't be imported: {error}", target=target) from error
        except (Exception, SystemExit) as error:
            raise HookError(f"{module} can't be imported: {shown(error, None)}", target=target) from error
    explanation = hooks.explain(target)
    if as_json:
        print_json(explanation.to_dict())
    else:
        show_hooks([explanation])


def show_hooks(explanations: Sequence[Explanation]) -> None:
    """Prints the hooks of each target, and the calls that bypass them."""
    out = console()
    if not explanations:
        out.print(Text.assemble(("hooks ", "bold"), "there are none"))
    for i, explanation in enumerate(explanations):
        if i:
            out.print()
        if explanation.steps:
            rows = map(_row, explanation.steps)
            out.print(table(explanation.target, _COLUMNS, rows, fold=("hook", "reason")))
        else:
            out.print(Text.assemble((one_line(explanation.target), "bold"), " has no hooks"))
        for note in explanation.bypassed():
            out.print(Text(one_line(f"bypassed: {note}")))


def _row(step: Step) -> tuple[object, ...]:
    hook = step.hook
    return (
        hook.kind,
        hook.name,
        hook.plugin or "",
        hook.source,
        hook.version or "",
        hook.priority,
        step.state,
        step.reason or "",
    )
