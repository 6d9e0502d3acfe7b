"""The benchmark of discovery runs, and shows what it is for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "discovery.py"
# Processor time is steadier than the clock where other tests run; a quiet machine shows 8 and more of both.
TIMES_FASTER = 6


def test_a_new_process_finds_plugins_faster_than_importlib() -> None:
    command = [sys.executable, str(BENCHMARK), "--json", "--rounds", "5"]
    document = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert document["distributions"] == 600
    assert document["importlib_over_switchrail"]["cpu"] >= TIMES_FASTER, document
