"""Every environment variable is in the code's table, is documented, and is known to `doctor`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from switchrail.doctor import diagnose
from switchrail.doctor.environment import READERS
from switchrail.variables import TIMES, VARIABLES

ROOT = Path(__file__).parents[1]
NAME = re.compile(r"(?<![A-Z_])SWITCHRAIL_[A-Z][A-Z_]*")
CODE = ("python", "kernels", "rust", "benchmarks", "training", "fuzz")
SUFFIXES = {".py", ".pyi", ".rs", ".c", ".txt"}
NO_CODE = {"tests", "target", "build", "corpus"}


def _named_in(*files: Path) -> set[str]:
    return {name for file in files for name in NAME.findall(file.read_text("utf-8"))}


def test_the_code_reads_what_the_table_has() -> None:
    files = [
        file
        for folder in CODE
        for file in (ROOT / folder).rglob("*")
        if file.suffix in SUFFIXES and NO_CODE.isdisjoint(file.relative_to(ROOT).parts)
    ]
    assert len(files) > 300
    assert _named_in(*files) == {*VARIABLES}


def test_the_docs_have_each_in_one_table() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "environment.md").read_text("utf-8"), re.MULTILINE)
    assert rows == [*VARIABLES]
    files = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
    assert len(files) > 8
    assert _named_in(*files) == {*VARIABLES}


def test_doctor_reads_each() -> None:
    assert [*READERS] == [*VARIABLES]


@pytest.mark.parametrize("content", [None, "{}", "no times"])
def test_doctor_reads_the_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None) -> None:
    """`doctor` doesn't report a missing times file, because `tune` will create it."""
    file = tmp_path / "times.json"
    if content is not None:
        file.write_text(content)
    monkeypatch.setenv(TIMES, str(file))
    found = [finding for finding in diagnose() if finding.subject == TIMES]
    assert len(found) == (0 if content is None else 1)
    assert all("switchrail tune" in finding.advice for finding in found)
