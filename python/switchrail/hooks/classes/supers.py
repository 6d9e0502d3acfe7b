"""The function that methods of a replacing class call instead of `super`.

Python's own `super` refuses instances of the replaced class, which are not instances of the replacing class.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any, Final

from switchrail.hooks.classes.namespaces import extends, original_namespace, replaced

# For the code after a graph break, torch.compile creates a function whose name starts with this prefix. The
# original function calls the new function, which has other parameters.
_RESUMED: Final = "torch_dynamo_resume_in_"

# Maps each class to all classes that it has ever replaced, since a call of the class's method may outlast
# the replacement.
_targets: Final[weakref.WeakKeyDictionary[type, tuple[weakref.ref[type], ...]]] = weakref.WeakKeyDictionary()


def remember(by: type, cls: type) -> None:
    """Records that `by` replaces `cls`, for `replacing_super`. Called before any method of `by` runs."""
    known = [reference for reference in _targets.get(by, ()) if reference() not in (None, cls)]
    _targets[by] = (*known, weakref.ref(cls))


def replacing_super(*args: Any) -> Any:
    """`super()` of the replaced class in calls on that class's instances; otherwise Python's `super()`."""
    if not args:
        frame = sys._getframe(1)
        while frame.f_code.co_name.startswith(_RESUMED) and frame.f_back is not None:
            frame = frame.f_back
        args = frame.f_locals["__class__"], frame.f_locals[frame.f_code.co_varnames[0]]
    by, bound = args
    of = bound if isinstance(bound, type) else type(bound)
    for reference in _targets.get(by, ()):
        cls = reference()
        if cls is None or not issubclass(of, cls):
            continue
        now = replaced.get(cls)
        if (now is not None and now.by is by) or not issubclass(of, by):
            if not extends(by, cls):
                return super(cls, bound)
            # Not `_Super(...)`, which torch.compile can't trace. From Python 3.12 on, a graph break in
            # `super().name` is an error in torch itself.
            return tuple.__new__(_Super, (cls, bound, original_namespace(cls)))
    return super(by, bound)


class _Super(tuple[type, Any, "dict[str, Any]"]):
    """The result of `super()` in a class that replaces its base: has the attributes of the original base.

    A tuple of the base, the bound instance or class, and the base's original namespace. It is a tuple because
    reading its items runs no Python code, and compilers may inspect it at any time.
    """

    __slots__ = ()

    def __getattribute__(self, name: str) -> Any:
        # Special methods, too, are looked up on the replaced class, not on this class.
        try:
            cls, bound, own = tuple.__iter__(self)
        except ValueError:  # an empty instance, which torch.compile creates for inspection
            return object.__getattribute__(self, name)
        if name not in own:
            return getattr(super(cls, bound), name)
        found = own[name]
        if not hasattr(type(found), "__get__"):
            return found
        if isinstance(bound, type):
            return found.__get__(None, bound)
        return found.__get__(bound, type(bound))
