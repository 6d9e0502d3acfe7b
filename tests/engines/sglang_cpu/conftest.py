import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SECONDS = 600
"""The time limit of one run, enough on a busy machine."""


@dataclass(frozen=True)
class Run:
    """One run of SGLang's Engine.

    Attributes:
        answers: For each batch and prompt the fields that `engine.py` writes.
        watched: A line for each batch of the scheduler, from the plugin `engine-watch`.
        log: The output of the processes.
        status: The exit status.
    """

    answers: list
    watched: list
    log: str
    status: int

    def batches(self, mode):
        """The lines of the batches of one mode."""
        return [line for line in self.watched if line["mode"] == mode]


@pytest.fixture(scope="session")
def engine(tmp_path_factory):
    """Returns a function that runs SGLang's Engine in a separate process."""

    def run(options, batches, **environment):
        folder = tmp_path_factory.mktemp("run")
        request, answer, watch, log = (folder / name for name in ("request", "answer", "watch", "log"))
        request.write_text(json.dumps({"options": options, "batches": batches}))
        variables = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",  # for ninja
            "ENGINE_WATCH": str(watch),
            "SGLANG_MAMBA_CONV_DTYPE": "float16",  # the dtype of the model
            **environment,
        }
        with log.open("w") as output:
            done = subprocess.run(
                [sys.executable, HERE / "engine.py", request, answer],
                stdout=output,
                stderr=subprocess.STDOUT,
                env=variables,
                timeout=SECONDS,
                start_new_session=True,  # a failing scheduler ends its whole process tree
            )
        text = log.read_text(errors="replace")
        return Run(
            json.loads(answer.read_text()) if answer.exists() else [],
            [json.loads(line) for line in watch.read_text().splitlines()] if watch.exists() else [],
            text,
            done.returncode,
        )

    return run
