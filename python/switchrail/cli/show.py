"""Formats the command's output."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from switchrail._core import PAGED_OPS
from switchrail.cli.output import output, say
from switchrail.foreign import in_lines, json_escaped, one_line
from switchrail.plugins import GROUP
from switchrail.plugins.place import placed_reason

if TYPE_CHECKING:
    from rich.progress import Progress

    from switchrail import Platform, Plugin, RoutePlan


PIPE_WIDTH = 160


class _Plain(Console):
    def render_str(self, text: str, **options: Any) -> Text:
        """Makes text without interpreting markup; escapes control characters, and cuts long text."""
        return super().render_str(in_lines(text), **{**options, "markup": False, "emoji": False})

    def on_broken_pipe(self) -> None:
        """Leaves the handling of a broken pipe to the command's entry point."""
        raise


def console(*, stderr: bool = False, quiet: bool = False) -> Console:
    """A console on standard output or standard error, with `PIPE_WIDTH` columns unless on a terminal.

    Args:
        stderr: Whether to use standard error.
        quiet: Whether to print nothing.
    """
    stream = sys.stderr if stderr else output()
    width = None if stream.isatty() else PIPE_WIDTH
    return _Plain(file=stream, width=width, stderr=stderr, quiet=quiet)


def progress_bar(out: Console) -> Progress:
    """A progress bar with its task's description. Shows nothing unless the console is a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=out,
        transient=True,
        # `FORCE_COLOR` makes rich take a file for a terminal.
        disable=out.quiet or not (out.is_terminal and out.file.isatty()),
    )


def print_json(document: Any) -> None:
    """Prints one JSON document to standard output."""
    say(json_escaped(json.dumps(document, indent=2, ensure_ascii=False)))


def table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], *, fold: Sequence[str] = ()
) -> Table:
    """Makes a table of plain text. If it is too wide, the columns in `fold` are wrapped."""
    result = Table(
        title=Text(one_line(title), "bold"),
        title_justify="left",
        box=None,
        header_style="dim",
        pad_edge=False,
    )
    for column in columns:
        result.add_column(column, overflow="fold", no_wrap=column not in fold)
    for row in rows:
        result.add_row(*(Text(one_line(cell)) for cell in row))
    return result


def times_table(op: str, samples: Sequence[Mapping[str, Any]]) -> Table:
    """A table of microseconds, with a row per batch and a column per backend. `*` marks the fastest."""
    names = list(dict.fromkeys(name for sample in samples for name in sample["nanoseconds"]))
    length = "tokens attended to" if op in PAGED_OPS else "longest"
    rows = []
    for sample in sorted(samples, key=lambda sample: (sample["rows"], sample["length"])):
        times = sample["nanoseconds"]
        least = min(times.values(), default=None) if len(names) > 1 else None
        told = [
            "" if name not in times else f"{times[name] / 1000:,.1f}{'*' if times[name] == least else ' '}"
            for name in names
        ]
        rows.append((f"{sample['rows']:,}", f"{sample['length']:,}", *told))
    result = table("", ("rows", length, *names), rows)
    result.title = None
    for column in result.columns:
        column.justify = "right"
    return result


def ranges(numbers: Sequence[int]) -> str:
    """Formats ascending numbers as ranges: `0-2, 4`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def platform_text(platform: Platform) -> Text:
    """Formats one line about the device."""
    found = platform.identity
    capability = f", capability {found.capability}" if found.capability else ""
    memory = "memory unknown" if found.total_memory is None else f"{found.total_memory / 2**30:.0f} GiB"
    return Text.assemble(
        ("platform ", "bold"), one_line(f"{found.device}: {found.name}{capability}, {memory}")
    )


def plugin_table(plugins: Sequence[Plugin]) -> Table | Text:
    """Makes a table of the installed plugins and their states."""
    if not plugins:
        return Text.assemble(("plugins ", "bold"), "none is installed")
    rows = [
        (
            p.name,
            "plugin" if p.group == GROUP else "platform",
            p.distribution,
            p.version or "",
            p.state,
            placed_reason(p),
        )
        for p in plugins
    ]
    columns = ("name", "kind", "distribution", "version", "state", "reason")
    return table("plugins", columns, rows, fold=("reason",))


def route_table(plan: RoutePlan) -> Table:
    """Makes a table of the backends for each op and phase. Layers with the same backends share a row."""
    layers: dict[tuple[str, str], dict[int, dict[str, str]]] = {}
    kinds = {layer.id: layer.kind for layer in plan.layout.layers}
    phases = list(dict.fromkeys(phase for _, _, phase, _ in plan.table))
    serving = {}
    for route in plan.routes:
        names = ", ".join(name for name, _ in route.decision.serving)
        for layer in route.layers:
            serving[layer, route.decision.op, route.decision.phase] = names
    for layer, op, phase, _ in plan.table:
        layers.setdefault((kinds[layer], op), {}).setdefault(layer, {})[phase] = serving[layer, op, phase]
    rows = []
    for (kind, op), served in layers.items():
        same: dict[tuple[str, ...], list[int]] = {}
        for layer, backends in served.items():
            same.setdefault(tuple(backends.get(phase, "") for phase in phases), []).append(layer)
        rows += [(ranges(ids), kind, op, *names) for names, ids in same.items()]
    return table("routes", ("layers", "kind", "op", *phases), rows)
