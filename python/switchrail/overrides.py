"""Checks a plugin's class against its base class in Switchrail.

Python takes a misspelt override for a new method, and notices a wrong signature only in a call. These checks
find both before the class is used.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from inspect import Parameter, Signature, get_annotations, signature
from types import FunctionType
from typing import Any, Final, NamedTuple

from switchrail.nearest import nearest

_METHODS: Final = (FunctionType, classmethod, staticmethod)


class Problem(NamedTuple):
    """A reason why a class doesn't match its base.

    Attributes:
        text: The reason in words.
        nearest: For a misspelt name, the base's names that are similar to it, best first.
    """

    text: str
    nearest: tuple[str, ...] = ()


def check_overrides(cls: type[Any], base: type[Any]) -> list[Problem]:
    """The problems of a class's overrides of its base's attributes.

    A public method counts as misspelt if it overrides nothing, and its name is almost that of a method that
    the class could override. Attributes that are not methods (`knid = ...`) are checked in the same way.

    Args:
        cls: The class.
        base: The class of Switchrail that it must derive from.
    """
    ours = [one for one in cls.__mro__ if one.__module__.partition(".")[0] == "switchrail"]
    theirs = [one for one in cls.__mro__ if one not in ours and one is not object]
    # If several classes have a name, the last one wins: for `ours` the base, for `theirs` the most derived.
    known = {name: one for owner in ours for name, one in (get_annotations(owner) | vars(owner)).items()}
    known = {name: one for name, one in known.items() if name == "__init__" or not name.startswith("_")}
    given = {name: one for owner in reversed(theirs) for name, one in vars(owner).items()}
    derived = {name for owner in theirs if issubclass(owner, base) for name in vars(owner)}
    problems = []
    for name, found in given.items():
        where = f"{cls.__qualname__}.{name}"
        if name in known:
            problem = _mismatch(cls, found, known[name])
            if problem is not None:
                problems.append(Problem(f"{where} {problem}"))
        elif name in derived and not name.startswith("_"):
            near = _misspelt(name, found, {valid: known[valid] for valid in known if valid not in given})
            if near:
                problems.append(
                    Problem(
                        f"{where} overrides nothing; nearest: {', '.join(near)}; valid: a name of the "
                        "base, or a name that is less similar or begins with an underscore",
                        near,
                    )
                )
    return problems


def call_problem(function: Any, like: Any) -> str | None:
    """Why `function` can't be called with the arguments that `like` accepts, for messages; None if it can."""
    try:
        own = signature(function, follow_wrapped=False)
    except (TypeError, ValueError):  # a C function without a signature
        return None
    expected = signature(like)
    parameters = expected.parameters.values()
    kinds = [parameter.kind for parameter in parameters]
    positional = sum(kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD) for kind in kinds)
    named = {one.name: None for one in parameters if one.kind is Parameter.KEYWORD_ONLY}
    is_open = Parameter.VAR_POSITIONAL in kinds or Parameter.VAR_KEYWORD in kinds
    lacking = [name for name in expected.parameters if name not in own.parameters]
    try:
        (own.bind_partial if is_open else own.bind)(*[None] * positional, **named)
    except TypeError as error:
        # the call passes more arguments than `function` takes
        is_short = "too many positional" in str(error) and lacking
        problem = f"it lacks {', '.join(lacking)}" if is_short else error
        return f"has parameters {_plain(own)}: {problem}; expected {_plain(expected)}"
    return None


def _plain(found: Signature) -> Signature:
    """A signature without annotations."""
    return Signature([one.replace(annotation=Parameter.empty) for one in found.parameters.values()])


def _misspelt(name: str, found: object, valid: Mapping[str, object]) -> tuple[str, ...]:
    """The names of the base that were probably meant, best first."""
    near = [
        one
        for one, value in valid.items()
        if _is_code(value) == _is_code(found) and _is_near(_folded(name), _folded(one))
    ]
    return tuple(dict.fromkeys((*nearest(name, near)[0], *near)))


def _is_code(value: object) -> bool:
    return isinstance(value, (*_METHODS, property))


def _folded(name: str) -> str:
    """A name in one style, so that `getDevice`, `is_device` and `device` are equal."""
    return re.sub(r"^(get|is)_|_", "", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower())


def _is_near(one: str, other: str) -> bool:
    """Whether two names differ by so few letters that one may be a misspelling of the other."""
    last: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one):
        before_last, last, row = last, row, [i + 1]
        for j, wanted in enumerate(other):
            cost = min(last[j + 1] + 1, row[j] + 1, last[j] + (letter != wanted))
            if i and j and letter == other[j - 1] and one[i - 1] == wanted:
                cost = min(cost, before_last[j - 1] + 1)
            row.append(cost)
    return row[-1] <= 1 + min(len(one), len(other)) // 8


def _mismatch(cls: type[Any], found: Any, expected: Any) -> str | None:
    """Why an attribute can't override the base's, for messages; None if it can."""
    if not isinstance(expected, _METHODS):
        wanted = "a property" if isinstance(expected, property) else "a value"
        return f"is a method, expected {wanted}" if isinstance(found, _METHODS) else None
    if isinstance(found, (property, type)) or not (callable(found) or hasattr(found, "__get__")):
        return f"is {found!r:.80}, expected a method"
    if isinstance(expected, classmethod) and isinstance(found, FunctionType):
        return "is a method of instances, expected a classmethod"
    if not isinstance(found, _METHODS):  # another callable object
        return None
    if isinstance(found, FunctionType) and not signature(found, follow_wrapped=False).parameters:
        return "has no parameters, not even one for the instance"
    instance = object()
    return call_problem(found.__get__(instance, cls), expected.__get__(instance, cls))
