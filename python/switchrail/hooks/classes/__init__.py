"""Replaces a class in place: the class object gets another class's namespace.

Instances, subclasses, `isinstance` and pickles of the class remain valid, because the class object is the
same.
"""

from __future__ import annotations

from switchrail.hooks.classes.namespaces import own_namespace
from switchrail.hooks.classes.replacement import Class

__all__ = ["Class", "own_namespace"]
