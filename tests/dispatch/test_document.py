"""The example of docs/dispatch.md prints the output that the document shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TEXT = (Path(__file__).parents[2] / "docs" / "dispatch.md").read_text("utf-8")


def test_the_example(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    (shown,) = re.findall(r"```text\n(.*?)```", TEXT, re.DOTALL)
    exec(compile(code, "docs/dispatch.md", "exec"), {"__name__": "example"})
    assert capsys.readouterr().out == shown
