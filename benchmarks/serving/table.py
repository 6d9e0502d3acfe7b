"""Table of the measurements, in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

COLUMNS = (
    ("prefill_ms", "prefill, ms", ".1f"),
    ("step_ms", "step, ms", ".2f"),
    ("tokens_per_second", "tokens/s", ",.0f"),
)


def table(document: Mapping[str, Any]) -> str:
    """A line per batch size and sampling, and one for the long prompt, with the figures of all engines.

    Each engine after the first also has a ratio in brackets: how many times as fast the first engine is.
    """
    rows = [*document["rows"], *document["long"]]
    names = list(dict.fromkeys(row["name"] for row in rows))
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        what = f"{row['batch']}{row['chosen']}" if "batch" in row else "one prompt"
        groups.setdefault(what, []).append(row)
    titles = [f"{title}: {name}" for _, title, _ in COLUMNS for name in names]
    lines = [["B", "prompt tokens", *titles], ["---"] * (2 + len(titles))]
    for what, found in groups.items():
        cells = [cell for column in COLUMNS for cell in _cells(found, *column)]
        lines.append([what, f"{found[0]['prompt_tokens']:,}", *cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cells(rows: Iterable[Mapping[str, Any]], column: str, _: str, shown: str) -> list[str]:
    values = [row.get(column) for row in rows]
    ours, cells = values[0], list[str]()
    for number, value in enumerate(values):
        if ours is None or value is None:
            cells.append("")
        else:
            ratio = ours / value if column == "tokens_per_second" else value / ours
            cells.append(format(value, shown) + (f" ({ratio:.2f})" if number else ""))
    return cells
