"""`switchrail backends`: what can be chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

from switchrail.cli.choices import Choices, JsonOption, loaded_runtime
from switchrail.cli.show import print_json, table

if TYPE_CHECKING:
    from switchrail import Registration


def backends(as_json: JsonOption = False) -> None:
    """List the backends by op, with what each can do."""
    found = loaded_runtime(Choices()).backends()
    if as_json:
        print_json([backend.to_dict() for backend in found])
    else:
        columns = ("op", "name", "phases", "devices", "dtypes", "priority", "origin")
        Console().print(table("backends", columns, map(_row, found), fold=("phases", "devices", "dtypes")))


def _row(backend: Registration) -> tuple[object, ...]:
    capabilities = backend.capabilities
    devices = [device["kind"] for device in capabilities["devices"]]
    dtypes = capabilities["dtypes"]
    return (
        backend.op,
        backend.name,
        ", ".join(backend.phases),
        ", ".join(devices) or "any",
        ", ".join(dtypes) or "any",
        backend.priority,
        backend.origin,
    )
