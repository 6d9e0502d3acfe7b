"""Markdown tables: the backends' capabilities, and the devices on which kernel times were measured.

`python -m switchrail_kernels.describe` prints both tables.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import switchrail

from switchrail_kernels import register
from switchrail_kernels.fitted import DEVICES

if TYPE_CHECKING:
    from switchrail._core import Registration

_HEAD = ("op", "backend", "phases", "dtypes", "states", "head sizes", "features", "devices", "packages")


def support() -> str:
    """The table of backends by op: those of this distribution, and the built-in `torch` backends.

    The `reference` backends are left out. With Triton's interpreter on, the table lists
    the capabilities under the interpreter.
    """
    runtime = switchrail.Runtime()
    with runtime.transaction() as registry:
        register(registry)
    registrations = (each for each in runtime.backends() if each.name != "reference")
    return _table(_HEAD, map(_row, registrations))


def timed() -> str:
    """The table of devices on which kernel times were measured. The kernels' plans use these times."""
    rows = [
        (each.device, ".".join(map(str, each.capability)), each.date, each.versions, each.command)
        for each in DEVICES
    ]
    return _table(("device", "compute capability", "date", "versions", "command"), rows)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _row(registration: Registration) -> tuple[str, ...]:
    claims = registration.capabilities
    return (
        f"`{registration.op}`",
        f"`{registration.name}`",
        ", ".join(registration.phases),
        ", ".join(claims["dtypes"]),
        ", ".join(claims["state_dtypes"]),
        _head_sizes(claims["head_sizes"]),
        ", ".join(f"`{feature}`" for feature in claims["features"]),
        ", ".join(device_range(device) for device in claims["devices"]),
        ", ".join(text.replace(", ", ",") for text in claims["packages"]),
    )


def _head_sizes(sizes: Sequence[int | tuple[int, int]]) -> str:
    """The supported head sizes, separated by commas.

    A size is one number if q, k and v share it. Otherwise it is `64 / 128`, for instance: first the size of q
    and k, then the size of v.

    If there are several numbers and every pair of them is supported, the result is, for instance,
    `64, 128 (in any combination)`.
    """
    if not sizes:
        return "any"
    pairs = {(size, size) if isinstance(size, int) else tuple(size) for size in sizes}
    numbers = sorted({number for pair in pairs for number in pair})
    if len(numbers) > 1 and pairs == {(k, v) for k in numbers for v in numbers}:
        return f"{_list(numbers)} (in any combination)"
    return _list(f"{k}" if k == v else f"{k} / {v}" for k, v in sorted(pairs))


def device_range(device: Mapping[str, Any]) -> str:
    """A kind of device and its range of compute capabilities, for instance `cuda 8.0 or later`."""
    least, most = (
        device[name] and ".".join(map(str, device[name])) for name in ("min_capability", "max_capability")
    )
    if least is None:
        limits = "" if most is None else f" up to {most}"
    elif most is None:
        limits = f" {least} or later"
    else:
        limits = f" {least}" if least == most else f" {least} to {most}"
    return f"{device['kind']}{limits}"


def _list(values: Iterable[object]) -> str:
    return ", ".join(map(str, values))


if __name__ == "__main__":
    sys.stdout.write(f"{support()}\n\n{timed()}\n")
