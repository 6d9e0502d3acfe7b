"""Tests of docs/bridges.md: its example, its policy file, and its table of tested versions."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest
import switchrail
from switchrail.hosts import HOSTS

from tests.processes import Helper

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/bridges.md").read_text()


def test_the_example_prints_what_is_shown(processes: Helper) -> None:
    ((program, printed),) = re.findall(r"```python\n(.*?)```\n+```text\n(.*?)```", TEXT, re.DOTALL)
    run = processes.run(program, cwd=ROOT)
    assert run.returncode == 0, run.stderr
    assert run.stdout == printed


@dataclass
class AcmeConfig:
    """The configuration of the backend `acme`, which the policy sets."""

    sequences_at_once: int = 1


def test_the_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (policy,) = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)
    file = tmp_path / "policy.toml"
    file.write_text(policy)
    monkeypatch.setenv("SWITCHRAIL_POLICY", str(file))
    runtime = switchrail.Runtime()
    runtime.register("acme", "nowhere:Kernel", op="gated_delta", config=AcmeConfig)
    runtime.register("triton", "nowhere:Kernel", op="gated_delta")
    runtime.register("flashinfer", "nowhere:Kernel", op="attention", priority=9)
    where = {"device": "cpu", "dtype": "float32"}
    assert runtime.resolve("gated_delta", "decode", **where).chosen == "acme"
    found = runtime.resolve("attention", "decode", **where)
    assert found.chosen == "torch"
    assert list(found.rejected[0].reasons) == ["denied for attention"]
    runtime.plan(switchrail.Layout.from_kinds("small", ["gated_delta"]), device="cpu", dtype="float32")
    assert runtime.backend("gated_delta", "acme").effective_config == {"sequences_at_once": 8}


def test_the_table_names_the_tested_versions() -> None:
    rows = dict(re.findall(r"^\| (transformers|SGLang) \| ([^|]+) \|", TEXT, re.MULTILINE))
    for host in HOSTS:
        row = next((row for name, row in rows.items() if name.lower() == host.name), "")
        assert all(version in row for version in host.versions)
