"""Triton's interpreter without two things that it does over and over, and that change no number."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any


def spare_repetition() -> None:
    """Makes interpreted kernels take half the time, where Triton's interpreter is as it is known here.

    Each call of a device function replaces the language's functions again, though the launch that it is part
    of has replaced them all. And each sum of integers is computed in int64 as well, for a check of overflows
    that is left out unless the interpreter's option `debug` is on.
    """
    try:
        from triton.runtime import interpreter
        from triton.runtime.interpreter import GridExecutor, _LangPatchScope, _patch_lang, interpreter_builder
    except ImportError:
        return  # there is no Triton, or another one
    options = interpreter_builder.options
    interpreter_builder.options = dataclasses.replace(
        options, sanitize_overflow=options.sanitize_overflow and options.debug
    )
    replaced: list[frozenset[int]] = []  # by each launch that is under way, the ids of the modules
    launch: Callable[..., Any] = GridExecutor.__call__

    def run_launch(self: Any, *args: Any, **kwargs: Any) -> Any:
        replaced.append(frozenset())
        try:
            return launch(self, *args, **kwargs)
        finally:
            replaced.pop()

    def replace_language(function: Any) -> Any:
        used = _language_modules(function, interpreter.tl)
        if replaced and used <= replaced[-1]:
            return _LangPatchScope()
        scope = _patch_lang(function)
        if replaced:
            replaced[-1] |= used
        return scope

    interpreter._patch_lang = replace_language
    GridExecutor.__call__ = run_launch


def _language_modules(function: Any, language: Any) -> frozenset[int]:
    named = {id(value) for value in function.__globals__.values()}
    return frozenset(named & {id(language), id(language.core)})
