"""Other installed engines are found by their metadata; `explain` shows which backends would serve in each."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

import pytest
from switchrail import Layout
from switchrail.bridges.sglang.versions import VERSIONS, version_of
from switchrail.cli.app import app
from switchrail.doctor.hosts import check_hosts
from switchrail.engine.routes import plan_routes
from switchrail.hosts import HOSTS, release, served_in
from switchrail.testing import isolated
from typer.testing import CliRunner

CHECKPOINT = Path(__file__).parents[1] / "checkpoints" / "kjv-qwen3-next"


def install(folder: Path, name: str, version: str) -> None:
    """Write only an engine's metadata, so that importing the engine would fail."""
    home = folder / f"{name}-{version}.dist-info"
    home.mkdir(parents=True)
    (home / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


@pytest.mark.parametrize("version", ["0.5.23", "0.5.99"])
def test_explain_says_what_would_serve_in_each_engine(
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
    asked = {(one["engine"], one["op"]): one["ask"] for one in found}
    if version in VERSIONS:
        assert served["sglang", "gated_delta", "decode"] == "torch"
        assert asked["sglang", "attention"] == "--attention-backend switchrail"
    else:
        assert "supports the versions 0.5.11, 0.5.23" in served["sglang", "all", "all"]
    assert "other installed engines" in shown
    notes = {finding.subject: finding for finding in check_hosts()}
    assert notes.keys() == ({"vllm"} if version in VERSIONS else {"vllm", "sglang"})
    assert not any(finding.is_problem for finding in notes.values())


@pytest.mark.parametrize(
    ("version", "expected"),
    [("5.23.0", (5, 23)), ("5.17rc1", (5, 17)), ("6.0.dev0", (6, 0)), ("6", (6,)), ("unknown", ())],
)
def test_any_version_has_numbers_to_compare(version: str, expected: tuple[int, ...]) -> None:
    assert release(version) == expected


@pytest.mark.parametrize(
    ("version", "problem"),
    [
        ("5.16.2", "the bridge needs 5.17 or later"),
        ("5.17.0", None),
        ("5.23.1", None),
        ("5.24.0", "the bridge needs a version before 5.24"),
    ],
)
def test_other_versions_of_transformers_are_refused(version: str, problem: str | None) -> None:
    (host,) = (host for host in HOSTS if host.name == "transformers")
    assert host.problem(version) == problem


def test_the_versions_are_those_of_the_bridge() -> None:
    assert next(host.versions for host in HOSTS if host.name == "sglang") == VERSIONS


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("kinds", "served"),
    [
        (["gated_delta", "full_attention"], {"short_conv", "gated_delta", "attention"}),
        (["kda", "mla"], {"0.5.11": {"mla"}, "0.5.23": {"short_conv", "kda", "mla"}}),
        (
            ["short_conv", "full_attention"],
            {"0.5.11": {"attention"}, "0.5.23": {"short_conv", "attention"}},
        ),
        (
            ["mamba2", "full_attention", "mlp"],
            {"0.5.11": {"attention"}, "0.5.23": {"short_conv", "mamba2", "attention"}},
        ),
        (["sliding_attention", "full_attention"], set()),
        (["hybrid"], set()),
        (["lightning"], {"0.5.23": {"lightning"}}),
    ],
)
def test_only_the_layers_that_the_bridge_serves_are_promised(
    version: str, kinds: list[str], served: set[str] | dict[str, set[str]]
) -> None:
    host = next(host for host in HOSTS if host.name == "sglang")
    layout = Layout.from_kinds("model", kinds)
    with isolated() as runtime:
        make = partial(
            plan_routes, runtime, platform=runtime.find_platform("cpu"), dtype="float32", page_size=16
        )
        rows = served_in(host, version, layout, make, {"linear": "torch"})
    promised = {op: how for op, phase, _, how in rows if phase != "all"}
    assert promised.keys() == (served.get(version, set()) if isinstance(served, dict) else served)
    own = {op: backend for op, phase, backend, _ in rows if phase == "all"}
    assert own.keys() == {op for layer in layout.layers for op in layer.ops} - promised.keys()
    assert all(backend.startswith("sglang's own: the bridge does not serve") for backend in own.values())
    for op, how in promised.items():
        assert how == f"--{'attention' if op in ('attention', 'mla') else 'linear-attn'}-backend switchrail"


def test_the_kinds_are_those_of_the_bridge() -> None:
    kinds = next(host.kinds for host in HOSTS if host.name == "sglang")
    assert {version: set(found) for version, found in kinds.items()} == {
        version: {*version_of(version).linear_ops, "full_attention", "mla"} for version in VERSIONS
    }
