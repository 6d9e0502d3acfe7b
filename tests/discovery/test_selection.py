"""Tests of `_core.select`: which plugins an allow list and a platform exclude."""

from __future__ import annotations

from pathlib import Path

import pytest
from switchrail import _core
from switchrail.errors import PlatformError, UnknownPluginError


@pytest.fixture
def plugins(tmp_path: Path) -> list[_core.Plugin]:
    for name, text in (
        (
            "npu_vendor",
            "[switchrail.plugins]\nnpu_ops = npu:register\n[switchrail.platforms]\nnpu = npu:platform\n",
        ),
        ("other", "[switchrail.plugins]\ngdn = other:register\n"),
    ):
        info = tmp_path / f"{name}-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Name: {name}\nVersion: 1\n")
        (info / "entry_points.txt").write_text(text)
    return _core.discover([tmp_path]).plugins


def _states(plugins: list[_core.Plugin]) -> dict[str, str]:
    return {plugin.name: plugin.state for plugin in plugins}


def test_a_platform_leaves_out_the_plugins_of_another(plugins: list[_core.Plugin]) -> None:
    selected = _core.select(plugins, platform="cuda")
    assert _states(selected) == {"npu_ops": "blocked", "gdn": "discovered", "npu": "discovered"}
    reason = next(plugin.reason for plugin in selected if plugin.name == "npu_ops")
    assert reason == 'npu_vendor provides the platform "npu", but "cuda" is in use'
    again = _core.select(selected, platform="npu")
    assert set(_states(again).values()) == {"discovered"}


def test_the_allow_list_does_not_hide_platforms(plugins: list[_core.Plugin]) -> None:
    selected = _core.select(plugins, ["gdn"], "npu_vendor:npu")
    assert _states(selected) == {"npu_ops": "blocked", "gdn": "discovered", "npu": "discovered"}


def test_a_name_that_is_not_installed_is_an_error_with_the_nearest_names(plugins: list[_core.Plugin]) -> None:
    with pytest.raises(PlatformError) as platform:
        _core.select(plugins, platform="cudaa")
    assert (platform.value.found, platform.value.nearest[0]) == ("cudaa", "cuda")  # type: ignore[attr-defined]
    assert "npu_vendor:npu" in platform.value.valid
    with pytest.raises(UnknownPluginError) as plugin:
        _core.select(plugins, ["gdnn"])
    assert plugin.value.nearest == ("gdn",)
