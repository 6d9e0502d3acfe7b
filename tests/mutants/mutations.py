"""Small changes that a test should notice: found in a file's syntax tree, made in its text."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
# Nodes within which nothing is changed: exceptions and their messages, f-strings, parameters and lambdas.
LEFT_OUT = (ast.Raise, ast.JoinedStr, ast.arguments, ast.Lambda)


@dataclass(frozen=True)
class Mutation:
    """A change, identified in a way that still finds it after lines have moved."""

    file: str
    function: str
    kind: str
    before: str
    after: str
    occurrence: int
    """The index of the change among equal ones in the function."""

    def as_dict(self) -> dict[str, Any]:
        """The fields by name, as stored in the list."""
        return asdict(self)


@dataclass(frozen=True)
class Place:
    """A span of lines, and of columns in bytes as `ast` counts them."""

    line: int
    column: int
    end_line: int
    end_column: int
    is_statement: bool

    def replace(self, source: str, text: str) -> str:
        """The source with the span replaced."""
        lines = source.encode().splitlines(keepends=True)
        first, last = lines[self.line - 1], lines[self.end_line - 1]
        lines[self.line - 1 : self.end_line] = [
            first[: self.column] + text.encode() + last[self.end_column :]
        ]
        return b"".join(lines).decode()


def find(file: str, source: str) -> dict[Mutation, Place]:
    """Each possible mutation of the functions of a file, and its place."""
    seen: Counter[tuple[str, str, str, str]] = Counter()
    found: dict[Mutation, Place] = {}
    for function, node, kind, changed in _changes(ast.parse(source)):
        before = ast.unparse(node)
        after = ast.unparse(changed) if isinstance(changed, ast.AST) else changed
        key = (function, kind, before, after)
        mutation = Mutation(file, *key, occurrence=seen[key])
        seen[key] += 1
        is_statement = isinstance(node, ast.stmt)
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        found[mutation] = Place(
            node.lineno, node.col_offset, node.end_lineno, node.end_col_offset, is_statement
        )
    return found


def apply(source: str, mutation: Mutation, place: Place) -> str:
    """The source with the change made."""
    return place.replace(source, mutation.after if place.is_statement else f"({mutation.after})")


def probe(source: str, places: dict[int, Place]) -> str:
    """The source with a call of `_reached(number)` before each place is evaluated.

    No place may be within another one; `probed` chooses such places.
    """
    for number, place in sorted(places.items(), key=lambda each: _span(each[1]), reverse=True):
        text = ast_segment(source, place)
        if place.is_statement:
            source = place.replace(source, f"_reached({number}); {text}")
        else:
            source = place.replace(source, f"(_reached({number}) or ({text}))")
    return source


def probed(places: dict[int, Place]) -> dict[int, list[int]]:
    """The places to probe, each with the places that its probe covers: itself and those within it."""
    chosen: dict[int, list[int]] = {}
    for number, place in sorted(places.items(), key=lambda each: (_span(each[1])[0], _negated_end(each[1]))):
        outer = next((each for each in chosen if _holds(places[each], place)), None)
        chosen.setdefault(number if outer is None else outer, []).append(number)
    return chosen


def ast_segment(source: str, place: Place) -> str:
    """The text at a place."""
    lines = source.encode().splitlines(keepends=True)[place.line - 1 : place.end_line]
    lines[-1] = lines[-1][: place.end_column]
    lines[0] = lines[0][place.column :]
    return b"".join(lines).decode()


def _span(place: Place) -> tuple[tuple[int, int], tuple[int, int]]:
    return (place.line, place.column), (place.end_line, place.end_column)


def _negated_end(place: Place) -> tuple[int, int]:
    return (-place.end_line, -place.end_column)


def _holds(outer: Place, inner: Place) -> bool:
    return _span(outer)[0] <= _span(inner)[0] and _span(inner)[1] <= _span(outer)[1]


def _changes(tree: ast.Module) -> Iterator[tuple[str, ast.expr | ast.stmt, str, ast.AST | str]]:
    """(function, node, kind, replacement) of all possible changes, in the order of the text."""

    def walk(node: ast.AST, function: str) -> Iterator[tuple[str, Any, str, Any]]:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            if node.name in ("__repr__", "__str__"):
                return
            function = f"{function}.{node.name}" if function else node.name
            for each in node.body:
                yield from walk(each, function)
            return
        if function and isinstance(node, (ast.expr, ast.stmt)):
            for kind, changed in _of_node(node):
                yield function, node, kind, changed
        is_plain = isinstance(node, ast.If) and isinstance(node.test, (ast.Name, ast.Attribute, ast.Call))
        if function and is_plain:
            yield function, node.test, "condition", ast.UnaryOp(ast.Not(), node.test)
        if isinstance(node, LEFT_OUT):
            return
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "slice") and isinstance(node, (ast.AnnAssign, ast.arg)):
                continue
            for each in value if isinstance(value, list) else [value]:
                if isinstance(each, ast.AST):
                    yield from walk(each, function)

    yield from walk(tree, "")


def _of_node(node: ast.expr | ast.stmt) -> Iterator[tuple[str, ast.AST | str]]:
    match node:
        case ast.Compare(left=left, ops=[operator], comparators=[right]) if type(operator) in COMPARISONS:
            yield "compare", ast.Compare(left, [COMPARISONS[type(operator)]()], [right])
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in OPERATORS:
            yield "operator", ast.BinOp(left, OPERATORS[type(operator)](), right)
        case ast.BoolOp(op=ast.And(), values=values):
            yield "bool", ast.BoolOp(ast.Or(), values)
        case ast.BoolOp(op=ast.Or(), values=values):
            yield "bool", ast.BoolOp(ast.And(), values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "not", operand
        case ast.IfExp(test=test, body=body, orelse=orelse):
            yield "choice", ast.IfExp(test, orelse, body)
        case ast.Constant(value=bool(value)):
            yield "constant", repr(not value)
        case ast.Constant(value=int(value)) | ast.Constant(value=float(value)):
            yield "constant", repr(value + 1)
        case ast.Return(value=value) if value is not None and ast.unparse(value) != "None":
            yield "return", "return None"
        case ast.Continue():
            yield "continue", "pass"
        case ast.Break():
            yield "break", "pass"
        case ast.Raise() | ast.AugAssign() | ast.Delete() | ast.Expr(value=ast.Call() | ast.Await()):
            yield "statement", "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield "statement", "pass"
