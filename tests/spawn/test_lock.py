"""A worker compares its plugins with the lock, as its parent does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from switchrail import Runtime, RuntimeState
from switchrail.errors import InstallationError
from switchrail.lock import write_lock


def test_a_plugin_changed_since_the_parent_loaded_it(
    runtime: Runtime, install: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = install("acme-one")
    (site / "acme_one-1.0.dist-info" / "RECORD").write_text(
        "acme_one.py,,\nacme_one-1.0.dist-info/METADATA,,\n"
    )
    write_lock(tmp_path / "lock.json")
    monkeypatch.setenv("SWITCHRAIL_LOCK", str(tmp_path / "lock.json"))
    runtime.load(strict=True)
    state = RuntimeState.of(runtime)
    runtime.register("else", "a:B", op="kda")
    runtime = state.restore()
    runtime.register("else", "a:B", op="kda")
    (site / "acme_one.py").write_text("def register(registry): pass  # but otherwise\n")
    with pytest.raises(InstallationError) as caught:
        state.restore()
    [difference] = caught.value.fields["differences"]
    assert difference.startswith("plugin acme-one:acme-one: state is 'blocked', not 'loaded' (")
    assert "acme_one.py" in difference
