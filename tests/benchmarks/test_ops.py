"""Tests of the benchmark of the ops, with small CPU runs: its checks, times, tables and figures."""

import importlib
import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import SimpleNamespace

import pytest
import switchrail
import torch
from switchrail.ops.gated_delta.torch import TorchGatedDelta
from switchrail.testing import isolated
from switchrail.times import device_of, times_path, write_machine
from switchrail_kernels.describe import device_range, support, timed
from switchrail_kernels.lightning.triton import TritonLightning

from benchmarks.ops import document, plots, tables
from benchmarks.ops.__main__ import main
from benchmarks.ops.backends import Backends
from benchmarks.ops.cases import OPS, cases, tiny
from benchmarks.ops.clock import Clock, summary
from benchmarks.ops.inputs import make_call
from benchmarks.ops.peers import libraries, peers

ROOT = Path(__file__).parents[2]
TINY = ["--tiny", "--device", "cpu", "--backend", "torch"]


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """The times of all cases. Each prefill is timed on three calls, instead of 64."""
    path = tmp_path_factory.mktemp("times") / "times.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("benchmarks.ops.run.copies", lambda bytes_moved: 3)
        assert main([*TINY, "--json", str(path)]) == 0
    return path


def test_every_case_is_verified_and_timed(kept):
    found = document.read(kept)
    assert len(found["runs"]) == 1
    for op in OPS:
        wanted = {(case.phase, tiny(case).name) for case in cases(op)}
        rows = [row for phase in ("prefill", "decode") for row in document.rows_of(found, op, phase)]
        assert {(row["phase"], row["shape"]) for row in rows} == wanted
        for row in rows:
            assert row["times"]["torch"]["eager_s"]["median"] > 0
            assert len(row["times"]["torch"]["eager_s"]["deciles"]) == 9
            assert row["times"]["torch"]["host_s"] > 0
            assert row["auto"]["backend"] == "torch"
            assert "/" in row["errors"]["torch"]
            assert row["floor_s"] > 0
    assert any("SDPA bare" in row["times"] for row in document.rows_of(found, "attention", "prefill"))
    assert all("mul_ bare" in row["times"] for row in document.rows_of(found, "kda", "decode"))


def test_a_backend_that_is_wrong_is_not_timed(monkeypatch, tmp_path, capsys):
    right = TorchGatedDelta.run

    def wrong(self, call, batch, plan):
        right(self, call, batch, plan)
        call.out.mul_(1.01)

    monkeypatch.setattr(TorchGatedDelta, "run", wrong)
    path = tmp_path / "times.json"
    chosen = ["--op", "gated_delta", "--phase", "prefill", "--shape", "T=2048"]
    assert main([*TINY, *chosen, "--json", str(path)]) == 1
    assert document.rows_of(document.read(path), "gated_delta", "prefill") == []
    assert "wrong: torch in gated_delta prefill T=4 N=1: gated_delta: out is off" in capsys.readouterr().err


def test_a_peer_that_is_wrong_is_left_out(monkeypatch, tmp_path):
    attend = torch.nn.functional.scaled_dot_product_attention

    def wrong(*args, **kwargs):
        return attend(*args, **{**kwargs, "is_causal": False})

    importlib.import_module("switchrail.ops.attention.torch")  # binds the real function before the patch
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", wrong)
    path = tmp_path / "times.json"
    chosen = ["--op", "attention", "--phase", "prefill", "--shape", "T=8192"]
    assert main([*TINY, *chosen, "--json", str(path)]) == 0
    (row,) = document.rows_of(document.read(path), "attention", "prefill")
    assert set(row["times"]) == {"torch"}
    assert "difference from torch" in row["left_out"]["SDPA bare"]


def test_a_backend_alone_is_held_to_plain_torch_at_the_shape_that_is_timed(monkeypatch, tmp_path, capsys):
    chosen = ["--op", "lightning", "--phase", "decode", "--shape", "B=1", "--no-peers"]
    command = ["--tiny", "--device", "cpu", "--backend", "triton", *chosen]
    timed = []

    def measure(self, runs):  # interpreted kernels on a CPU take a third of a second per call
        timed.append(len(runs))
        return {"eager_s": summary([1e-6, 2e-6]), "host_s": 1e-6}

    monkeypatch.setattr(Clock, "measure", measure)
    assert main([*command, "--json", str(tmp_path / "right.json")]) == 0
    assert timed == [2]
    right = TritonLightning.run

    def wrong(self, call, batch, plan):
        right(self, call, batch, plan)
        if call.out.shape[0] == 1:  # a timed call; calls that are compared with the reference have more rows
            call.out.mul_(1.01)

    monkeypatch.setattr(TritonLightning, "run", wrong)
    assert main([*command, "--json", str(tmp_path / "wrong.json")]) == 1
    assert timed == [2], "the wrong backend was timed"
    assert (
        "wrong: triton in lightning decode B=1: its relative difference from torch is 1.0e-02;"
        in capsys.readouterr().err
    )


class WithAWrongRow(TorchGatedDelta):
    """Wrong in one row at the timed shape, where the benchmark compares backends with each other. Right for
    ragged inputs, where it compares them with the reference."""

    def run(self, call, batch, plan):
        super().run(call, batch, plan)
        if len(call.out) == (8 if max(batch.seqlens) == 1 else 4):
            call.out[2].mul_(1.1)


def compared(monkeypatch, path, *chosen, **fitting):
    """Run one case with these backends; return the case's row and the exit status."""
    monkeypatch.setattr(Backends, "fitting", lambda self, case: (fitting, {}))
    monkeypatch.setattr(Backends, "way", lambda self, case, name: "host")  # these backends aren't registered
    chosen = ["--op", "gated_delta", *chosen, "--json", str(path)]
    status = main(["--tiny", "--device", "cpu", *chosen])
    (row,) = document.rows_of(document.read(path), "gated_delta", chosen[3])
    return row, status


@pytest.mark.parametrize(("phase", "shape"), [("prefill", "T=2048"), ("decode", "B=8")])
def test_each_backend_is_compared_on_the_original_states(monkeypatch, tmp_path, phase, shape):
    chosen = ["--phase", phase, "--shape", shape]
    right = {"one": TorchGatedDelta(), "two": TorchGatedDelta(), "three": TorchGatedDelta()}
    row, status = compared(monkeypatch, tmp_path / "right.json", *chosen, **right)
    assert status == 0
    assert row["wrong"] == {}
    assert row["times"].keys() - {"mul_ bare"} == right.keys()

    some = {**right, "two": WithAWrongRow()}
    row, status = compared(monkeypatch, tmp_path / "wrong.json", *chosen, **some)
    assert status == 1
    assert row["wrong"].keys() == {"two"}
    assert "difference from one" in row["wrong"]["two"]
    assert row["times"].keys() - {"mul_ bare"} == {"one", "three"}


def test_a_peer_is_compared_on_the_original_states(monkeypatch, tmp_path):
    def peers_of(library, case, call):
        other = TorchGatedDelta()
        run = call.bind(other, other.plan(call.phase, call.batch))
        return {"a library": lambda: run() or call.out}

    monkeypatch.setattr("benchmarks.ops.run.peers", peers_of)
    row, status = compared(
        monkeypatch, tmp_path / "times.json", "--phase", "decode", "--shape", "B=8", one=TorchGatedDelta()
    )
    assert status == 0
    assert row["times"].keys() == {"one", "a library"}


def test_backends_times_are_kept_before_a_peer_is_asked(monkeypatch, tmp_path):
    path = tmp_path / "times.json"

    def compiling(library, case, call):
        raise KeyboardInterrupt  # as if the case's process had ended after a timeout

    monkeypatch.setattr("benchmarks.ops.run.peers", compiling)
    chosen = ["--op", "lightning", "--phase", "decode", "--shape", "B=1"]
    with pytest.raises(KeyboardInterrupt):
        main([*TINY, *chosen, "--json", str(path)])
    (row,) = document.rows_of(document.read(path), "lightning", "decode")
    assert row["times"].keys() == {"torch"}


def test_nothing_to_time_is_an_error(capsys):
    assert main([*TINY, "--op", "kda", "--shape", "no such"]) == 2
    assert "no result" in capsys.readouterr().err


def test_a_later_run_replaces_only_the_same_cases():
    def run(date, *shapes):
        return {
            "date": date,
            "results": [{"op": "kda", "phase": "decode", "shape": shape, "at": date} for shape in shapes],
        }

    kept = document.merged({"runs": [run("1", "B=1", "B=32")]}, run("2", "B=32", "B=256"))
    rows = document.rows_of(kept, "kda", "decode")
    assert [(row["shape"], row["at"]) for row in rows] == [("B=1", "1"), ("B=32", "2"), ("B=256", "2")]
    assert len(document.merged(kept, run("3", "B=1", "B=32", "B=256"))["runs"]) == 1


def test_tables_have_every_case_and_go_between_the_marks(kept, tmp_path):
    pages = {"kernels.md": ("support", "timed"), "times.md": ("times",)}
    for page, names in pages.items():
        marks = [f"<!-- {name}: begin -->\nold\n<!-- {name}: end -->" for name in names]
        (tmp_path / page).write_text("\n".join(["before", *marks, "after"]) + "\n")
    assert main(["--no-run", "--json", str(kept), "--docs", str(tmp_path)]) == 0
    lines = []
    for page in pages:
        text = (tmp_path / page).read_text()
        assert text.startswith("before\n")
        assert text.endswith("\nafter\n")
        assert "\nold\n" not in text
        lines += text.splitlines()
    for op in OPS:
        for case in map(tiny, cases(op)):
            assert any(line.startswith(f"| {case.name}") for line in lines)
    rows = [line for line in lines if line.startswith("| ")]
    assert all(line.count("|") > 5 for line in rows)
    assert any(line.startswith("| `gated_delta` | `triton` |") for line in rows)
    with pytest.raises(ValueError, match="times: begin"):
        tables.replace(kept, "times", "no marks there")


def test_a_case_in_which_backends_are_missing_still_has_its_row():
    times = {"eager_s": {"median": 2e-6}, "host_s": 3e-6, "bytes_per_s": 1e9, "flops_per_s": 1e12}
    common = {"op": "kda", "phase": "decode", "held_out": False, "floor_s": 1e-6, "flops": 0}
    common |= {"auto": {"backend": "one", "because": ""}}
    found = {
        "one": {"kind": "backend", **times},
        "other": {"kind": "backend", **times},
        "a peer": {"kind": "peer", **times},
    }
    about = {"device": "none", "date": "", "versions": {}, "copy_bytes_per_s": 1, "matmul_flops_per_s": 1}
    results = [
        {**common, "shape": shape, "times": {name: found[name] for name in names}}
        for shape, names in (("B=1", found), ("B=32", ["other"]), ("B=256", ["a peer"]))
    ]
    lines = tables.times({"runs": [{**about, "results": results}]}).splitlines()
    assert lines[-3:] == [
        "| B=1 | 1 | 1.0 | **2.0 (eager) (2.00)** | **2.0 (eager) (2.00)** | `one` (1.00) | 1 GB/s "
        "| 3.0 / 3.0 | 2.0 (eager) |",
        "| B=32 | 1 | 1.0 |  | **2.0 (eager) (2.00)** | `one` | 1 GB/s | - / 3.0 |  |",
        "| B=256 | 1 | 1.0 |  |  | `one` |  | - / - | 2.0 (eager) |",
    ]


def test_a_tuned_batch_that_a_backend_failed_still_has_its_row():
    samples = [
        {"rows": 2048, "length": 1024, "nanoseconds": {"triton": 2010, "flashqla": 2000}},
        {"rows": 8192, "length": 8192, "nanoseconds": {"flashqla": 3000}},
        {"rows": 32768, "length": 32768, "nanoseconds": {}},
    ]
    found = {"op": "gated_delta", "phase": "prefill", "no_decay": False, "samples": samples}
    found |= {"head_size": [128, 128], "heads": [16, 32]}
    found["ways"] = {"flashqla": "queued", "triton": "graph", "torch": "queued"}
    machine = {"device": {"name": "none"}, "packages": {}, "measurements": [found]}
    lines = tables.tuned({"machines": [machine]}).splitlines()
    assert lines[2] == "### `gated_delta`, prefill, 16 and 32 heads of 128"
    assert lines[-3:] == [
        "| 2,048 | 1,024 | 2.0 | 2.0 | `triton` |",
        "| 8,192 | 8,192 |  | 3.0 | `flashqla` |",
        "| 32,768 | 32,768 |  |  |  |",
    ]


def test_plain_torch_is_in_a_tuned_table_where_it_is_the_fastest_of_a_batch():
    samples = [
        {"rows": 64, "length": 32, "nanoseconds": {"triton": 1000, "torch": 9000}},
        {"rows": 512, "length": 256, "nanoseconds": {"triton": 2000, "torch": 1900}},
    ]
    found = {"op": "attention", "phase": "prefill", "no_decay": False, "samples": samples}
    found |= {"head_size": [64, 64], "heads": [8, 2], "ways": {"triton": "graph", "torch": "queued"}}
    machine = {"device": {"name": "none"}, "packages": {}, "measurements": [found]}
    assert tables.tuned({"machines": [machine]}).splitlines()[-4:] == [
        "| rows | attended | `triton` | `torch` | `auto` |",
        "| --- | --- | --- | --- | --- |",
        "| 64 | 32 | 1.0 | 9.0 | `triton` |",
        "| 512 | 256 | 2.0 | 1.9 | `torch` |",
    ]


def test_a_decode_without_a_graph_is_compared_eagerly():
    common = {"kind": "backend", "host_s": 3e-6, "bytes_per_s": 1e9, "flops_per_s": 0}
    found = {
        "one": {**common, "way": "graph", "graph_s": {"median": 3e-6}, "eager_s": {"median": 9e-6}},
        "two": {**common, "way": "eager", "graph_s": {"median": 2e-6}, "eager_s": {"median": 6e-6}},
    }
    result = {"op": "kda", "phase": "decode", "shape": "B=1", "held_out": False, "floor_s": 1e-6, "flops": 0}
    result |= {"times": found, "auto": {"backend": "two", "because": ""}}
    about = {"device": "none", "date": "", "versions": {}, "copy_bytes_per_s": 1, "matmul_flops_per_s": 1}
    lines = tables.times({"runs": [{**about, "results": [result]}]}).splitlines()
    assert lines[-1] == (
        "| B=1 | 1 | 1.0 | **3.0 (3.00)** | 2.0 (2.00), called 6.0 | `two` (2.00) | 1 GB/s | 3.0 / 3.0 |"
    )


@pytest.mark.parametrize("only", [(), ("triton",)])
@pytest.mark.parametrize("chosen", ["torch", "triton"])
def test_on_a_gpu_plain_torch_is_timed_where_auto_chose_it(monkeypatch, chosen, only):
    runtime = switchrail.Runtime()
    runtime.discover()
    runtime.load()
    backends = Backends(runtime, SimpleNamespace(kind="cuda"), torch.bfloat16, only)
    monkeypatch.setattr(Backends, "auto", lambda self, case: (chosen, ""))
    monkeypatch.setattr(Backends, "build", lambda self, op, name: name)
    monkeypatch.setattr(runtime, "resolve", lambda *args, **kwargs: None)
    case = next(iter(cases("attention")))
    found, _ = backends.fitting(case)
    assert ("torch" in found) == (chosen == "torch" and not only)
    assert "triton" in found


def test_auto_is_the_backend_of_a_cases_class(monkeypatch, tmp_path):
    def samples(**times):
        loads = [(32768, 32), (32768, 1024), (32768, 8192), (32768, 32768)]
        return [
            {"rows": rows, "length": length, "nanoseconds": dict(zip(times, each, strict=True))}
            for (rows, length), *each in zip(loads, *times.values(), strict=True)
        ]

    common = {"op": "gated_delta", "phase": "prefill", "dtype": "float32", "ways": {}, "left_out": {}}
    common |= {"head_size": [128, 128], "heads": [16, 32]}
    decaying = samples(long=[400, 400, 200, 200], short=[100, 100, 300, 300], torch=[900] * 4)
    constant = samples(long=[300] * 4, short=[100] * 4, torch=[900] * 4)
    monkeypatch.setenv("SWITCHRAIL_TIMES", str(tmp_path / "times.json"))
    with isolated() as runtime:
        for name in ("long", "short"):
            runtime.register(name, TorchGatedDelta, op="gated_delta")
        platform = runtime.find_platform("cpu")
        found = {"device": device_of(platform), "packages": {}, "measurements": []}
        for no_decay, times in ((False, decaying), (True, constant)):
            found["measurements"].append({**common, "no_decay": no_decay, "samples": times})
        write_machine(times_path(), found, runtime._loader.installed().packages)
        backends = Backends(runtime, platform, torch.float32)
        chosen = {
            case.name: backends.auto(case)[0] for case in cases("gated_delta") if case.phase == "prefill"
        }
    assert chosen["T=32768 N=1"] == chosen["28672 + 4096"] == chosen["30000 + 64 of 32"] == "long"
    assert chosen["T=32768 N=16"] == chosen["T=32768 N=1 g=0"] == chosen["T=8192 N=8"] == "short"


def test_the_figures_are_drawn_the_same_each_time(kept, tmp_path):
    pytest.importorskip("matplotlib")
    assert main(["--no-run", "--json", str(kept), "--plot", str(tmp_path / "a")]) == 0
    again = plots.draw(document.read(kept), tmp_path / "b")
    assert [path.name for path in again] == ["prefill.svg", "decode.svg", "attention.svg"]
    for path in again:
        assert path.read_bytes() == (tmp_path / "a" / path.name).read_bytes()
        text = "".join(ElementTree.parse(path).getroot().itertext())
        assert "time over the floor" in text


def test_calls_of_all_cases_have_the_shapes_of_the_case_and_fulfil_the_contract():
    for op in OPS:
        for case in map(tiny, cases(op)):
            call = make_call(case, torch.device("cpu"), torch.float32)
            call.contract.check(call.phase, call.made, call.batch)
            assert {name for name, t in call.tensors.items() if t is not None} == set(case.shapes)
            assert all(tuple(call.tensors[name].shape) == shape for name, (shape, _) in case.shapes.items())
            assert list(libraries(call.out.device)) == ["torch"]
            assert peers("torch", case, call).keys() <= {"SDPA bare", "mul_ bare"}


def test_the_least_that_a_case_moves_and_computes():
    by_name = {(case.op, case.phase, case.name): case for op in OPS for case in cases(op)}
    prefill = by_name["gated_delta", "prefill", "T=32768 N=16"]
    state = 32 * 128 * 128 * 4
    assert prefill.bytes == 32768 * (2 * (2 * 16 + 2 * 32) * 128 + 32 * (4 + 2)) + 2 * 16 * state
    assert prefill.flops == 32768 * 32 * 180_224
    decode = by_name["mla", "decode", "B=32 of 8192"]
    assert decode.bytes == 32 * (8192 * 576 + 128 * (576 + 512)) * 2
    assert decode.flops == 32 * 8192 * 128 * 2 * (576 + 512)
    causal = by_name["attention", "prefill", "T=8192 N=1"]
    assert causal.flops == 8192 * 8193 / 2 * 4 * 16 * 256
    assert by_name["gated_delta", "prefill", "30000 + 64 of 32"].held_out


def test_no_two_cases_of_an_op_and_phase_have_the_same_name():
    for op in OPS:
        for names in (
            [case.name for case in cases(op) if case.phase == phase] for phase in ("prefill", "decode")
        ):
            assert len(set(names)) == len(names) > 0


@pytest.mark.parametrize(
    ("least", "most", "text"),
    [
        (None, None, "cuda"),
        ((8, 0), None, "cuda 8.0 or later"),
        (None, (9, 0), "cuda up to 9.0"),
        ((9, 0), (9, 0), "cuda 9.0"),
        ((8, 0), (9, 0), "cuda 8.0 to 9.0"),
    ],
)
def test_ranges_of_devices_show_both_limits(least, most, text):
    assert device_range({"kind": "cuda", "min_capability": least, "max_capability": most}) == text


def test_the_documents_have_the_registrations_and_the_stored_times(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    page, timings = ((ROOT / "docs" / name).read_text() for name in ("kernels.md", "times.md"))
    kept = json.loads((ROOT / "docs" / "times.json").read_text())
    command = "run: python -m benchmarks.ops --no-run --json docs/times.json --docs docs "
    command += "--tuned docs/tuned.json"
    measured = json.loads((ROOT / "docs" / "tuned.json").read_text())
    assert tables.section(page, "support")[1] == support(), command
    assert tables.section(page, "timed")[1] == timed(), command
    assert tables.section(timings, "times")[1] == tables.times(kept), command
    assert tables.section(timings, "tuned")[1] == tables.tuned(measured), command
    figures = re.findall(r"\]\((plots/[\w.]+)\)", timings)
    assert figures
    assert all((ROOT / "docs" / figure).exists() for figure in figures)
