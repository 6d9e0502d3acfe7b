"""What `switchrail tune` measured on this machine: a small file, by device and versions."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from switchrail.errors import TimesError

if TYPE_CHECKING:
    from switchrail.platforms import Platform

SCHEMA = 2

Machine = dict[str, Any]
"""One device with versions: `device` (its kind, name and capability), `packages` (name -> version) and
`measurements`, each with `op`, `phase`, `dtype`, `head_size` and `heads` (of q and k, and of v; None for an
op without), `no_decay` (whether no gate decayed), `samples` (each with `rows`, `length` and `nanoseconds`,
backend -> a call's), `ways` (backend -> how it was timed) and `left_out` (backend -> why it wasn't).
"""

_KEYS = ("op", "phase", "dtype", "head_size", "heads", "no_decay", "samples")
"""What of a measurement decides."""


def times_path() -> Path:
    """Where the file is: `SWITCHRAIL_TIMES`, or `switchrail/times.json` in the user's cache folder."""
    named = os.environ.get("SWITCHRAIL_TIMES")
    if named:
        return Path(named)
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "switchrail" / "times.json"


def measurements_for(platform: Platform, packages: Mapping[str, str]) -> list[dict[str, Any]]:
    """What was measured on a platform's device with the versions that are installed.

    Args:
        platform: The platform.
        packages: What is installed, by normalised name.

    Raises:
        TimesError: There is a file, and it can't be read.
    """
    machines = read_machines(times_path())
    if not machines:
        return []
    device = device_of(platform)
    for machine in machines:
        same = machine["packages"].items() <= packages.items()
        if same and machine["device"] == device:
            return [{key: measurement[key] for key in _KEYS} for measurement in machine["measurements"]]
    return []


def read_machines(path: Path) -> list[Machine]:
    """All machines of a file; none where there is no file, or one that an older version wrote.

    Raises:
        TimesError: It can't be read.
    """
    try:
        document = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise _error(path, str(error)) from error
    schema = document.get("schema") if isinstance(document, dict) else None
    if isinstance(schema, int) and 0 < schema < SCHEMA:
        return []
    if schema != SCHEMA:
        raise _error(path, f"its schema is {schema!r}; valid: {SCHEMA}")
    machines = document.get("machines")
    if not isinstance(machines, list) or not all(map(_is_machine, machines)):
        raise _error(path, "a machine lacks its device, packages or measurements")
    return machines


def write_machine(path: Path, machine: Machine, installed: Mapping[str, str]) -> None:
    """Puts a machine into the file, whole or not at all.

    What the file has of the same device stays where it was measured with the versions that are installed, and
    was not measured again.

    Args:
        path: The file.
        machine: The machine.
        installed: What is installed, by normalised name.

    Raises:
        TimesError: The file can't be read or written.
    """
    machines = read_machines(path)
    others = [other for other in machines if other["device"] != machine["device"]]
    again = {_key(measurement) for measurement in machine["measurements"]}
    machine = {**machine}
    for old in machines:
        if old["device"] == machine["device"] and old["packages"].items() <= installed.items():
            kept = [measurement for measurement in old["measurements"] if _key(measurement) not in again]
            machine["measurements"] = [*kept, *machine["measurements"]]
            machine["packages"] = {**old["packages"], **machine["packages"]}
    text = json.dumps({"schema": SCHEMA, "machines": [*others, machine]}, indent=1)
    part = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text + "\n", "utf-8")
        part.replace(path)
    except OSError as error:
        raise _error(path, str(error)) from error


def device_of(platform: Platform) -> dict[str, Any]:
    """A platform's device as the file names it."""
    capability = platform.capability
    return {
        "kind": platform.kind,
        "name": platform.name,
        "capability": None if capability is None else list(capability),
    }


def as_arguments(measurements: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Measurements in the form that the core takes."""
    return [
        {
            **measurement,
            "head_size": _pair(measurement.get("head_size")),
            "heads": _pair(measurement.get("heads")),
            "no_decay": measurement.get("no_decay", False),
        }
        for measurement in measurements
    ]


def _pair(size: int | Sequence[int] | None) -> int | tuple[int, ...] | None:
    return size if size is None or isinstance(size, int) else tuple(size)


def _key(measurement: Mapping[str, Any]) -> tuple[object, ...]:
    return tuple(str(measurement[name]) for name in _KEYS if name != "samples")


def _is_machine(found: object) -> bool:
    return (
        isinstance(found, dict)
        and isinstance(found.get("device"), dict)
        and isinstance(found.get("packages"), dict)
        and isinstance(found.get("measurements"), list)
        and all(isinstance(each, dict) and {*_KEYS} <= each.keys() for each in found["measurements"])
    )


def _error(path: Path, problem: str) -> TimesError:
    return TimesError(
        f"the times in {path} can't be used: {problem}; valid: what `switchrail tune` writes, or no file",
        path=str(path),
        problem=problem,
    )


__all__ = [
    "Machine",
    "as_arguments",
    "device_of",
    "measurements_for",
    "read_machines",
    "times_path",
    "write_machine",
]
