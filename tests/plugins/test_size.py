"""A vendor's backend takes less than 40 lines of code: its whole module, without docstrings and comments."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest
from switchrail._core import OPS
from switchrail.cli.new_plugin import write_plugin

HERE = Path(__file__).parent
GUIDE = HERE.parents[1] / "docs" / "plugins.md"
MOST = 39

_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def docstrings(tree: ast.Module) -> Iterator[range]:
    """The lines of each docstring."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node):
            first = node.body[0]
            assert first.end_lineno is not None
            yield range(first.lineno, first.end_lineno + 1)


def lines_of_code(text: str) -> int:
    """The number of lines with code."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    lines = {
        line
        for token in tokens
        if token.type not in _NO_CODE
        for line in range(token.start[0], token.end[0] + 1)
    }
    return len(lines.difference(*docstrings(ast.parse(text))))


def test_lines_of_code() -> None:
    text = '"""A module."""\n\nimport ast  # used\n\n\n# no code\n'
    text += 'def f(\n    a,\n):\n    """F.\n\n    More.\n    """\n'
    assert lines_of_code(text) == 4
    assert lines_of_code(text + '    return """two\nlines"""\n') == 6


def test_the_guides_backend() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    (kernel,) = (block for block in blocks if block.startswith("# acme_gdn/kernel.py"))
    assert 20 < lines_of_code(kernel) <= MOST


@pytest.mark.parametrize("path", ["acme-gdn/acme_gdn/kernel.py", "twin-gdn/twin_gdn.py"])
def test_the_example_plugins_backends(path: str) -> None:
    assert 10 < lines_of_code((HERE / path).read_text("utf-8")) <= MOST


@pytest.mark.parametrize("op", OPS)
def test_the_backend_of_a_new_plugin(tmp_path: Path, op: str) -> None:
    write_plugin(tmp_path / "own", "own-kernels", op=op)
    assert 3 < lines_of_code((tmp_path / "own/own_kernels/backend.py").read_text("utf-8")) <= MOST
