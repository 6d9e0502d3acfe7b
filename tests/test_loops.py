"""Searches the code for loops at whose end a signal handler's exception would skip a `finally` or `with`."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = (ROOT / "python" / "switchrail", ROOT / "kernels" / "switchrail_kernels")


def while_guarded(function: ast.AST, guarded: bool = False) -> Iterator[ast.AST]:
    """The loops inside a `try` or `with` of the same function that end in a conditional backward jump."""
    for node in ast.iter_child_nodes(function):
        if isinstance(node, (ast.FunctionDef, ast.Lambda, ast.GeneratorExp)):
            yield from while_guarded(node)
            continue
        match node:
            case ast.While(test=ast.Constant()):
                pass
            case ast.While() | ast.For(body=[*_, ast.If(orelse=[])]):
                yield from [node] * guarded
            case (
                ast.ListComp(generators=loops)
                | ast.SetComp(generators=loops)
                | ast.DictComp(generators=loops)
            ):
                yield from [node] * (guarded and any(loop.ifs for loop in loops))
        yield from while_guarded(node, guarded or isinstance(node, (ast.Try, ast.With)))


def test_no_interrupt_skips_a_finally() -> None:
    """No loop inside a `try` or `with` ends in a conditional jump back.

    From CPython 3.13 on, the interpreter runs signal handlers before this jump, and the function's exception
    table doesn't cover the jump. So a handler's exception skips every `finally`, `except` and `with` of the
    function.
    """
    loops = ast.parse("try:\n while a: b()\n for a in b:\n  if a: b()\n [a for a in b if a]\nfinally: b()")
    assert len(list(while_guarded(loops))) == 3
    files = [path for package in PACKAGES for path in package.rglob("*.py")]
    found = [
        f"{path}:{node.lineno}"
        for path in files
        for node in while_guarded(ast.parse(path.read_text("utf-8")))
    ]
    assert len(files) > 200
    assert not found
