"""The benchmark of discovery runs, and shows the expected speed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "discovery.py"
# Only CPU time is compared, since wall time varies more while other tests run. On a quiet machine, the ratios
# of both are 8 or more.
TIMES_FASTER = 6


def test_a_new_process_finds_plugins_faster_than_importlib() -> None:
    command = [sys.executable, str(BENCHMARK), "--json", "--rounds", "5"]
    document = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert document["distributions"] == 600
    assert document["importlib_over_switchrail"]["cpu"] >= TIMES_FASTER, document
