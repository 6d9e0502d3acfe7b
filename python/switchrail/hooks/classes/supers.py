"""What `super` is in the methods of a class that replaces another.

Python's own would refuse an instance of the replaced class, which is no instance of the replacing one.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any, Final

from switchrail.hooks.classes.namespaces import extends, original_namespace, replaced

# What torch.compile calls the rest of a function after a break in its graph, which has other parameters. The
# function itself calls it.
_RESUMED: Final = "torch_dynamo_resume_in_"

# What each class has ever replaced: a call of one of its methods may outlast that.
_targets: Final[weakref.WeakKeyDictionary[type, tuple[weakref.ref[type], ...]]] = weakref.WeakKeyDictionary()


def remember(by: type, cls: type) -> None:
    """Notes that one class replaces another, before `replacing_super` is called for it."""
    known = [reference for reference in _targets.get(by, ()) if reference() not in (None, cls)]
    _targets[by] = (*known, weakref.ref(cls))


def replacing_super(*args: Any) -> Any:
    """Stands for `super`: of the replaced class where the method was called on one, else Python's."""
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
            # Not `_Super(...)`: torch.compile can't trace that, and a break of its graph in `super().name` is
            # an error in torch itself from Python 3.12 on.
            return tuple.__new__(_Super, (cls, bound, original_namespace(cls)))
    return super(by, bound)


class _Super(tuple[type, Any, "dict[str, Any]"]):
    """What `super()` gives in a class that replaces its base: the base as it was.

    A tuple (class, what is bound, the class's namespace), which has its parts without running Python code:
    compilers look at such objects at any time.
    """

    __slots__ = ()

    def __getattribute__(self, name: str) -> Any:
        # Special methods asked for by name are those of the class that was replaced, not of this one.
        try:
            cls, bound, own = tuple.__iter__(self)
        except ValueError:  # the empty one that torch.compile makes to look at
            return object.__getattribute__(self, name)
        if name not in own:
            return getattr(super(cls, bound), name)
        found = own[name]
        if not hasattr(type(found), "__get__"):
            return found
        if isinstance(bound, type):
            return found.__get__(None, bound)
        return found.__get__(bound, type(bound))
