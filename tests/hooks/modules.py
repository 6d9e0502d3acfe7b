"""Creates modules from source text."""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Iterator


@contextlib.contextmanager
def imported(name: str, source: str) -> Iterator[types.ModuleType]:
    """A module with this code, importable by its name within the `with` block."""
    module = types.ModuleType(name)
    sys.modules[name] = module
    exec(compile(source, f"{name}.py", "exec"), vars(module))
    yield module
    del sys.modules[name]
