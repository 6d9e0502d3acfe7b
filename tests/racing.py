"""Finds the tests that race: those with threads, processes, signals or `OrderError`.

A definition (function, class, fixture or constant) races if its source has one of the names in `RACING`, or
uses a racing definition of its file, of a module of `tests`, or of a `conftest.py` of its folder or above.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent
RACING = re.compile(
    r"\b(threading|ThreadPool\w*|multiprocessing|asyncio|Popen|KeyboardInterrupt|OrderError|settrace)\b"
    r"|\b(signal\.|os\.fork)"
)


@cache
def racing() -> list[str]:
    """The ids of all tests that race, sorted."""
    return sorted(
        f"{path}::{name}"
        for path in TESTS.rglob("test_*.py")
        for name, node in _definitions(path).items()
        if name in _racing_names(path)
        and name.startswith(("test_", "Test"))
        and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
    )


@cache
def _parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def _definitions(path: Path) -> dict[str, ast.stmt]:
    """The functions, classes and constants of a file, by name."""
    found: dict[str, ast.stmt] = {}
    for node in _parse(path).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found[node.name] = node
        elif isinstance(node, ast.Assign):
            found |= {name.id: node for name in node.targets if isinstance(name, ast.Name)}
    return found


@cache
def _racing_names(path: Path) -> frozenset[str]:
    """The names of racing definitions that a file has, imports, or gets from a `conftest.py`."""
    folders = [each for each in path.parents if each.is_relative_to(TESTS)]
    conftests = [each / "conftest.py" for each in folders] if path.name.startswith("test_") else []
    found = {name for each in conftests if each.exists() for name in _racing_names(each)}
    for node in _parse(path).body:
        if isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").startswith("tests")):
            top = path.parents[node.level - 1] if node.level else TESTS.parent
            source = top.joinpath(*filter(None, (node.module or "").split(".")))
            for alias in node.names:
                module, submodule = source.with_suffix(".py"), source / f"{alias.name}.py"
                if (module.exists() and alias.name in _racing_names(module)) or (
                    submodule.exists() and _racing_names(submodule)
                ):
                    found.add(alias.asname or alias.name)
    lines = path.read_text().splitlines()
    definitions = _definitions(path)
    for name, node in definitions.items():
        first = min(each.lineno for each in (node, *getattr(node, "decorator_list", ())))
        if RACING.search("\n".join(lines[first - 1 : node.end_lineno])):
            found.add(name)
    if found:
        uses = {name: _names(node) for name, node in definitions.items()}
        while more := {name for name, used in uses.items() if name not in found and used & found}:
            found |= more
    return frozenset(found)


def _names(node: ast.stmt) -> set[str]:
    """The names that a definition uses: variables, arguments, and strings, which can name fixtures."""
    found = set()
    for each in ast.walk(node):
        match each:
            case ast.Name(id=name) | ast.arg(arg=name) | ast.Constant(value=str(name)):
                found.add(name)
    return found
