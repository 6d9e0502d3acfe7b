"""`switchrail backends`: lists the registered backends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from switchrail.cli import flags
from switchrail.cli.choices import Choices, loaded_runtime
from switchrail.cli.show import console, print_json, table

if TYPE_CHECKING:
    from switchrail import Registration


def backends(as_json: flags.Json = False) -> None:
    """List the backends by op; with --json, including their capabilities."""
    found = loaded_runtime(Choices()).backends()
    if as_json:
        print_json([backend.to_dict() for backend in found])
    else:
        columns = ("op", "name", "phases", "devices", "priority", "origin")
        console().print(table("backends", columns, map(_row, found), fold=("origin",)))


def _row(backend: Registration) -> tuple[object, ...]:
    devices = [device["kind"] for device in backend.capabilities["devices"]]
    return (
        backend.op,
        backend.name,
        ", ".join(backend.phases),
        ", ".join(devices) or "any",
        backend.priority,
        backend.origin,
    )
