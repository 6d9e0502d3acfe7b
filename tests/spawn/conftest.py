from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import switchrail
from switchrail.testing import isolated

from tests.distributions import write_distribution

USERLAND = Path(__file__).parent / "userland"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("SWITCHRAIL_PLUGINS", "SWITCHRAIL_PLATFORM", "SWITCHRAIL_LOCK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.syspath_prepend(USERLAND)
    yield
    for name in [name for name in sys.modules if name.startswith(("acme_", "userland"))]:
        del sys.modules[name]


@pytest.fixture
def userland(environment: None) -> Any:
    import userland

    return userland


@pytest.fixture
def runtime() -> Iterator[switchrail.Runtime]:
    with isolated() as runtime:
        yield runtime


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Returns a function that writes a distribution with one plugin, and removes an older version of it."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(site)

    def install(
        distribution: str, code: str = "def register(registry): pass", *, version: str = "1.0"
    ) -> Path:
        module = distribution.replace("-", "_")
        for old in site.glob(f"{module}-*.dist-info"):
            for file in old.iterdir():
                file.unlink()
            old.rmdir()
        write_distribution(site, distribution, code, plugin=distribution, version=version)
        return site

    return install
