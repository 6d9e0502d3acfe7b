"""`switchrail tune`: times the backends on this machine, so that `auto` can choose the fastest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

import switchrail
from switchrail import _core
from switchrail.cli import flags
from switchrail.cli.choices import Choices, loaded_runtime
from switchrail.cli.show import console, platform_text, print_json, times_table
from switchrail.errors import UnknownPhaseError
from switchrail.foreign import one_line
from switchrail.nearest import unknown
from switchrail.times import times_path, write_machine

if TYPE_CHECKING:
    from rich.console import Console

    from switchrail.times import Machine
    from switchrail.tune import Timing


def tune(
    checkpoint: Annotated[
        Path | None,
        flags.CheckpointArgument(
            help="Use this model's heads and head sizes; by default those of common models."
        ),
    ] = None,
    op: Annotated[
        list[str] | None, flags.OpOption(help="An op to time; can be given several times; by default all.")
    ] = None,
    phase: flags.Phase = None,
    dtype: Annotated[
        list[str] | None,
        flags.DtypeOption(
            help="A dtype of activations; can be given several times; by default bfloat16, on CPUs float32."
        ),
    ] = None,
    device: flags.Device = None,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The file to write; by default SWITCHRAIL_TIMES, or a file in the user's cache folder.",
        ),
    ] = None,
    download: flags.Download = False,
    as_json: flags.Json = False,
) -> None:
    """Time the backends that fit, and save the times for `auto`; `explain` shows the times.

    The times are used on the same device with the same versions, until they are measured again or the file is
    removed.
    """
    from switchrail.engine.dtypes import choose_dtype
    from switchrail.engine.hub import find_checkpoint
    from switchrail.tune import ATTEMPTS, machine, sizes_of
    from switchrail.tune import tune as timings_of

    if phase is not None and phase not in _core.PHASES:
        raise unknown(UnknownPhaseError, f"unknown phase {phase!r}", phase, _core.PHASES, found=phase)
    runtime = loaded_runtime(Choices())
    platform = runtime.find_platform(device)
    usual = "float32" if platform.kind == "cpu" else "bfloat16"
    dtypes = [choose_dtype(name, {}, platform.hardware) for name in dtype or (usual,)]
    sizes = None
    if checkpoint is not None:
        folder = find_checkpoint(checkpoint, download=download, files=["config.json"])
        sizes = sizes_of(switchrail.Layout.from_config(folder))
    ops = [_core.parse_op(name) for name in op or ()]
    if sizes is not None and ops and sizes.keys().isdisjoint(ops):
        raise typer.BadParameter(f"the model runs no {', '.join(ops)}; valid: {', '.join(sizes)}")
    path = times_path() if output is None else output
    found: list[Timing] = []
    result: Machine = {}
    with console(stderr=True).status("timing") as status:
        for timing in timings_of(
            runtime, platform, ops=ops, phases=() if phase is None else (phase,), dtypes=dtypes, sizes=sizes
        ):
            status.update(f"timing; done: {_title(timing)}")
            found.append(timing)
            result = machine(runtime, platform, found)
            # Written after each measurement, since a later one may fail.
            write_machine(path, result, runtime._loader.installed().packages)
    _warn_of_noise(found, ATTEMPTS)
    if as_json:
        print_json({**result, "path": str(path)})
        return
    out = console()
    out.print(platform_text(platform))
    _print(out, found)
    out.print(f"written to {path}", highlight=False, markup=False)


def _warn_of_noise(timings: Iterable[Timing], attempts: int) -> None:
    for timing in timings:
        if timing.noisy:
            spreads = ", ".join(f"{name} with {batch} ({spread:.0%})" for name, batch, spread in timing.noisy)
            warning = (
                f"warning: {_title(timing)}: these times varied too much in {attempts} attempts, "
                f"so each is increased by its spread; measure again on an idle machine: {spreads}"
            )
            typer.echo(one_line(warning), err=True)


def _print(out: Console, timings: Sequence[Timing]) -> None:
    """Prints a table for each timing, then the backends that were left out, by reason."""
    reasons: dict[str, list[str]] = {}
    for timing in timings:
        for name, reason in timing.left_out.items():
            reasons.setdefault(f"{name}: {reason}", []).append(f"{timing.op} {timing.phase}")
        if timing.has_times:
            names: dict[str, list[str]] = {}
            for name, way in timing.ways.items():
                names.setdefault(_WAYS[way], []).append(name)
            ways = ", ".join(f"{' and '.join(timed)} {way}" for way, timed in names.items())
            out.print()
            out.print(Text.assemble((_title(timing), "bold"), f", microseconds: {one_line(ways)}"))
            out.print(times_table(timing.op, timing.to_dict()["samples"]))
    out.print()
    for reason, what in reasons.items():
        out.print(f"left out: {reason} ({', '.join(dict.fromkeys(what))})", highlight=False, markup=False)


_WAYS = {
    "graph": "in a CUDA graph",
    "queued": "queued ahead of the device",
    "eager": "launched one by one",
    "host": "on the host",
}


def _title(timing: Timing) -> str:
    size = timing.size
    parts = [f"{timing.op} {timing.phase} in {timing.dtype}"]
    if size.heads is not None:
        parts.append(f"{size.heads[0]} and {size.heads[1]} heads")
    if size.head_size is not None:
        parts.append(f"head size {' and '.join(map(str, dict.fromkeys(size.head_size)))}")
    if size.channels is not None:
        parts.append(f"{size.channels} channels")
    if timing.no_decay:
        parts.append("without decay")
    return ", ".join(parts)
