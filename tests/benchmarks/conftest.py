import sys

import pytest


@pytest.fixture
def python_with_sglang(tmp_path):
    """A function that stores code as the module `sglang`, and returns the path of a Python that finds it."""

    def make(code):
        (tmp_path / "sglang.py").write_text(code)
        script = tmp_path / "python"
        script.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
        script.chmod(0o755)
        return str(script)

    return make
