"""Every statement of `docs/coming-from.md` names a test that exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LINES = (ROOT / "docs" / "coming-from.md").read_text("utf-8").splitlines()
ROWS = [line for line in LINES if re.match(r"\| (?!here|there)[^-]", line)]


def test_there_are_statements() -> None:
    assert len(ROWS) == sum(line.startswith("| ") for line in LINES) - 5 > 25


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.rpartition("`tests/")[2][:60])
def test_a_statement_names_its_test(row: str) -> None:
    found = re.search(r"\| `(tests/[\w/]+\.py)::(test_\w+)` \|$", row)
    assert found, row
    path, name = found.groups()
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
