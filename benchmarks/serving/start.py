"""Time from the start of a process to its first token. `measure` runs this module in a new process."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def measure(folder: Path, device: str, options: Mapping[str, Any]) -> dict[str, float]:
    """Seconds from process start until each stage is done: imports, engine construction, first token."""
    arguments = [str(folder), device, json.dumps(options), str(time.time())]
    command = [sys.executable, "-m", __spec__.name, *arguments]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found: dict[str, float] = json.loads(output.splitlines()[-1])
    return found


def main() -> None:
    from switchrail.engine.engine import Engine, SamplingParams

    folder, device, options, started = sys.argv[1:]
    times = {"imported": time.time()}
    with Engine(folder, device=device, options=json.loads(options)) as engine:
        times["made"] = time.time()
        engine.generate([[2, 3, 4]], SamplingParams(max_new_tokens=1, ignore_eos=True))
        times["token"] = time.time()
    print(json.dumps({name: seconds - float(started) for name, seconds in times.items()}), flush=True)


if __name__ == "__main__":
    main()
