"""The commands `plugins`, `backends`, `explain` and `plan`, and their help."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from switchrail import Layout, RoutePlan
from switchrail.cli.show import ranges


def add_distribution(folder, name, entry_points, module):
    metadata = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[switchrail.plugins]\n{entry_points}\n")
    (folder / f"{name.replace('-', '_')}.py").write_text(module)


GOOD = """
def register(registry):
    registry.register("aurora", "boreal_gdn:Missing", op="gated_delta", devices=("cuda",), priority=7)
"""


@pytest.fixture
def plugins(tmp_path, monkeypatch):
    add_distribution(tmp_path, "boreal-gdn", "boreal = boreal_gdn:register", GOOD)
    add_distribution(tmp_path, "broken-gdn", "broken = broken_gdn:register", "raise OSError('no driver')")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("boreal_gdn", None)


def test_plugins(switchrail, plugins):
    done = switchrail("plugins")
    assert done.exit_code == 0, done.output
    lines = [line.split(maxsplit=5) for line in done.output.splitlines()]
    assert ["boreal", "plugin", "boreal-gdn", "1.0", "loaded"] in lines
    broken = next(line for line in lines if line[0] == "broken")
    assert broken[1:5] == ["plugin", "broken-gdn", "1.0", "failed"]
    assert "no driver" in broken[5]
    assert "broken_gdn.py:1)" in "".join(done.output.split())
    found = {plugin["name"]: plugin for plugin in json.loads(switchrail("plugins", "--json").output)}
    assert found["boreal"]["state"] == "loaded"
    assert found["broken"]["state"] == "failed"
    assert "no driver" in found["broken"]["reason"]


@pytest.mark.parametrize("arguments", [("plugins",), ("backends",), ("doctor",)])
def test_a_plugins_output_is_not_in_the_document(switchrail, plugins, arguments):
    add_distribution(plugins, "loud-gdn", "loud = loud_gdn:print", "print('hello')")
    try:
        done = switchrail(*arguments, "--json")
    finally:
        sys.modules.pop("loud_gdn", None)
    json.loads(done.stdout)
    assert "hello" in done.stderr


LOUD = """
import ctypes, os

def say(text):
    os.write(1, f"{text} to the file\\n".encode())
    ctypes.CDLL(None).puts(f"{text} in C".encode())
    os.system(f"echo {text} in a process")

def register(registry):
    say("registered")
    registry.register("loud", "loud_backend:Loud", op="short_conv", dtypes=("float32",))

say("imported")
"""
LOUD_BACKEND = """
from loud_gdn import say
from switchrail.ops.short_conv.torch import TorchShortConv

class Loud(TorchShortConv):
    def run(self, call, batch, plan):
        say("called")
        return super().run(call, batch, plan)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="ctypes.CDLL(None) needs POSIX")
@pytest.mark.parametrize(
    "arguments",
    [
        ("plugins",),
        ("backends",),
        ("doctor",),
        ("explain", "CHECKPOINT", "--device", "cpu"),
        ("check-backend", "loud", "--device", "cpu", "-k", "float32/one-token"),
    ],
)
def test_a_plugins_output_from_c_is_not_in_the_document(plugins, checkpoint, processes, arguments):
    add_distribution(plugins, "loud-gdn", "loud = loud_gdn:register", LOUD)
    (plugins / "loud_backend.py").write_text(LOUD_BACKEND)
    given = [str(checkpoint) if each == "CHECKPOINT" else each for each in arguments]
    environment = {**os.environ, "PYTHONPATH": str(plugins)}
    if arguments == ("plugins",):  # a new process also flushes C's buffers when it ends
        command = [sys.executable, "-m", "switchrail", *given, "--json"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
    else:
        done = processes.run("from switchrail.cli import main; main()", [*given, "--json"], env=environment)
    json.loads(done.stdout)
    for when in ("imported", "registered", *["called"] * (arguments[0] == "check-backend")):
        for how in ("to the file", "in C", "in a process"):
            assert f"{when} {how}\n" in done.stderr


def test_a_plugins_output_is_no_completion(plugins):
    loud = LOUD + "print('imported in Python', flush=True)\n"
    add_distribution(plugins, "loud-gdn", "loud = loud_gdn:register", loud)
    asked = {"_SWITCHRAIL_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "switchrail check-backend lo"}
    path = os.pathsep.join(filter(None, [str(plugins), os.environ.get("PYTHONPATH")]))
    # the machine may be too busy for the five seconds that a plugin has while a shell waits
    patient = "from switchrail.cli import complete, main; complete.SECONDS = 60.0; main()"
    environment = {**os.environ, **asked, "PYTHONPATH": path}
    command = [sys.executable, "-c", patient]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert '"loud"' in done.stdout
    assert "imported" not in done.stdout + done.stderr


def test_plugins_left_out(switchrail, plugins, monkeypatch):
    monkeypatch.setenv("SWITCHRAIL_PLUGINS", "boreal")
    found = {plugin["name"]: plugin["state"] for plugin in json.loads(switchrail("plugins", "--json").output)}
    assert (found["boreal"], found["broken"]) == ("loaded", "blocked")
    monkeypatch.setenv("SWITCHRAIL_PLUGINS", "boreall")
    done = switchrail("plugins")
    assert done.exit_code == 2
    assert "boreal" in done.stderr


def test_backends(switchrail, plugins):
    done = switchrail("backends")
    assert done.exit_code == 0, done.output
    rows = [line.split() for line in done.output.splitlines()]
    assert ["attention", "torch", "prefill,", "decode,", "verify", "cpu,", "cuda", "0", "switchrail"] in rows
    boreal = next(row for row in rows if row[1:2] == ["aurora"])
    assert boreal == ["gated_delta", "aurora", "prefill,", "decode", "cuda", "7", *boreal[6:]]
    assert boreal[6:] == ["plugin", '"boreal"', "of", "boreal-gdn", "1.0"]
    specs = [backend["spec"] for backend in json.loads(switchrail("backends", "--json").output)]
    assert {("attention", "reference"), ("short_conv", "torch"), ("gated_delta", "aurora")} <= {
        (spec["op"], spec["name"]) for spec in specs
    }


def test_explain(switchrail, plugins, checkpoint):
    explain = ["explain", checkpoint, "--device", "cpu"]
    done = switchrail(*explain, "--layer", 0, "--phase", "decode")
    assert done.exit_code == 0, done.output
    platform, *decisions = done.output.strip().split("\n\n")
    assert platform.startswith("platform cpu: ")
    assert [decision.split(",")[0] for decision in decisions] == ["gated_delta decode", "short_conv decode"]
    boreal = next(line for line in decisions[0].splitlines() if line.startswith("aurora"))
    assert "cpu" in boreal

    verified = switchrail(*explain, "--layer", 0, "--phase", "verify").output.strip().split("\n\n")[1:]
    assert [decision.split(",")[0] for decision in verified] == ["gated_delta verify", "short_conv verify"]

    document = json.loads(switchrail(*explain, "--json").output)
    assert list(document) == [
        "model",
        "platform",
        "layers",
        "routes",
        "capture",
        "steps",
        "drafts",
        "engines",
    ]
    assert document["steps"]["plan_chunked_prefix"] == {}
    assert document["capture"] == {"steps": [], "reason": "platform cpu has no graphs", "hooks": []}
    assert document["platform"]["kind"] == "cpu"
    assert [layer["id"] for layer in document["layers"]] == list(range(len(document["layers"])))
    served = {(r["decision"]["query"]["op"], r["decision"]["query"]["phase"]) for r in document["routes"]}
    ops = {op for layer in document["layers"] for op in layer["ops"]}
    assert served == {(op, phase) for op in ops for phase in ("prefill", "decode")}
    for route in document["routes"]:
        assert route["layers"]
        assert route["decision"]["rejected"]
        assert all(rejection["reasons"] for rejection in route["decision"]["rejected"])


def test_explain_shows_what_is_captured(switchrail, plugins, checkpoint, tmp_path):
    """`explain` lists the steps that an engine would capture, or says why there are none."""
    assert "no step is captured: platform cpu has no graphs" in switchrail("explain", checkpoint).output
    explain = ["explain", checkpoint, "--as", "cuda:9.0", "--backend", "gated_delta.decode=torch"]
    shown = " ".join(switchrail(*explain).output.partition("captured steps")[2].split())
    assert "decodes of 1, 2, 4, 8, 16, 24, 32 sequences" in shown
    assert "chosen for gated_delta.decode" in shown
    assert "1536, 2048 rows" in shown
    assert "captured" not in switchrail(*explain, "--layer", 0).output
    assert "captured" not in switchrail(*explain, "--phase", "decode").output

    steps = json.loads(switchrail(*explain, "--json").output)["capture"]["steps"]
    assert [step["kind"] for step in steps] == ["decode"] * 14 + ["mixed"] * 15
    decode, mixed = steps[0], steps[-1]
    assert (decode["rows"], decode["tokens"], decode["reason"]) == (1, 1024, None)
    assert decode["backends"].keys() == decode["because"].keys()
    assert decode["backends"]["gated_delta.decode"] == "torch"
    assert "chosen for gated_delta.decode" in decode["eager"]["gated_delta.decode"]
    ops = ("attention", "gated_delta", "short_conv")
    calls = {f"{op}.{phase}" for op in ops for phase in ("prefill", "decode")}
    assert mixed["eager"].keys() == mixed["backends"].keys() == calls


def test_plan_shows_a_backend_for_each_kind_of_layer_and_phase(switchrail, plugins, checkpoint, tmp_path):
    done = switchrail("plan", checkpoint, "--as", "cuda:9.0")
    assert done.exit_code == 0, done.output
    model, _, head = done.output.replace(", ", ",").partition("plan of kjv-qwen3-next draft 0")
    rows = [line.split(maxsplit=6) for line in model.rstrip().splitlines()[5:]]
    assert {tuple(row[:4]) for row in rows} == {
        (layers, kind, op, phase)
        for layers, kind, op in (
            ("0-2,4-6", "gated_delta", "gated_delta"),
            ("0-2,4-6", "gated_delta", "short_conv"),
            ("3,7", "full_attention", "attention"),
        )
        for phase in ("prefill", "decode")
    }
    assert next(row[4:6] for row in rows if row[2:4] == ["gated_delta", "decode"]) == ["aurora", "plugin"]
    assert {tuple(line.split()[:4]) for line in head.rstrip().splitlines()[2:]} == {
        ("0", "full_attention", "attention", phase) for phase in ("prefill", "decode")
    }
    assert "no backend was imported" in done.output


def test_plan_gives_the_document_that_another_process_reads(switchrail, plugins, checkpoint, tmp_path):
    out = tmp_path / "plan.json"
    done = switchrail("plan", checkpoint, "--as", "cuda:9.0", "--json", "--out", out, "--phase", "verify")
    assert done.exit_code == 0, done.output
    plan = RoutePlan.from_json(done.stdout)
    assert plan == RoutePlan.from_json(out.read_text())
    assert {(op, phase) for _, op, phase, _ in plan.table} == {
        (op, "verify") for op in ("attention", "gated_delta", "short_conv")
    }
    refused = switchrail("plan", checkpoint, "--device", "cpu", "--out", tmp_path)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert f"{tmp_path} can't be written" in " ".join(refused.stderr.replace("│", " ").split())


def test_explain_says_that_no_backend_was_imported(switchrail, plugins, checkpoint):
    """`explain` lists `aurora` as available although its class is missing, since it reads only the
    registration."""
    done = switchrail("explain", checkpoint, "--as", "cuda:9.0", "--layer", 0)
    assert "serves: highest priority" in done.output
    assert done.output.count("no backend was imported; `switchrail doctor` imports those") == 1


@pytest.mark.parametrize("text", ["[" * 100_000, "[]", "{", None], ids=["deep", "list", "broken", "folder"])
def test_explain_refuses_a_config_that_changed_after_its_first_reading(
    switchrail, checkpoint, tmp_path, monkeypatch, text
):
    config = tmp_path / "config.json"
    config.write_bytes((checkpoint / "config.json").read_bytes())

    def read_and_change(path):
        layout = Layout.from_config(path)
        config.unlink()
        config.mkdir() if text is None else config.write_text(text)
        return layout

    monkeypatch.setattr("switchrail.Layout", SimpleNamespace(from_config=read_and_change))
    done = switchrail("explain", config, "--device", "cpu")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(f"switchrail: {config}")


def test_explain_for_a_device_that_is_not_here(switchrail, plugins, checkpoint):
    document = json.loads(switchrail("explain", checkpoint, "--as", "cuda:9.0", "--json").output)
    assert (document["platform"]["kind"], document["platform"]["capability"]) == ("cuda", [9, 0])
    assert document["platform"]["total_memory"] is None
    queries = [route["decision"]["query"] for route in document["routes"]]
    assert {query["device"]["kind"] for query in queries} == {"cuda"}
    assert {query["page_size"] for query in queries if query["op"] == "attention"} == {64}
    chosen = {r["decision"]["chosen"]["name"] for r in document["routes"] if "chosen" in r["decision"]}
    assert chosen
    absent = switchrail("explain", checkpoint, "--device", "cuda:77")
    assert absent.exit_code == 2
    assert "there is no device 'cuda:77' here" in absent.stderr
    assert "--as cuda:9.0 plans for a device that this machine lacks" in absent.stderr
    unknown = switchrail("explain", checkpoint, "--device", "acme")
    assert "--as" not in unknown.stderr
    refused = switchrail("explain", checkpoint, "--as", "cuda")
    assert refused.exit_code == 2
    assert "describes no device" in refused.stderr
    assert switchrail("explain", checkpoint, "--as", "cuda:9.0", "--device", "cpu").exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--layer", "99"], "valid: 0 to"),
        (["--phase", "decoding"], "decode"),
        (["--backend", "linear=aurora"], "cpu"),
        (["--backend", "gated_delta.decode=troch"], "torch"),
        (["--backend", "gated_detla=torch"], "gated_delta"),
        (["--backend", "torch"], "valid: KEY=NAME"),
        (["--dtype", "float31"], "float32"),
        (["--device", "cpux"], "valid: cpu"),
    ],
)
def test_explain_refuses(switchrail, plugins, checkpoint, arguments, message):
    done = switchrail("explain", checkpoint, "--device", "cpu", *arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("switchrail: ")
    assert message in done.stderr


@pytest.mark.parametrize("command", ["run", "explain", "plan"])
def test_help_names_what_is_installed(switchrail, plugins, command):
    done = switchrail(command, "--help")
    assert done.exit_code == 0
    words = done.output.replace("│", " ").split()
    assert {"aurora,", "reference,", "auto,"} <= set(words)


def test_help_comes_also_when_loading_fails(switchrail, plugins, monkeypatch):
    monkeypatch.setenv("SWITCHRAIL_PLUGINS", "boreall")
    done = switchrail("run", "--help")
    assert done.exit_code == 0
    assert "can't be listed" in done.output


def test_imports_no_more_than_it_needs(checkpoint):
    """Help, lists and plans don't import torch and other large packages."""
    commands = [
        ["--help"],
        ["plugins"],
        ["backends", "--json"],
        ["run", "--help"],
        ["explain", str(checkpoint)],
        ["explain", str(checkpoint), "--as", "cuda:9.0"],
        ["plan", str(checkpoint)],
        ["plan", str(checkpoint), "--as", "cuda:9.0", "--json"],
    ]
    program = f"""
import sys
from switchrail.cli.app import app
from switchrail.testing import isolated
heavy = {{"torch", "numpy", "transformers", "triton", "switchrail_kernels.attention.triton"}}
for command in {commands!r}:
    with isolated():
        app(command, standalone_mode=False)
    print(command, heavy & set(sys.modules), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines() == [f"{command} set()" for command in commands]


def test_ranges():
    assert [ranges(ids) for ids in ([], [3], [0, 1, 2, 4], [0, 2, 4, 5])] == ["", "3", "0-2, 4", "0, 2, 4-5"]
