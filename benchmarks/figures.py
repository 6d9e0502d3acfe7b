"""Settings with which the benchmarks draw plots as SVG: the same numbers give the same bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def pyplot() -> Any:
    """matplotlib's `pyplot` for SVG files. It is imported here, because it is only needed for plots."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams |= {"svg.hashsalt": "switchrail", "font.size": 9, "svg.fonttype": "none"}
    import matplotlib.pyplot

    return matplotlib.pyplot


def save(figure: Any, folder: Path, name: str) -> Path:
    """Writes a figure to a folder, closes it, and returns the file's path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.svg"
    figure.savefig(path, metadata={"Date": None, "Creator": None})
    pyplot().close(figure)
    return path
