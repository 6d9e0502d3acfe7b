"""Objects that another process can import by path, and their paths."""

from __future__ import annotations

import sys
from typing import Any


class NotFoundByNameError(Exception):
    """An object can't be imported by path in another process; the message says why."""


def path_of(thing: Any) -> str:
    """The path `module:Qualified.name` that leads to the object in every process.

    Raises:
        NotFoundByNameError: There is no such path; the message says why.
    """
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str):
        raise NotFoundByNameError("it has no name; valid: a function or a class that is defined in a module")
    path = f"{module}:{name}"
    check_path(path)
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is None:
        raise NotFoundByNameError(f"its path {path} leads to nothing")
    if found is not thing and found != thing:  # each access creates a new bound method, equal to the others
        raise NotFoundByNameError(f"its path {path} leads to another object, {found!r}")
    return path


def check_path(path: str) -> None:
    """Refuses a path that would not lead to the same object in another process. Imports nothing.

    Raises:
        NotFoundByNameError: The path is refused; the message says why.
    """
    module, _, name = path.partition(":")
    if module in ("__main__", "__mp_main__"):
        raise NotFoundByNameError(f"it is in {module}, the program itself; valid: an imported module")
    if "<lambda>" in name:
        raise NotFoundByNameError("it is a lambda; valid: a named function of a module")
    if "<locals>" in name:
        raise NotFoundByNameError(
            f"it is local to {name.partition('.<locals>')[0]}; valid: a name at the top level of its module"
        )
    if module in sys.modules and not _can_be_imported(module):
        raise NotFoundByNameError(
            f"its module {module} can't be imported again: it was made by this process, "
            "or is no longer on sys.path"
        )


def _can_be_imported(module: str) -> bool:
    """Whether a process that hasn't imported the module yet would find it."""
    package, _, _ = module.rpartition(".")
    path = getattr(sys.modules.get(package), "__path__", None)
    if package and path is None:
        return False
    finders = [finder.find_spec for finder in sys.meta_path if hasattr(finder, "find_spec")]
    return any(find(module, path) is not None for find in finders)
