"""Small CPU runs of the benchmark of the engine, with a stand-in for SGLang."""

import json
import xml.etree.ElementTree as ElementTree
from itertools import pairwise
from pathlib import Path

import pytest
from switchrail.engine import Engine, SamplingParams
from switchrail.errors import CheckpointError, ConfigError
from switchrail.testing import isolated

from benchmarks.serving import __main__ as command
from benchmarks.serving import host, runs, slices
from benchmarks.serving.ours import Ours
from benchmarks.serving.sglang_peer import SGLang
from benchmarks.serving.slices import TINY, Work, make_checkpoint, make_prompts, random_weights
from benchmarks.serving.table import table

CHECKPOINT = Path(__file__).parents[1] / "checkpoints/kjv-qwen3-next"

STAND_IN = '''
"""The parts of SGLang that the benchmark needs."""
import asyncio

__version__ = "0"

class Engine:
    def __init__(self, **options):
        if options.get("refuses"):
            raise ValueError("no such option")
        assert options["max_running_requests"] >= 1
        self.loop = asyncio.new_event_loop()
        print("noise")

    def generate(self, input_ids, sampling_params):
        return [{"output_ids": [7] * sampling_params["max_new_tokens"]} for _ in input_ids]

    async def async_generate(self, input_ids, sampling_params, stream):
        async def chunks():
            for count in range(1, sampling_params["max_new_tokens"] + 1):
                await asyncio.sleep(0)
                yield {"meta_info": {"completion_tokens": count}}
        return chunks()

    def shutdown(self):
        pass
'''


@pytest.fixture(autouse=True)
def runtime(small_heap):
    """An isolated runtime. The benchmark collects garbage between its runs, here in a small heap."""
    with isolated():
        yield


@pytest.fixture
def python(python_with_sglang):
    """An interpreter in which the stand-in for SGLang is installed."""
    return python_with_sglang(STAND_IN)


@pytest.fixture
def short_runs(monkeypatch):
    """Let the benchmark generate few tokens, and run no prompt of more than 700 tokens."""
    for module in (slices, command):
        monkeypatch.setattr(module, "LONG", 700)
    monkeypatch.setattr(runs, "NEW_TOKENS", 4)
    monkeypatch.setattr(host, "NEW_TOKENS", 2 * host.SKIPPED + 8)


def start(python, log, **options):
    return SGLang(CHECKPOINT, python=python, sequences=2, new_tokens=4, options=options, log=log)


def test_the_peer_runs_in_a_separate_process(python, tmp_path):
    log = tmp_path / "log"
    with start(python, log) as peer:
        assert peer.version == "0"
        assert peer.seconds > 0
        assert peer.run(Work([[1, 2], [3]], 4, {})) > 0
        found = peer.serve(Work([[1, 2], [3]], 4, {"temperature": 0.7}), [0.0, 0.2])
        assert [len(times) for times in found] == [4, 4]
        assert found[1][0] >= 0.2
        assert all(before <= later for times in found for before, later in pairwise(times))
    assert log.read_text() == "noise\n"


def test_the_error_has_the_output_of_a_peer_that_fails(python, tmp_path):
    with pytest.raises(RuntimeError, match="no such option"):
        start(python, tmp_path / "log", refuses=True)


@pytest.mark.parametrize(
    ("version", "names"),
    [
        ("0.5.11", ["cuda_graph_max_bs", "mamba_scheduler_strategy"]),
        ("0.5.23", ["cuda_graph_max_bs_decode", "mamba_radix_cache_strategy"]),
    ],
)
def test_options_have_the_names_of_the_version_that_runs(python, tmp_path, version, names):
    (tmp_path / "sglang.py").write_text(
        STAND_IN.replace('"0"', f'"{version}"').replace('"noise"', "*sorted(options)")
    )
    given = {"cuda_graph_max_bs_decode": 8, "mamba_radix_cache_strategy": "extra_buffer"}
    with start(python, tmp_path / "log", **given):
        pass
    found = (tmp_path / "log").read_text().split()
    assert [name for name in found if "cuda_graph" in name or "mamba" in name] == names


@pytest.mark.usefixtures("short_runs")
def test_arrivals_are_those_of_the_first_contender_and_the_same_for_all():
    with Engine(CHECKPOINT, device="cpu", options={"max_sequences": 4, "max_length": 700}) as engine:
        ours = Ours(engine)
        seen = []

        class Other(Ours):
            name = "other"

            def serve(self, work, arrivals):
                seen.append(arrivals)
                return super().serve(work, arrivals)

        first, second = runs.arrivals([ours, Other(engine)], 1, 0.5, {"temperature": 0.7})
    assert first["requests"] == second["requests"] == len(seen[-1])
    assert all(0 < before <= later for before, later in pairwise(seen[-1]))
    assert 0 < first["first_ms"]["p50"] <= first["first_ms"]["p99"]


def test_a_slice_without_weight_files_is_served(tmp_path):
    path = make_checkpoint(tmp_path, 4, 12, 3072, widths=TINY, device="cpu", stored=False)
    assert not list(path.glob("*.safetensors"))
    with random_weights("cpu"), Engine(path, device="cpu", options={"max_length": 700}) as engine:
        (output,) = engine.generate(make_prompts(1), SamplingParams(max_new_tokens=2, ignore_eos=True))
    assert len(output.tokens) == 2
    with pytest.raises(CheckpointError, match=r"no model\.safetensors"):
        Engine(path, device="cpu")


@pytest.mark.usefixtures("short_runs")
def test_the_benchmark_runs(python, tmp_path, capsys):
    path, folder = tmp_path / "found.json", tmp_path / "plots"
    small = ["--tiny", "--layers", "4", "--experts", "12", "--repeats", "1", "--batch", "2", "--rows", "4096"]
    asked = ["--sglang", python, "--host", "--sampled", "--no-check"]
    command.main([*small, *asked, "--json", str(path), "--plot", str(folder)])
    found = json.loads(path.read_text())
    assert [(row["name"], row["chosen"]) for row in found["rows"]] == [
        ("switchrail", ""),
        ("SGLang", ""),
        ("switchrail", " sampled"),
        ("SGLang", " sampled"),
    ]
    assert found["compiled"] == {"triton": 0, "read": 0, "dynamo": 0, "names": []}
    assert found["host"][0]["launch_ms"] > 0
    printed = capsys.readouterr().out
    assert "| B | prompt tokens | prefill, ms: switchrail | prefill, ms: SGLang |" in printed
    assert "\n| 2 sampled | " in printed
    ElementTree.parse(folder / "serving.svg")
    command.main(["--read", str(path), "--plot", str(tmp_path)])
    assert capsys.readouterr().out.strip() in printed
    assert (tmp_path / "serving.svg").read_bytes() == (folder / "serving.svg").read_bytes()


def test_the_table_has_the_ratio_of_each_peer():
    ours = {"name": "switchrail", "batch": 2, "chosen": "", "prompt_tokens": 1234}
    ours |= {"prefill_ms": 2.0, "step_ms": 0.5, "tokens_per_second": 3000.0}
    peer = {**ours, "name": "peer", "prefill_ms": 3.0, "step_ms": 0.25, "tokens_per_second": 1500.0}
    long = {"name": "switchrail", "prompt_tokens": 8192, "prefill_ms": 30.0}
    lines = table({"rows": [ours, peer], "long": [long, {**long, "name": "peer", "prefill_ms": 33.0}]})
    assert lines.splitlines()[2:] == [
        "| 2 | 1,234 | 2.0 | 3.0 (1.50) | 0.50 | 0.25 (0.50) | 3,000 | 1,500 (2.00) |",
        "| one prompt | 8,192 | 30.0 | 33.0 (1.10) |  |  |  |  |",
    ]


def test_the_engine_gets_the_options():
    small = ["--tiny", "--layers", "4", "--experts", "12", "--no-check", "--no-batches"]
    with pytest.raises(ConfigError, match="page_size"):
        command.main([*small, "--options", '{"page_size": -1}'])


@pytest.mark.usefixtures("short_runs")
def test_the_table_has_sglang_with_switchrails_kernels(python, capsys):
    small = ["--tiny", "--layers", "4", "--experts", "12", "--repeats", "1", "--batch", "1", "--rows", "4096"]
    command.main([*small, "--no-check", "--sglang", python, "--sglang-served"])
    printed = capsys.readouterr().out
    assert "| step, ms: SGLang | step, ms: SGLang with Switchrail's kernels |" in printed
