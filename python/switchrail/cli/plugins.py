"""`switchrail plugins`: what is installed, and how far it got; or what it hooks."""

from __future__ import annotations

from typing import Annotated

import typer

from switchrail.cli.choices import Choices, JsonOption, loaded_runtime
from switchrail.cli.hooks import show_hooks
from switchrail.cli.show import console, plugin_table, print_json
from switchrail.errors import PlatformError
from switchrail.plugins.environment import PLATFORMS


def plugins(
    hooks: Annotated[
        bool, typer.Option("--hooks", help="List the hooks in force instead, target by target.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """List the installed plugins: loaded, left out or failed, and why."""
    runtime = loaded_runtime(Choices())
    if not hooks and any(plugin.group == PLATFORMS for plugin in runtime.plugins):
        try:
            runtime.platform  # noqa: B018 - so that the records say which one is in use
        except PlatformError as error:
            typer.echo(f"switchrail: {error}", err=True)
    found = runtime.plugins
    if hooks:
        explanations = runtime.hooks.explain_all()
        if as_json:
            print_json([explanation.to_dict() for explanation in explanations])
        else:
            show_hooks(explanations)
    elif as_json:
        print_json([plugin.to_dict() for plugin in found])
    else:
        console().print(plugin_table(found))
