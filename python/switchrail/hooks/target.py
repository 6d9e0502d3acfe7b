"""From what a hook names to the function that it means."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from types import FunctionType, ModuleType
from typing import Any

from switchrail import _core
from switchrail.errors import HookError


def resolve(target: str | FunctionType) -> FunctionType:
    """The plain Python function that a dotted path leads to, its module imported; or the one given.

    Raises:
        HookError: Nothing is there, or what is there has no Python code of its own.
    """
    if not isinstance(target, str):
        return _checked(target, repr(target))
    module, *parts = target.split(".")
    if not parts or not all(part.isidentifier() for part in (module, *parts)):
        raise HookError(
            f"the target {target!r} is no dotted path; valid: 'package.module.function', or a function",
            target=target,
        )
    found: Any = _imported(module, target)
    for i, part in enumerate(parts):
        path = f"{module}.{'.'.join(parts[: i + 1])}"
        # A package may bind a function to the name of one of its modules; only the last part can mean the
        # function.
        if i < len(parts) - 1 and hasattr(found, "__path__") and _is_module(path):
            found = _imported(path, target)
        else:
            found = _attribute(found, part, target)
    return _checked(found, repr(target))


def _is_module(path: str) -> bool:
    return path in sys.modules or importlib.util.find_spec(path) is not None


def _imported(path: str, target: str) -> ModuleType:
    try:
        return importlib.import_module(path)
    except Exception as error:
        raise HookError(
            f"the target {target!r} can't be hooked: {path!r} can't be imported: {error!r}",
            target=target,
        ) from error


def _attribute(owner: Any, name: str, target: str) -> Any:
    if isinstance(owner, type):
        own = vars(owner)
        if name in own:
            return own[name]
        base = next((base for base in owner.__mro__ if name in vars(base)), None)
        if base is not None:
            raise HookError(
                f"the target {target!r} is inherited; valid: '{base.__module__}.{base.__qualname__}.{name}', "
                "which hooks it for every subclass",
                target=target,
            )
    elif hasattr(owner, name):
        return getattr(owner, name)
    nearest = tuple(_core.nearest(name, dir(owner)))
    hint = f"; nearest: {', '.join(nearest)}" if nearest else ""
    raise HookError(
        f"the target {target!r} does not exist: no {name!r} there{hint}", target=target, nearest=nearest
    )


def _checked(found: Any, target: str) -> FunctionType:
    # `inspect.isfunction` takes subclasses and Cython's functions for it; their code can't be swapped.
    if type(found) is FunctionType:
        return found
    if inspect.ismethod(found):
        hint = "; hook its __func__, which every instance shares"
    elif isinstance(found, (staticmethod, classmethod)):
        hint = "; hook its __func__"
    else:
        hint = ""
    raise HookError(
        f"the target {target} is a {type(found).__qualname__}; valid: a plain Python function{hint}",
        target=target,
    )
