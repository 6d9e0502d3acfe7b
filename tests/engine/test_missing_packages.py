"""Without torch or transformers, other parts of Switchrail work, and parts that need them raise a clear
error."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest
from switchrail.errors import MissingPackageError
from switchrail.packages import engine_packages

from tests.processes import Helper

PROGRAM = """
import sys
sys.modules[{missing!r}] = None
import switchrail
assert switchrail.Runtime().backends() is not None
try:
    switchrail.Engine
except ImportError as error:
    print(error)
"""


@pytest.mark.parametrize("missing", ["torch", "transformers"])
def test_the_error_names_the_extra(processes: Helper, missing: str) -> None:
    run = processes.run(PROGRAM.format(missing=missing))
    assert run.returncode == 0, run.stderr
    assert f"needs {missing}, which is not installed: pip install 'switchrail[engine]'" in run.stdout


@pytest.mark.parametrize("missing", ["torch", "transformers"])
def test_the_bridge_names_the_extra(processes: Helper, missing: str) -> None:
    run = processes.run(
        PROGRAM.format(missing=missing).replace("switchrail.Engine", "import switchrail.bridges.transformers")
    )
    assert run.returncode == 0, run.stderr
    assert f"needs {missing}, which is not installed: pip install 'switchrail[engine]'" in run.stdout


CHECKPOINT = Path(__file__).parents[1] / "checkpoints" / "kjv-qwen3-next"
COMMANDS: dict[str, list[object]] = {
    "run": ["run", CHECKPOINT, "--prompt", "hi"],
    "tune": ["tune"],
    "warmup": ["warmup", CHECKPOINT],
    "check-backend": ["check-backend", "switchrail"],
}


@pytest.mark.parametrize(
    ("command", "missing"), [*((each, "torch") for each in COMMANDS), ("run", "transformers")]
)
def test_a_command_names_the_extra_in_one_line(processes: Helper, command: str, missing: str) -> None:
    program = f"import sys\nsys.modules[{missing!r}] = None\nfrom switchrail.cli.app import main\nmain()"
    run = processes.run(program, COMMANDS[command])
    assert (run.returncode, run.stdout) == (2, "")
    assert f"needs {missing}, which is not installed: pip install 'switchrail[engine]'" in run.stderr
    assert "Traceback" not in run.stderr


def test_another_missing_module_is_not_blamed_on_the_extra() -> None:
    with pytest.raises(ModuleNotFoundError) as caught, engine_packages("this"):
        import_module("nowhere_to_be_found")
    assert not isinstance(caught.value, MissingPackageError)
