"""Writes tables of the results in Markdown between two marks of a document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from switchrail.testing.conformance.setting import PAGED

from benchmarks.ops.cases import OPS
from benchmarks.ops.document import rows_of
from benchmarks.ops.run import compared, usual

TUNED = ("triton", "cutedsl", "flashinfer", "flashqla", "torch")
"""The backends in the tuned tables. A table has `torch` only if it is the fastest for some batch. Of the
backends within 1% of the fastest, a plan uses the first (column `auto`)."""

WAYS = {"graph": "in a graph", "queued": "with calls queued", "eager": "call by call"}
"""How a backend was timed, in words."""


def times(document: Mapping[str, Any]) -> str:
    """The conditions of each run, and a table for each op and phase."""
    parts = ["\n".join(_about(document["runs"]))]
    for op in OPS:
        for phase in ("prefill", "decode"):
            if rows := rows_of(document, op, phase):
                parts.append(f"### `{op}`, {phase}\n\n{_table(rows)}")
    return "\n\n".join(parts)


def tuned(kept: Mapping[str, Any]) -> str:
    """Tables of one machine's times from `switchrail tune` in prefill and decode, with the plans' choices."""
    (machine,) = kept["machines"]
    packages = ", ".join(f"{name} {version}" for name, version in sorted(machine["packages"].items()))
    parts = [f"One {machine['device']['name']}; {packages}."]
    for found in machine["measurements"]:
        if found["phase"] == "verify":
            continue
        known = [sample["nanoseconds"] for sample in found["samples"]]
        fastest = {min(times, key=times.__getitem__) for times in known if times}
        names = [name for name in TUNED if name in found["ways"] and (name != "torch" or name in fastest)]
        lines = [
            [
                "rows",
                "attended" if found["op"] in PAGED else "longest",
                *(f"`{name}`" for name in names),
                "`auto`",
            ]
        ]
        lines.append(["---"] * len(lines[0]))
        for sample in found["samples"]:
            times = sample["nanoseconds"]
            least = min((times[name] for name in names if name in times), default=0)
            taken = [f"`{name}`" for name in names if name in times and times[name] <= 1.01 * least]
            cells = [_us(times[name] / 1e9) if name in times else "" for name in names]
            lines.append([f"{sample['rows']:,}", f"{sample['length']:,}", *cells, *(taken or [""])[:1]])
        title = f"### `{found['op']}`, {found['phase']}"
        if found["heads"] is not None:
            sizes = " and ".join(str(size) for size in dict.fromkeys(found["head_size"]))
            title += f", {found['heads'][0]} and {found['heads'][1]} heads of {sizes}"
        title += ", without decay" if found["no_decay"] else ""
        ways = ", ".join(f"`{name}` {WAYS[found['ways'][name]]}" for name in names)
        rows = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        parts.append(f"{title}\n\nTimed: {ways}.\n\n{rows}")
    return "\n\n".join(parts)


def section(page: str, name: str) -> tuple[str, str, str]:
    """Splits a page into the text up to a section's first mark, the text between its marks, and the rest.

    Raises:
        ValueError: The page lacks the marks.
    """
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, first, rest = page.partition(begin)
    inside, last, after = rest.partition(end)
    if not first or not last:
        raise ValueError(f"the page has no {begin} and {end}")
    return before + first, inside.strip(), last + after


def replace(path: Path, name: str, text: str) -> None:
    """Puts a text between the marks of a section.

    Raises:
        ValueError: The page lacks the marks.
    """
    before, _, after = section(path.read_text(), name)
    path.write_text(f"{before}\n\n{text}\n\n{after}")


def _about(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = []
    for number, run in enumerate(runs, 1):
        versions = ", ".join(f"{name} {version}" for name, version in run["versions"].items())
        ops = ", ".join(dict.fromkeys(f"`{result['op']}` {result['phase']}" for result in run["results"]))
        commit = f", commit {run['commit']}" if run.get("commit") else ""
        note = f" {run['note']}" if run.get("note") else ""
        lines.append(
            f"{number}. {run['date']}{commit}, one {run['device']}: {ops}; "
            f"copy {run['copy_bytes_per_s'] / 1e12:.2f} TB/s, "
            f"bf16 matmul {run['matmul_flops_per_s'] / 1e12:.0f} TFLOP/s; {versions}.{note}"
        )
    return lines


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    names: dict[str, str] = {}
    for row in rows:
        names |= {name: times["kind"] for name, times in row["times"].items()}
    backends = [name for name, kind in names.items() if kind == "backend"]
    peers = [name for name, kind in names.items() if kind == "peer"]
    head = ["shape", "run", "floor", *(f"`{name}`" for name in backends), "`auto`", "rate", "host", *peers]
    lines = [head, ["---"] * len(head)]
    for row in rows:
        best = min((compared(row["times"][name]) for name in backends if name in row["times"]), default=0.0)
        cells = [row["shape"] + (" *" if row["held_out"] else ""), str(row["run"]), _us(row["floor_s"])]
        cells += [_cell(row, name, best) for name in backends]
        cells += [_auto(row, best), _rate(row, backends), _host(row, backends)]
        cells += [_cell(row, name, 0.0) for name in peers]
        lines.append(cells)
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cell(row: Mapping[str, Any], name: str, best: float) -> str:
    times = row["times"].get(name)
    if times is None:
        return ""
    seconds = usual(times)
    text = _us(seconds) + ("" if "graph_s" in times else " (eager)")
    if times["kind"] == "backend" and row["floor_s"] > 1e-7:
        text += f" ({seconds / row['floor_s']:.2f})"
    if compared(times) != seconds:
        text += f", called {_us(compared(times))}"
    return f"**{text}**" if compared(times) == best else text


def _auto(row: Mapping[str, Any], best: float) -> str:
    """The backend that a plan chose, and its time relative to the best."""
    name = row["auto"]["backend"]
    if name not in row["times"]:
        return f"`{name}`"
    return f"`{name}` ({compared(row['times'][name]) / best:.2f})"


def _rate(row: Mapping[str, Any], backends: Sequence[str]) -> str:
    """Bytes and operations per second of the fastest backend; empty if no backend has a time."""
    known = (row["times"][name] for name in backends if name in row["times"])
    times = min(known, key=compared, default=None)
    if times is None:
        return ""
    text = f"{times['bytes_per_s'] / 1e9:,.0f} GB/s"
    return text + (f", {times['flops_per_s'] / 1e12:,.0f} TFLOP/s" if row["flops"] else "")


def _host(row: Mapping[str, Any], backends: Sequence[str]) -> str:
    times = (row["times"].get(name) for name in backends)
    return " / ".join("-" if found is None else _us(found["host_s"]) for found in times)


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:,.1f}" if seconds < 1e-3 else f"{seconds * 1e6:,.0f}"
