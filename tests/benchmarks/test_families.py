"""A small CPU run of the benchmark of families."""

from __future__ import annotations

import json
from pathlib import Path

from switchrail.testing import isolated

from benchmarks import families


def test_a_slice_is_measured_beside_its_floor(tmp_path: Path) -> None:
    arguments = ["--tiny", "--family", "nemotron_h", "--batch", "2", "--repeats", "1"]
    with isolated():
        rows = families.main([*arguments, "--no-transformers", "--json", str(tmp_path / "rows.json")])
    assert [row["name"] for row in rows] == ["switchrail", "floor"]
    ours, floor = rows
    assert 0 < floor["step_ms"] < ours["step_ms"]
    assert floor["prefill_ms"] > 0
    written = json.loads((tmp_path / "rows.json").read_text())
    assert written["device"] == "CPU"
    assert len(written["rows"]) == 2
