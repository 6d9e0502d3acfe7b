"""Plot of the measurements, as SVG."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.figures import pyplot, save

COLOURS = {
    "switchrail": "#3b6fb6",
    "SGLang": "#c8553d",
    "SGLang with Switchrail's kernels": "#7a4fa3",
    "transformers": "#e0a32e",
}

PANELS = (
    ("step_ms", "decode step, ms"),
    ("prefill_ms", "prefill, ms"),
    ("tokens_per_second", "tokens a second, whole"),
)


def draw(document: Mapping[str, Any], folder: Path) -> Path:
    """Plot greedy runs by number of sequences."""
    rows = [row for row in document["rows"] if not row["chosen"]] + document["transformers_rows"]
    figure, axes = pyplot().subplots(1, len(PANELS), figsize=(9.0, 2.8), layout="constrained")
    for axis, (value, title) in zip(axes, PANELS, strict=True):
        for name, colour in COLOURS.items():
            points = [(row["batch"], row[value]) for row in rows if row["name"] == name and value in row]
            if points:
                axis.plot(*zip(*points, strict=True), marker="o", markersize=4, color=colour, label=name)
        axis.set(xscale="log", yscale="log", title=title, xlabel="sequences")
        batches = sorted({row["batch"] for row in rows})
        axis.set_xticks(batches, map(str, batches))
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[0].legend(frameon=False)
    return save(figure, folder, "serving")
