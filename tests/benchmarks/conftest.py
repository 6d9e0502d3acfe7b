import sys

import pytest


@pytest.fixture
def python_with_sglang(tmp_path):
    """Makes an interpreter in which a stand-in for SGLang is installed, with the code that is given."""

    def make(code):
        (tmp_path / "sglang.py").write_text(code)
        script = tmp_path / "python"
        script.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
        script.chmod(0o755)
        return str(script)

    return make
