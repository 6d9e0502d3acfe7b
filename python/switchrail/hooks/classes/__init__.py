"""Replacing a class in place: the class object takes over another class's namespace.

Instances, subclasses, `isinstance` and pickles of the class stay valid, because it stays the same object.
"""

from __future__ import annotations

from switchrail.hooks.classes.namespaces import own_namespace
from switchrail.hooks.classes.replacement import Class

__all__ = ["Class", "own_namespace"]
