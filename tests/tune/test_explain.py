"""The output of `explain` and `run` if several backends serve, each for certain batches."""

import json
from pathlib import Path

import pytest
import switchrail
from rich.console import Console
from switchrail.cli.app import app
from switchrail.cli.show import route_table
from switchrail.ops.gated_delta.torch import TorchGatedDelta
from switchrail.testing import isolated
from switchrail.times import device_of, times_path, write_machine
from typer.testing import CliRunner

CHECKPOINT = Path(__file__).parents[1] / "checkpoints" / "kjv-qwen3-next"
DOCUMENT = Path(__file__).parents[2] / "docs" / "tune.md"
HEADING = "microseconds per call; thresholds between these sizes choose the backend"


class Split(TorchGatedDelta):
    pass


class Late(TorchGatedDelta):
    pass


@pytest.fixture
def runtime(tmp_path, monkeypatch):
    monkeypatch.setenv("SWITCHRAIL_TIMES", str(tmp_path / "times.json"))
    layout = switchrail.Layout.from_config(CHECKPOINT)
    shape = layout.shape("gated_delta", "gated_delta")
    samples = [(64, 64, 90_000, 30_000), (64, 4, 80_000, 200_000), (4096, 4096, 9_000_000, 1_234_500)]
    with isolated() as runtime:
        runtime.register("split", Split, op="gated_delta")
        runtime.register("late", Late, op="gated_delta")
        runtime.register("new", Late, op="gated_delta", priority=-1)
        found = {
            "device": device_of(runtime.find_platform("cpu")),
            "packages": {},
            "measurements": [
                {
                    "op": "gated_delta",
                    "phase": "prefill",
                    "dtype": "float32",
                    "head_size": [shape["head_size_k"], shape["head_size_v"]],
                    "heads": [shape["q_heads"], shape["v_heads"]],
                    "no_decay": False,
                    "samples": [
                        {
                            "rows": rows,
                            "length": length,
                            "nanoseconds": {"torch": torch, "split": split, "late": 10_000_000},
                        }
                        for rows, length, torch, split in samples
                    ],
                }
            ],
        }
        write_machine(times_path(), found, {})
        yield runtime


def test_explain_shows_which_backend_serves_which_batches(runtime):
    done = CliRunner().invoke(app, ["explain", str(CHECKPOINT), "--device", "cpu", "--phase", "prefill"])
    assert done.exit_code == 0, done.output
    part = next(part for part in done.output.split("\n\n") if part.startswith("gated_delta prefill"))
    lines = [" ".join(line.split()) for line in part.splitlines()]
    assert lines[1:4] == [
        "backend origin why",
        "split the user serves: fastest at some loads measured here (mean 194.9 us); others serve the rest",
        "torch switchrail serves where it is faster",
    ]
    assert "late the user fits, but takes 10000.0 us as measured here; the chosen one takes 194.9 us" in lines
    assert any(line.startswith("new the user fits, but was not measured here") for line in lines)
    assert lines[-5:] == [
        HEADING,
        "rows longest split torch",
        "64 4 200.0 80.0*",
        "64 64 30.0* 90.0",
        "4,096 4,096 1,234.5* 9,000.0",
    ]
    assert f"\n{HEADING}\n" in DOCUMENT.read_text("utf-8")
    arguments = ["explain", str(CHECKPOINT), "--device", "cpu", "--phase", "prefill", "--json"]
    routes = json.loads(CliRunner().invoke(app, arguments).output)["routes"]
    (classes,) = (route["decision"]["classes"] for route in routes if "classes" in route["decision"])
    assert [backend["name"] for backend in classes["backends"]] == ["split", "torch"]


def test_the_routes_of_a_run_name_all_that_serve(runtime):
    layout = switchrail.Layout.from_config(CHECKPOINT)
    plan = runtime.plan(layout, device=runtime.find_platform("cpu"), dtype="float32")
    console = Console(width=160)
    with console.capture() as printed:
        console.print(route_table(plan))
    lines = [" ".join(line.split()) for line in printed.get().splitlines()]
    assert any("gated_delta split, torch late" in line for line in lines), lines
