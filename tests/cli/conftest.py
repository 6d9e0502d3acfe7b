from pathlib import Path

import pytest
from switchrail.cli.app import app
from switchrail.testing import isolated
from typer.testing import CliRunner

CHECKPOINTS = Path(__file__).parents[1] / "checkpoints"


@pytest.fixture(scope="session")
def checkpoint():
    return CHECKPOINTS / "kjv-qwen3-next"


@pytest.fixture
def switchrail():
    """Returns a function that runs the command in this process, with a runtime of its own."""

    def run(*arguments):
        with isolated():
            return CliRunner().invoke(app, [str(argument) for argument in arguments])

    return run
