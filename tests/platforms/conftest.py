from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import switchrail
import torch
from switchrail.testing import isolated

CHECKPOINT = Path(__file__).parents[1] / "checkpoints" / "kjv-qwen3-next"


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device; torch sees none")


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[switchrail.Runtime]:
    monkeypatch.delenv("SWITCHRAIL_PLATFORM", raising=False)
    with isolated() as runtime:
        yield runtime


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Path]]:
    """Returns a function that installs a distribution with one platform plugin in a folder on sys.path."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    modules = []

    def install(distribution: str, code: str, *, name: str | None = None, target: str = "activate") -> Path:
        module = distribution.replace("-", "_")
        modules.append(module)
        (site / f"{module}.py").write_text(code)
        info = site / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(
            f"[switchrail.platforms]\n{name or distribution} = {module}:{target}\n"
        )
        return info

    yield install
    for module in modules:
        sys.modules.pop(module, None)
