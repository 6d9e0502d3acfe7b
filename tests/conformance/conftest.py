from __future__ import annotations

import importlib
import sys
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from switchrail.ops.backend import Backend


@pytest.fixture
def mutate(tmp_path):
    """A function that returns a backend's class with changed source; see `_mutated`. The modules are restored
    after the test."""
    with ExitStack() as stack:
        yield lambda *change, path, reloaded: stack.enter_context(
            _mutated(*change, path=path, reloaded=reloaded, folder=tmp_path)
        )


@contextmanager
def _mutated(
    name: str, old: str, new: str, *, path: str, reloaded: Collection[str], folder: Path
) -> Iterator[type[Backend]]:
    """The class at a path `module:Class`, made from the changed source of a module.

    Args:
        name: The module to change.
        old: The original text, which must occur once in the module.
        new: Its replacement.
        path: The path of the class.
        reloaded: Modules to import again. A top-level package stands for all its modules.
        folder: Folder for the changed source, for code that reads the source of functions.
    """
    spec = find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin).read_text()
    found = source.count(old)
    assert found == 1, f"{old!r} occurs {found} times in {name}; it must occur once"
    file = folder / f"{name}.py"
    file.write_text(source.replace(old, new))
    entry, _, attribute = path.partition(":")

    def is_reloaded(module: str) -> bool:
        return module.startswith("switchrail") and (
            module in (entry, name) or not reloaded.isdisjoint((module, module.split(".")[0]))
        )

    before = {module: sys.modules.pop(module) for module in list(sys.modules) if is_reloaded(module)}
    try:
        importlib.import_module(name.rpartition(".")[0])
        changed = spec_from_file_location(name, file)
        assert changed is not None
        assert changed.loader is not None
        module = module_from_spec(changed)
        sys.modules[name] = module
        changed.loader.exec_module(module)
        yield getattr(importlib.import_module(entry), attribute)
    finally:
        for each in [module for module in sys.modules if is_reloaded(module)]:
            del sys.modules[each]
        sys.modules.update(before)
        for each, module in before.items():
            parent, _, child = each.rpartition(".")
            if parent:
                setattr(sys.modules[parent], child, module)
