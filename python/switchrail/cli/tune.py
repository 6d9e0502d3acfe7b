"""`switchrail tune`: times the backends on this machine, so that `auto` takes the fastest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

import switchrail
from switchrail import _core
from switchrail.cli.choices import Choices, DeviceOption, JsonOption, loaded_runtime
from switchrail.cli.show import console, platform_text, print_json, table
from switchrail.errors import UnknownPhaseError
from switchrail.nearest import nearest
from switchrail.times import times_path, write_machine

if TYPE_CHECKING:
    from switchrail.tune import Timing


def tune(
    checkpoint: Annotated[
        Path | None,
        typer.Argument(help="For the head sizes of this model; else for those that many models have."),
    ] = None,
    op: Annotated[list[str] | None, typer.Option(help="Only this op; can be given several times.")] = None,
    phase: Annotated[str | None, typer.Option(help="Only this phase: prefill or decode.")] = None,
    dtype: Annotated[
        list[str] | None,
        typer.Option(help="A dtype of activations; can be given several times; else what suits the device."),
    ] = None,
    device: DeviceOption = None,
    output: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Where to; else SWITCHRAIL_TIMES, or the user's cache folder."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Time the backends that fit, and keep the result for `auto`; `explain` shows it.

    What was measured counts on the same device with the same versions, until it is measured again or the file
    is removed.
    """
    from switchrail.engine.dtypes import parse_dtype
    from switchrail.tune import HEAD_SIZES, head_sizes_of, machine
    from switchrail.tune import tune as timings_of

    if phase not in (None, "prefill", "decode"):
        near, hint = nearest(phase, ("prefill", "decode"))
        raise UnknownPhaseError(
            f"{phase!r} is not timed{hint}; valid: prefill, decode",
            found=phase,
            valid=("prefill", "decode"),
            nearest=near,
        )
    runtime = loaded_runtime(Choices())
    platform = runtime.platform if device is None else runtime.find_platform(device)
    usual = "float32" if platform.kind == "cpu" else "bfloat16"
    dtypes = [
        str(parse_dtype(name, {}, platform.hardware)).removeprefix("torch.") for name in dtype or (usual,)
    ]
    sizes = None if checkpoint is None else head_sizes_of(switchrail.Layout.from_config(checkpoint))
    found: list[Timing] = []
    with Console(stderr=True).status("") as status:
        for timing in timings_of(
            runtime,
            platform,
            ops=[_core.parse_op(name) for name in op or ()],
            phases=() if phase is None else (phase,),
            dtypes=dtypes,
            head_sizes=HEAD_SIZES if sizes is None else sizes,
        ):
            status.update(f"{timing.op} {timing.phase} in {timing.dtype}")
            found.append(timing)
    path = times_path() if output is None else output
    result = machine(runtime, platform, found)
    write_machine(path, result, runtime._loader.packages())
    if as_json:
        print_json({**result, "path": str(path)})
        return
    out = console()
    out.print(platform_text(platform))
    out.print()
    out.print(table("times", ("op", "phase", "dtype", "head size", "calls", "microseconds"), _rows(found)))
    reasons: dict[str, list[str]] = {}
    for timing in found:
        for name, reason in timing.left_out.items():
            reasons.setdefault(f"{name}: {reason}", []).append(f"{timing.op} {timing.phase}")
    for reason, what in reasons.items():
        out.print(f"left out: {reason} ({', '.join(dict.fromkeys(what))})", highlight=False, markup=False)
    out.print(f"kept in {path}", highlight=False, markup=False)


def _rows(found: Sequence[Timing]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for timing in found:
        size = "" if timing.head_size is None else " and ".join(map(str, timing.head_size))
        for calls, times in [*timing.nanoseconds.items(), ("typical", timing.typical)]:
            fastest = sorted(times.items(), key=lambda item: item[1])
            told = ", ".join(f"{name} {nanoseconds / 1000:,.1f}" for name, nanoseconds in fastest)
            rows.append((timing.op, timing.phase, timing.dtype, size, calls, told))
    return rows
