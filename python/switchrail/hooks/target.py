"""Finds the `Site` of a hook's target, which is given as a dotted path or an object.

A target has the same site with and without active hooks, so it can be looked up without the lock, while other
threads change hooks. For this, attributes that hooks have set on a class are ignored, and a stand-in counts
as the object that it replaces.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from dataclasses import dataclass
from types import FunctionType, MethodType, ModuleType
from typing import Any, Final

from switchrail.errors import HookError
from switchrail.hooks import inherited, standin
from switchrail.hooks.attributes import inside
from switchrail.hooks.classes import Class, own_namespace
from switchrail.hooks.site import Function, Site
from switchrail.nearest import nearest


class MissingTargetError(HookError):
    """A dotted path does not lead to an object. Fields: `target`, `nearest`, `module`.

    Attributes:
        module: The module that has to be imported first; None if it is imported and lacks the name.
    """

    module: str | None = None


@dataclass(frozen=True)
class Awaited:
    """Returned for a dotted path whose module is not imported yet, or is being imported.

    Attributes:
        module: The module's name.
        is_being_imported: Whether its import has begun.
    """

    module: str
    is_being_imported: bool = False

    @property
    def reason(self) -> str:
        """Why the target does not exist, for messages."""
        return f"its module is {'being' if self.is_being_imported else 'not'} imported"


# A part of a module's name. A module that is loaded from a file path may have any name, such as a hash.
_MODULE: Final = re.compile(r"[\w-]+")


def resolve(target: object, *, done: str | None = None) -> Site | Awaited:
    """The site of a dotted path or an object.

    Args:
        target: The path or object.
        done: A module to treat as imported: its code has run, although its import has not ended.

    Raises:
        MissingTargetError: The path does not lead to an object.
        HookError: The target can't be hooked, or the string is not a dotted path.
    """
    if isinstance(target, str):
        return _at(target, done)
    if isinstance(target, MethodType):
        if isinstance(target.__self__, type):
            return _attribute_of(
                target.__self__,
                target.__func__.__name__,
                f"{target.__self__.__module__}.{target.__qualname__}",
            )
        raise standin.of_one_instance(target, repr(target))
    return _site(target, repr(target), None)


def modules_of(path: str) -> tuple[str, ...]:
    """All prefixes of a dotted path that can be modules."""
    parts = path.split(".")
    return tuple(".".join(parts[:i]) for i in range(1, len(parts)))


def _at(target: str, done: str | None) -> Site | Awaited:
    parts = target.split(".")
    if len(parts) < 2 or not all(map(_MODULE.fullmatch, parts)) or not parts[-1].isidentifier():
        raise HookError(
            f"the target {target!r} is not a dotted path; valid: 'package.module.function', or a function",
            target=target,
        )
    # The longest name first, since a module that was loaded from a file path may have no parent package.
    name = next((name for name in reversed(modules_of(target)) if sys.modules.get(name) is not None), None)
    if name is None:
        if not _can_be_imported(parts[0]):
            raise _missing(target, parts[0], sys.modules, module=parts[0])
        return Awaited(parts[0])
    found: Any = sys.modules[name]
    for i in range(name.count(".") + 1, len(parts) - 1):
        part, path = parts[i], ".".join(parts[: i + 1])
        # A package may have a function and a module of the same name. Then a middle part of a path means the
        # module, and the last part means the function.
        if isinstance(found, ModuleType) and hasattr(found, "__path__") and _can_be_imported(path):
            return Awaited(path)
        if (awaited := _awaited(found, part, done)) is not None:
            return awaited
        owner, found = found, _get(found, part, target)
        if isinstance(owner, type) and isinstance(found, property) and part not in own_namespace(owner):
            raise HookError(
                f"the target {target!r} is a part of a property that {owner.__qualname__} inherits; "
                f"valid: {part!r} of the class that defines it",
                target=target,
            )
    last = parts[-1]
    if isinstance(found, type):
        return _attribute_of(found, last, target)
    if (awaited := _awaited(found, last, done)) is not None:
        return awaited
    return _site(_get(found, last, target), repr(target), (found, last))


def _attribute_of(owner: type, name: str, target: str) -> Site:
    """The site of a class's attribute. An inherited attribute gets a new function on this class."""
    own = own_namespace(owner)
    if name in own:
        return _site(own[name], repr(target), (owner, name))
    site = inherited.site_of(owner, name, target)
    if site is None:
        raise _missing(target, name, dir(owner))
    return site


def _site(found: Any, target: str, owner: tuple[Any, str] | None) -> Site:
    # `inspect.isfunction` would accept subclasses, and Cython's functions, whose code can't be swapped.
    if type(found) is FunctionType:
        made_for = inherited.made_for(found)
        return Function(found) if made_for is None else _attribute_of(*made_for, target)
    if isinstance(found, type):
        return Class(found)
    inner = inside(found)
    if inner is found or inner is None:
        return standin.site_of(found, owner, target)
    return _site(inner, target, None)


def _can_be_imported(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # the finder is broken, or the module has no spec
        return False


def _awaited(found: Any, part: str, done: str | None) -> Awaited | None:
    spec = getattr(found, "__spec__", None)
    if not getattr(spec, "_initializing", False) or found.__name__ == done or hasattr(found, part):
        return None
    return Awaited(found.__name__, is_being_imported=True)


def _get(owner: Any, name: str, target: str) -> Any:
    if isinstance(owner, type) and name in (own := own_namespace(owner)):
        return own[name]
    try:
        return getattr(owner, name)
    except AttributeError:
        raise _missing(target, name, dir(owner)) from None


def _missing(target: str, name: str, known: Any, *, module: str | None = None) -> MissingTargetError:
    names, hint = nearest(name, [each for each in known if not each.startswith("__switchrail")])
    problem = f"{name!r} was not found" if module is None else f"no module {name!r} is imported or installed"
    return MissingTargetError(
        f"the target {target!r} does not exist: {problem}{hint}", target=target, nearest=names, module=module
    )
