"""The parameters of a function's code: as source text, and compared with a hook's parameters."""

from __future__ import annotations

import inspect
import keyword
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import CodeType
from typing import Any, Final

CALLEE: Final = "__switchrail_callee"
"""The name of the first parameter of a stand-in's function: the object to call."""


@dataclass(frozen=True)
class Parameters:
    """The parameters of a code object. Defaults are left out, because they belong to the function object.

    Attributes:
        positional_only: Names before the `/`.
        positional: Names that can be given by position or by keyword.
        var_positional: The name after `*`, or None.
        keyword_only: Names of keyword-only parameters.
        var_keyword: The name after `**`, or None.
        callee: Whether `CALLEE` is the first parameter, which hooks don't receive.
    """

    positional_only: tuple[str, ...]
    positional: tuple[str, ...]
    var_positional: str | None
    keyword_only: tuple[str, ...]
    var_keyword: str | None
    callee: bool = False

    @classmethod
    def of(cls, code: CodeType) -> Parameters:
        """Reads the parameters from the code, since `__signature__` and `__wrapped__` may be wrong.

        Raises:
            ValueError: A parameter's name can't be written in source text.
        """
        names = list(code.co_varnames)
        for name in names:
            if not name.isidentifier() or keyword.iskeyword(name):
                raise ValueError(f"its parameter {name!r} can't be written in Python")
        positional = names[code.co_posonlyargcount : code.co_argcount]
        keyword_only = names[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
        positional_only = tuple(names[: code.co_posonlyargcount])
        callee = positional_only[:1] == (CALLEE,)
        rest = iter(names[code.co_argcount + code.co_kwonlyargcount :])
        return cls(
            positional_only=positional_only[1:] if callee else positional_only,
            positional=tuple(positional),
            var_positional=next(rest) if code.co_flags & inspect.CO_VARARGS else None,
            keyword_only=tuple(keyword_only),
            var_keyword=next(rest) if code.co_flags & inspect.CO_VARKEYWORDS else None,
            callee=callee,
        )

    @classmethod
    def told_by(cls, callable_: Callable[..., Any]) -> Parameters | None:
        """Reads the parameters from the signature of an object without code; None if it has no signature."""
        try:
            signature = inspect.signature(callable_)
        except Exception:  # the object has no signature, or its `__signature__` raises
            return None

        def names(kind: Any) -> tuple[str, ...]:
            return tuple(name for name, parameter in signature.parameters.items() if parameter.kind is kind)

        return cls(
            positional_only=names(inspect.Parameter.POSITIONAL_ONLY),
            positional=names(inspect.Parameter.POSITIONAL_OR_KEYWORD),
            var_positional=next(iter(names(inspect.Parameter.VAR_POSITIONAL)), None),
            keyword_only=names(inspect.Parameter.KEYWORD_ONLY),
            var_keyword=next(iter(names(inspect.Parameter.VAR_KEYWORD)), None),
        )

    def without_first(self) -> Parameters:
        """The parameters without the first positional one, which must exist."""
        if self.positional_only:
            return replace(self, positional_only=self.positional_only[1:])
        return replace(self, positional=self.positional[1:])

    @property
    def names(self) -> tuple[str, ...]:
        """All names in the order of the signature."""
        variadic = (self.var_positional,) if self.var_positional else ()
        keywords = (self.var_keyword,) if self.var_keyword else ()
        return (*self.positional_only, *self.positional, *variadic, *self.keyword_only, *keywords)

    @property
    def definition(self) -> str:
        """The source text between the parentheses of a `def`."""
        positional_only = [CALLEE, *self.positional_only] if self.callee else list(self.positional_only)
        parts = [*positional_only, "/"] if positional_only else []
        parts += self.positional
        if self.var_positional or self.keyword_only:
            parts.append(f"*{self.var_positional or ''}")
        parts += self.keyword_only
        if self.var_keyword:
            parts.append(f"**{self.var_keyword}")
        return ", ".join(parts)

    def call(self, function: str, *first: str) -> str:
        """The source of a call of `function` with the expressions `first`, then the parameters' values."""
        parts = [*first, *self.positional_only, *self.positional]
        if self.var_positional:
            parts.append(f"*{self.var_positional}")
        parts += [f"{name}={name}" for name in self.keyword_only]
        if self.var_keyword:
            parts.append(f"**{self.var_keyword}")
        return f"{function}({', '.join(parts)})"

    def problem_of(self, signature: inspect.Signature, *first: str) -> str | None:
        """Why a function can't be called with `first` and these parameters; None if it can."""
        kinds = {parameter.kind for parameter in signature.parameters.values()}
        if self.var_positional and inspect.Parameter.VAR_POSITIONAL not in kinds:
            return f"it has no parameter for *{self.var_positional}"
        if self.var_keyword and inspect.Parameter.VAR_KEYWORD not in kinds:
            return f"it has no parameter for **{self.var_keyword}"
        try:
            signature.bind(
                *first, *self.positional_only, *self.positional, **dict.fromkeys(self.keyword_only)
            )
        except TypeError as error:
            return str(error)
        return None
