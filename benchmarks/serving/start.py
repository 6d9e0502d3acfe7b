"""Time from process start to first token: `python -m benchmarks.serving.start CHECKPOINT DEVICE OPTIONS`."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_DONE = "first token"


def measure(folder: Path, device: str, options: Mapping[str, Any]) -> float:
    """Seconds until an engine in a new process returns its first token."""
    command = [sys.executable, "-m", __spec__.name, str(folder), device, json.dumps(options)]
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip() == _DONE:
                seconds = time.perf_counter() - start
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return seconds


def main() -> None:
    from switchrail.engine import Engine, SamplingParams

    folder, device, options = sys.argv[1:]
    with Engine(folder, device=device, options=json.loads(options)) as engine:
        engine.generate([[2, 3, 4]], SamplingParams(max_new_tokens=1, ignore_eos=True))
        print(_DONE, flush=True)


if __name__ == "__main__":
    main()
