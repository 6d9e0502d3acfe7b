"""Engines of others: found by metadata, and what would serve in each."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from switchrail.bridges.sglang.versions import VERSIONS
from switchrail.cli.app import app
from switchrail.doctor.hosts import check_hosts
from switchrail.hosts import HOSTS
from switchrail.testing import isolated
from typer.testing import CliRunner

CHECKPOINT = Path(__file__).parents[1] / "checkpoints" / "kjv-qwen3-next"


def install(folder: Path, name: str, version: str) -> None:
    """Metadata alone: importing the engine would fail."""
    home = folder / f"{name}-{version}.dist-info"
    home.mkdir(parents=True)
    (home / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


@pytest.mark.parametrize("version", ["0.5.23", "0.5.99"])
def test_explain_says_what_would_serve_in_each(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "sglang", version)
    install(tmp_path, "vllm", "0.33.0")
    monkeypatch.syspath_prepend(tmp_path)
    command = ["explain", str(CHECKPOINT), "--device", "cpu"]
    with isolated():
        found = json.loads(CliRunner().invoke(app, [*command, "--json"]).output)["engines"]
        shown = CliRunner().invoke(app, command).output
    assert not {"sglang", "vllm"} & sys.modules.keys()
    served = {(one["engine"], one["op"], one["phase"]): one["backend"] for one in found}
    assert served["transformers", "gated_delta", "decode"] == "torch"
    assert served["vllm", "all", "all"] == "none: there is no bridge"
    if version in VERSIONS:
        assert served["sglang", "gated_delta", "decode"] == "torch"
    else:
        assert "knows the versions 0.5.11, 0.5.23" in served["sglang", "all", "all"]
    assert "installed engines of others" in shown
    notes = {finding.subject: finding for finding in check_hosts()}
    assert notes.keys() == ({"vllm"} if version in VERSIONS else {"vllm", "sglang"})
    assert not any(finding.is_problem for finding in notes.values())


def test_the_versions_are_those_of_the_bridge() -> None:
    assert next(host.versions for host in HOSTS if host.name == "sglang") == VERSIONS
