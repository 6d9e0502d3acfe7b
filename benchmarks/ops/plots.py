"""Plots the results as SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from switchrail.testing.conformance.setting import PAGED, RECURRENT

from benchmarks.figures import pyplot, save
from benchmarks.ops.document import rows_of
from benchmarks.ops.run import usual

STYLES = {
    "triton": ("#3b6fb6", "o"),
    "flashinfer": ("#4e9a51", "o"),
    "flashqla": ("#c8553d", "o"),
    "cutedsl": ("#8a5fa8", "o"),
    "torch": ("#7f7f7f", "o"),
    "FLA": ("#e0a32e", "s"),
    "FLA bare": ("#e0a32e", "s"),
    "mamba_ssm": ("#a6761d", "D"),
    "SDPA bare": ("#59a7b5", "^"),
    "FlashQLA bare": ("#c8553d", "o"),
    "FlashInfer bare": ("#4e9a51", "o"),
    "mul_ bare": ("#555555", "|"),
}
"""Colour and marker by name; bare functions have hollow markers."""

OTHER = ("#000000", "x")
"""Colour and marker of everything else."""

FIGURES = {
    "prefill": [(op, "prefill") for op in RECURRENT],
    "decode": [(op, "decode") for op in RECURRENT],
    "attention": [(op, phase) for op in PAGED for phase in ("prefill", "decode")],
}
"""The ops and phases of each figure."""


def draw(document: Mapping[str, Any], folder: Path) -> list[Path]:
    """Draws the figures that have results."""
    paths = []
    for figure_name, parts in FIGURES.items():
        panels = []
        for op, phase in parts:
            # a floor far below the time of a launch says nothing about a kernel
            rows = [row for row in rows_of(document, op, phase) if row["floor_s"] > 1e-7]
            if rows:
                panels.append((op, phase, rows))
        if not panels:
            continue
        counts = [len(rows) for _, _, rows in panels]
        figure, axes = pyplot().subplots(
            len(panels),
            1,
            figsize=(7.2, 0.34 * sum(counts) + 0.75 * len(panels) + 0.6),
            gridspec_kw={"height_ratios": [count + 1 for count in counts]},
            squeeze=False,
            layout="constrained",
        )
        handles: dict[str, Any] = {}
        for axis, (op, phase, rows) in zip(axes[:, 0], panels, strict=True):
            handles |= _panel(axis, f"{op} {phase}", rows)
        right = max(axis.get_xlim()[1] for axis in axes[:, 0])
        for axis in axes[:, 0]:
            axis.set_xlim(0.9, right)
        axes[-1, 0].set_xlabel(
            "time over the floor (log scale); 1 is as fast as the device moves or computes"
        )
        figure.legend(
            handles.values(),
            handles.keys(),
            loc="outside upper center",
            ncols=min(5, len(handles)),
            frameon=False,
        )
        paths.append(save(figure, folder, figure_name))
    return paths


def _panel(axis: Any, title: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    handles: dict[str, Any] = {}
    for y, row in enumerate(rows):
        ratios = {name: usual(times) / row["floor_s"] for name, times in row["times"].items()}
        axis.plot([1, max(ratios.values())], [y, y], color="#dddddd", linewidth=1, zorder=1)
        for name, ratio in ratios.items():
            color, marker = STYLES.get(name, OTHER)
            own = row["times"][name]["kind"] == "backend"
            handles[name] = axis.plot(
                ratio,
                y,
                marker,
                color=color,
                markerfacecolor="none" if name.endswith("bare") else color,
                markersize=6,
                linestyle="none",
                zorder=2 + own,
            )[0]
    axis.set_yticks(range(len(rows)), [row["shape"] + (" *" if row["held_out"] else "") for row in rows])
    axis.invert_yaxis()
    axis.set_ylim(len(rows) - 0.5, -0.5)
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_formatter("{x:g}")
    axis.set_title(title, loc="left", fontsize=9, fontweight="bold")
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="x", color="#eeeeee", zorder=0)
    return handles
