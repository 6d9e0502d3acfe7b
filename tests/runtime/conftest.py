from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import switchrail
from switchrail.testing import isolated


@pytest.fixture
def runtime() -> Iterator[switchrail.Runtime]:
    with isolated() as runtime:
        yield runtime


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Path]]:
    """Returns a function that installs a distribution with one plugin in a folder on sys.path."""
    monkeypatch.syspath_prepend(str(tmp_path))
    modules = set(sys.modules)

    def install(
        distribution: str,
        code: str,
        *,
        version: str = "1.0",
        plugin: str | None = None,
        target: str | None = None,
    ) -> Path:
        module = distribution.replace("-", "_")
        (tmp_path / f"{module}.py").write_text(code)
        info = tmp_path / f"{module}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        name, target = plugin or distribution, target or f"{module}:register"
        (info / "entry_points.txt").write_text(f"[switchrail.plugins]\n{name} = {target}\n")
        return info

    yield install
    for name in set(sys.modules) - modules:
        if name.startswith("acme_"):
            del sys.modules[name]
