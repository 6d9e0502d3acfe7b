"""`switchrail plugins`: what is installed, and how far it got."""

from __future__ import annotations

from switchrail.cli.choices import Choices, JsonOption, loaded_runtime
from switchrail.cli.show import console, plugin_table, print_json


def plugins(as_json: JsonOption = False) -> None:
    """List the installed plugins: loaded, left out or failed, and why."""
    found = loaded_runtime(Choices()).plugins
    if as_json:
        print_json([plugin.to_dict() for plugin in found])
    else:
        console().print(plugin_table(found))
