"""Reads and writes the file of times that `switchrail tune` measured, by device and versions."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from switchrail import _core
from switchrail.arguments import refused
from switchrail.checks import is_integer, is_number
from switchrail.errors import ArgumentError, TimesError
from switchrail.files import check_file
from switchrail.variables import TIMES, blamed_on

if TYPE_CHECKING:
    from switchrail.platforms import Platform

SCHEMA = 2

NOISY = 0.2
"""A time with a larger spread is noisy, and is measured again.

A time that stays noisy is multiplied by 1 + spread.
"""

Machine = dict[str, Any]
"""The times that were measured on one device with certain versions.

- `device` has the kind, the name and the capability of the device.
- `packages` has the version of each package.
- `measurements` is a list. Each measurement has `op`, `phase`, `dtype`, `head_size` (of q and k, and of v),
  `heads` (of q, and of v), `no_decay` (whether all gates were 0) and `samples`. `head_size` and `heads` are
  None for an op without heads. By backend, `ways` tells how the backend was timed, and `left_out` why it was
  not timed, or not with some batches.
- Each of the `samples` has `rows`, the number of new tokens, and `length`: in attention and mla the average
  number of tokens that a row attends to, in other ops the rows of the longest sequence. By backend,
  `nanoseconds` is the time of a call, and `spread` is the difference between the slowest and the fastest
  quintile of rounds, divided by the median.
"""


def times_path() -> Path:
    """Path of the times file: `SWITCHRAIL_TIMES`, or `switchrail/times.json` in the user's cache folder."""
    named = os.environ.get(TIMES)
    if named:
        return Path(named)
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "switchrail" / "times.json"


def measurements_for(platform: Platform, packages: Mapping[str, str]) -> list[dict[str, Any]]:
    """The measurements on a platform's device with the installed versions.

    Args:
        platform: The platform.
        packages: The installed versions, by normalised package name.

    Raises:
        TimesError: The file exists but can't be read, or has an invalid field.
    """
    with blamed_on(TIMES, TimesError):
        machines = read_machines(times_path())
    if not machines:
        return []
    device = device_of(platform)
    for machine in machines:
        same = machine["packages"].items() <= packages.items()
        if same and machine["device"] == device:
            try:
                return as_arguments(machine["measurements"])
            except ArgumentError as error:
                raise _error(times_path(), str(error)) from error
    return []


def read_machines(path: Path) -> list[Machine]:
    """The machines in a times file; none if the file is missing or an older version of Switchrail wrote it.

    Raises:
        TimesError: The file can't be read, or is not a times file.
    """
    try:
        check_file(path)
        document = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return []
    except (OSError, ValueError, RecursionError) as error:
        raise _error(path, str(error)) from error
    schema = document.get("schema") if isinstance(document, dict) else None
    if isinstance(schema, int) and 0 < schema < SCHEMA:
        return []
    if schema != SCHEMA:
        raise _error(path, f"its schema is {schema!r}; valid: {SCHEMA}")
    machines = document.get("machines")
    if not isinstance(machines, list) or not all(map(_is_machine, machines)):
        raise _error(path, "a machine lacks its device, its packages or a field of its measurements")
    return machines


def write_machine(path: Path, machine: Machine, installed: Mapping[str, str]) -> None:
    """Writes a machine into a times file, atomically.

    Keeps all measurements of other devices. Of the same device, keeps those that were made with the installed
    versions and that `machine` does not repeat.

    Args:
        path: The file.
        machine: The machine.
        installed: The installed versions, by normalised package name.

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
    """The description of a platform's device, as in the times file."""
    capability = platform.capability
    return {
        "kind": platform.kind,
        "name": platform.name,
        "capability": None if capability is None else list(capability),
    }


def as_arguments(measurements: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Converts measurements to the form that the core takes. Noisy times are multiplied by 1 + spread.

    Raises:
        ArgumentError: A measurement is invalid; the error names the wrong field.
    """
    if isinstance(measurements, (str, Mapping)) or not isinstance(measurements, Iterable):
        raise refused("measurements", measurements, "a list of mappings")
    return [_argument(f"measurements[{index}]", given) for index, given in enumerate(measurements)]


def _argument(where: str, given: Mapping[str, Any]) -> dict[str, Any]:
    measurement = _fields(where, given, {"head_size": None, "heads": None, "no_decay": False}, _FIELDS)
    for name in ("head_size", "heads"):
        if isinstance(measurement[name], Sequence):
            measurement[name] = tuple(measurement[name])
    measurement["samples"] = [
        _counted(_fields(f"{where}.samples[{index}]", sample, {"spread": {}}, _SAMPLE))
        for index, sample in enumerate(measurement["samples"])
    ]
    return measurement


def _counted(sample: dict[str, Any]) -> dict[str, Any]:
    """A sample without spreads, with noisy times multiplied by 1 + spread."""
    spread = sample.pop("spread")
    noisy = {name for name, apart in spread.items() if apart > NOISY}
    sample["nanoseconds"] = {
        name: min(round(time * (1 + spread[name])), _LONGEST) if name in noisy else time
        for name, time in sample["nanoseconds"].items()
    }
    return sample


def _fields(where: str, given: object, defaults: Mapping[str, Any], fields: _Fields) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise refused(where, given, f"a mapping with {', '.join(fields)}")
    found = {**defaults, **given}
    for name, (is_valid, valid) in fields.items():
        if name not in found:
            problem = f"{where} lacks {name}; valid: {valid}"
            raise ArgumentError(problem, argument=f"{where}.{name}", found=None)
        if not is_valid(found[name]):
            raise refused(f"{where}.{name}", found[name], valid)
    return {name: found[name] for name in fields}


def _is_count(found: object, bits: int = 64) -> bool:
    return is_integer(found, 0) and found < 2**bits


def _is_pair(found: object) -> bool:
    is_two = isinstance(found, Sequence) and not isinstance(found, (str, bytes)) and len(found) == 2
    return is_two and all(_is_count(each, 32) for each in found)  # type: ignore[attr-defined]


def _by_name(found: object, is_valid: Callable[[Any], bool]) -> bool:
    return isinstance(found, Mapping) and all(
        isinstance(name, str) and is_valid(value) for name, value in found.items()
    )


_LONGEST = 2**64 - 1

_Fields = Mapping[str, tuple[Callable[[Any], bool], str]]

_FIELDS: _Fields = {
    "op": (_core.OPS.__contains__, f"one of {', '.join(_core.OPS)}"),
    "phase": (_core.PHASES.__contains__, f"one of {', '.join(_core.PHASES)}"),
    "dtype": (_core.DTYPES.__contains__, f"one of {', '.join(_core.DTYPES)}"),
    "head_size": (
        lambda found: found is None or _is_count(found, 32) or _is_pair(found),
        "a number, a pair of numbers (of q and k, of v), or None",
    ),
    "heads": (
        lambda found: found is None or _is_pair(found),
        "the numbers of q heads and of v heads, or None",
    ),
    "no_decay": (lambda found: isinstance(found, bool), "True or False"),
    "samples": (
        lambda found: isinstance(found, Sequence) and not isinstance(found, str),
        "a list of mappings",
    ),
}
"""The fields of a measurement that are used, with their valid values."""

_SAMPLE: _Fields = {
    "rows": (_is_count, "a number of rows"),
    "length": (_is_count, "a number of tokens"),
    "nanoseconds": (lambda found: _by_name(found, _is_count), "a mapping of names to integers"),
    "spread": (
        lambda found: _by_name(found, lambda spread: is_number(spread) and spread >= 0),
        "a mapping of names to numbers, 0 or more",
    ),
}


def _key(measurement: Mapping[str, Any]) -> tuple[object, ...]:
    return tuple(str(measurement[name]) for name in _FIELDS if name != "samples")


def _is_machine(found: object) -> bool:
    return (
        isinstance(found, dict)
        and isinstance(found.get("device"), dict)
        and isinstance(found.get("packages"), dict)
        and isinstance(found.get("measurements"), list)
        and all(isinstance(each, dict) and _FIELDS.keys() <= each.keys() for each in found["measurements"])
    )


def _error(path: Path, problem: str) -> TimesError:
    return TimesError(
        f"the times in {path} can't be used: {problem}; valid: a file that `switchrail tune` wrote, or none",
        path=str(path),
        problem=problem,
    )
