"""The memory that `plan --memory` prints, compared with an engine's allocations."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import switchrail
import torch
from switchrail.cli.app import app
from switchrail.engine import Engine, EngineOptions
from switchrail.engine.footprint import footprint, row_bytes
from switchrail.engine.models.binding import find_mixers
from switchrail.ops.batch import DeferredBatch
from switchrail.testing import isolated
from switchrail_kernels.drafts import Record
from typer.testing import CliRunner

from benchmarks.serving import slices
from tests.engine import capturable
from tests.engine.capturable import DeferringDelta
from tests.engine.test_graphs import GraphPlatform
from tests.families.conftest import OPTIONS, Family
from tests.families.made import CONFIGS
from tests.processes import Helper

QWEN3_NEXT = Path(__file__).parents[1] / "checkpoints/kjv-qwen3-next"
DRAFTED = {**OPTIONS, "draft_tokens": 2}


@pytest.mark.parametrize("model_type", [*CONFIGS, "qwen3_next"])
def test_the_bytes_are_those_allocated(model_type: str, family_of: Callable[[str], Family]) -> None:
    family = Family(model_type, QWEN3_NEXT, None) if model_type == "qwen3_next" else family_of(model_type)
    runtime = switchrail.Runtime()
    with Engine(family.path, runtime=runtime, device="cpu", options=OPTIONS) as engine:
        found = footprint(
            runtime,
            family.path,
            engine.plan.layout,
            EngineOptions(**OPTIONS),
            platform=engine.platform,
            dtype=torch.float32,
            memory=2**30,
        )
        model = engine._runner.model
        held = {id(one): one.nbytes for one in (*model.parameters(), *model.buffers())}
        token = sum(kind.token for kind in found.kinds)
        pools = found.states + token * OPTIONS["num_pages"] * OPTIONS["page_size"]
        assert found.weights == pytest.approx(sum(held.values()), rel=0.02)
        assert pools == engine.pools.nbytes
        assert sum(kind.layers for kind in found.kinds) == len(engine.plan.layout.layers)
        assert found.states == 9 * sum(kind.sequence for kind in found.kinds)
        assert (found.tokens is None) == (token == 0)


def bytes_of(engine: Engine) -> int:
    """The bytes of the parameters and buffers of an engine's model and of its draft, each tensor once."""
    drafts: Any = engine._core.drafts
    models = [engine._runner.model, *(runner.model for runner in drafts.runners)]
    return sum(
        {id(one): one.nbytes for model in models for one in (*model.parameters(), *model.buffers())}.values()
    )


def test_mixers_are_found_once_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mixers are searched for once per model, not once per kind of layer."""
    found = []

    def finding(*arguments: Any) -> Any:
        found.append(arguments)
        return find_mixers(*arguments)

    monkeypatch.setattr("switchrail.engine.footprint.find_mixers", finding)
    draft, runtime = QWEN3_NEXT.parent / "kjv-draft", switchrail.Runtime()
    footprint(
        runtime,
        QWEN3_NEXT,
        switchrail.Layout.from_config(QWEN3_NEXT),
        EngineOptions(**DRAFTED, draft=draft),
        drafts=[switchrail.Layout.from_config(draft)],
        platform=runtime.find_platform("cpu"),
        dtype=torch.float32,
        memory=2**30,
    )
    assert len(found) == 2


class Keeping(DeferringDelta):
    """Also allocates the records that Triton's backend keeps."""

    def run(self, call: Any, batch: Any, plan: Any) -> Any:
        if isinstance(batch, DeferredBatch):
            Record.kept(call.layer, batch, call.k, call.v)
        return super().run(call, batch, plan)


def test_the_records_of_deferred_commits_are_those_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capturable, "DeferringDelta", Keeping)
    platform, runtime = GraphPlatform(), switchrail.Runtime()
    runtime.use_platform(platform)
    capturable.register_capturable(runtime, defers=True)
    few = {"max_sequences": 2, "max_length": 64, "num_pages": 40, "capture": "decode"}
    options = EngineOptions(**{**DRAFTED, **few, "draft": "ngram"})
    with Engine(QWEN3_NEXT, runtime=runtime, device=platform, options=options) as engine:
        graphs = engine._runner.graphs
        assert graphs is not None
        found = footprint(
            runtime,
            QWEN3_NEXT,
            engine.plan.layout,
            options,
            capture=graphs._plan,
            platform=engine.platform,
            dtype=torch.float32,
            memory=2**30,
        )
        records = [layer.kept.get(Record) for layer in engine._runner.dispatcher._layers]
        kept = sum(one.u.nbytes + one.k.nbytes + one.g.nbytes for one in records if one is not None)
        assert kept > 0
        assert found.states == sum(one.nbytes for one in engine.pools.state.tensors()) + kept
        assert found.states == 3 * sum(kind.sequence for kind in found.kinds)


@pytest.mark.parametrize("op", ["gated_delta", "kda"])
def test_a_kept_row_has_the_bytes_of_tritons_records(op: str) -> None:
    sizes = {"k_heads": 2, "head_size_k": 24, "v_heads": 6, "head_size_v": 16}
    k, v = torch.empty(1, 2, 24, dtype=torch.bfloat16), torch.empty(1, 6, 16, dtype=torch.bfloat16)
    made = Record.empty(k, v, channels=op == "kda", rows=1)
    assert row_bytes(op, sizes, k.dtype) == made.u.nbytes + made.k.nbytes + made.g.nbytes


def test_the_command_counts_the_records_of_deferred_commits(processes: Helper) -> None:
    def states(*arguments: str) -> int:
        command = ["plan", QWEN3_NEXT, "--as", "cuda:9.0", "--json", "--dtype", "bfloat16", "--memory", "1G"]
        compiled = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
        program = "from switchrail.cli import main; main()"
        run = processes.run(program, [*command, *arguments], env=compiled)
        assert run.returncode == 0, run.stderr
        return int(json.loads(run.stdout)["states"])

    sizes = {"k_heads": 4, "head_size_k": 32, "v_heads": 8, "head_size_v": 32}
    records = 6 * 2 * 33 * 5 * row_bytes("gated_delta", sizes, torch.bfloat16)
    assert states("--draft", "ngram") == states() + records


@pytest.mark.parametrize("draft", ["mtp", QWEN3_NEXT.parent / "kjv-draft"], ids=["mtp", "model"])
def test_a_drafts_bytes_are_those_allocated(draft: Any) -> None:
    """The planned bytes of weights and pools include those of the draft."""
    options = EngineOptions(**DRAFTED, draft=draft)
    runtime = switchrail.Runtime()
    with Engine(QWEN3_NEXT, runtime=runtime, device="cpu", options=options) as engine:
        drafts: Any = engine._core.drafts
        found = footprint(
            runtime,
            QWEN3_NEXT,
            engine.plan.layout,
            options,
            drafts=[runner.dispatcher.bound.plan.layout for runner in drafts.runners],
            platform=engine.platform,
            dtype=torch.float32,
            memory=2**30,
        )
        token = sum(kind.token for kind in found.kinds)
        pools = found.states + token * OPTIONS["num_pages"] * OPTIONS["page_size"]
        assert pools == engine.pools.nbytes + sum(runner.pools.nbytes for runner in drafts.runners)
        assert found.weights == pytest.approx(bytes_of(engine), rel=0.02)
    kinds = [kind.kind for kind in found.kinds if kind.kind.startswith("draft: ")]
    expected = ["gated_delta", "full_attention"] if draft != "mtp" else ["full_attention", "hidden states"]
    assert kinds == [f"draft: {kind}" for kind in expected]


def test_the_command_counts_the_draft() -> None:
    def run(*arguments: object) -> Any:
        given = ["plan", QWEN3_NEXT, "--device", "cpu", "--json", "--memory", "256M", *arguments]
        with isolated():
            return json.loads(CliRunner().invoke(app, [*map(str, given)]).stdout)

    plain, head = run(), run("--draft", "mtp")
    model = run("--draft", QWEN3_NEXT.parent / "kjv-draft")
    for drafted in (head, model):
        assert drafted["weights"] > plain["weights"]
        assert drafted["tokens"] < plain["tokens"]
    assert head["states"] == plain["states"] < model["states"]
    assert run("--draft", "ngram") == plain


def test_the_command(family_of: Callable[[str], Family]) -> None:
    path = str(family_of("kimi_linear").path)

    def run(*arguments: str) -> Any:
        with isolated():
            return CliRunner().invoke(app, ["plan", path, *arguments])

    shown = run("--as", "cuda:9.0", "--memory", "1G")
    assert shown.exit_code == 0, shown.output
    assert "tokens that fit beside weights and states" in shown.output
    assert "85% of the rest (memory_fraction)" in shown.output
    assert "that fit: 32 (limited by max_sequences)" in shown.output
    for_host = run("--device", "cpu", "--memory", "80")
    assert for_host.exit_code == 1
    assert "the weights don't fit into 80 bytes; a SIZE without K, M, G or T is in bytes" in for_host.output
    assert "that fit: 0\n" in for_host.output
    small, large = (
        json.loads(run("--device", "cpu", "--json", "--memory", size).stdout) for size in ("64M", "128M")
    )
    assert {kind["kind"] for kind in small["kinds"]} == {"kda", "mla"}
    assert 0 < small["tokens"] < large["tokens"]
    assert small["fraction"] == 0.25
    assert small["fits"]
    for size in ("80", str(small["weights"] + 1000)):  # too little for the weights, or for the states
        refused = run("--device", "cpu", "--json", "--memory", size)
        assert refused.exit_code == 1
        assert not json.loads(refused.stdout)["fits"]
    assert run("--memory", "much").exit_code == 2


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_bytes_of_the_slice_are_those_allocated_on_a_gpu(tmp_path: Path) -> None:
    """The slice is that of `benchmarks.serving`: 12 layers of Qwen3-Next at its real widths."""
    path = slices.make_checkpoint(tmp_path, 12, 64, 3072)
    runtime = switchrail.Runtime()
    options = {"max_sequences": 256, "max_length": 8192, "num_pages": 4096, "capture": "off"}
    before = torch.cuda.memory_allocated()
    with Engine(path, runtime=runtime, device="cuda", options=options) as engine:
        needed = footprint(
            runtime,
            path,
            engine.plan.layout,
            engine.options,
            platform=engine.platform,
            dtype=torch.bfloat16,
            memory=torch.cuda.mem_get_info()[1],
        )
        tokens = sum(kind.token for kind in needed.kinds) * 4096 * needed.page_size
        assert needed.states + tokens == engine.pools.nbytes
        planned, allocated = needed.weights + needed.states + tokens, torch.cuda.memory_allocated() - before
        print(f"{planned} bytes planned, {allocated} allocated")
        assert planned == pytest.approx(allocated, rel=0.02)
