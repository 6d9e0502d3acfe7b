"""Without torch or transformers the rest of Switchrail works, and the engine says what it needs."""

from __future__ import annotations

import pytest

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
