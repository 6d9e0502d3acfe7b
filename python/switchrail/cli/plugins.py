"""`switchrail plugins`: lists the installed plugins and their states, or their hooks."""

from __future__ import annotations

from typing import Annotated

import typer

from switchrail.cli import flags
from switchrail.cli.choices import Choices, loaded_runtime
from switchrail.cli.hooks import show_hooks
from switchrail.cli.logs import without_failures
from switchrail.cli.show import console, plugin_table, print_json
from switchrail.errors import PlatformError, PlatformPluginError


def plugins(
    hooks: Annotated[bool, typer.Option("--hooks", help="List the hooks instead, by target.")] = False,
    as_json: flags.Json = False,
) -> None:
    """List the installed plugins, each with its state and the reason for it."""
    if hooks:
        explanations = loaded_runtime(Choices()).hooks.explain_all()
        if as_json:
            print_json([explanation.to_dict() for explanation in explanations])
        else:
            show_hooks(explanations)
        return
    with without_failures():
        runtime = loaded_runtime(Choices())
    try:
        runtime._platforms.ask_plugins()  # the records then show which platform plugin is in use
    except PlatformPluginError:  # the plugin's record shows the error
        pass
    except PlatformError as error:
        typer.echo(f"switchrail: {error}", err=True)
    if as_json:
        print_json([plugin.to_dict() for plugin in runtime.plugins])
    else:
        console().print(plugin_table(runtime.plugins))
