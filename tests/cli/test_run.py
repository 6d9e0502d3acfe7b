"""The command `run`, and the options that `explain` and others share with it."""

import io
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from switchrail import Engine, Layout
from switchrail.cli.app import app
from switchrail.cli.run import _speak, _told
from switchrail.engine.hub import find_checkpoint
from switchrail.engine.models import MODEL_TYPES
from switchrail.engine.models.families import FAMILIES
from switchrail.engine.routes import plan_routes
from switchrail.errors import ContractError, PreferenceError, RequestError
from switchrail.ops.gated_delta.torch import TorchGatedDelta
from switchrail.testing import isolated
from typer.testing import CliRunner

from tests.distributions import write_distribution

PROMPTS = ["In the beginning", "And the king said unto"]


@pytest.fixture
def run(switchrail, checkpoint):
    def run(*arguments, tokens=6):
        return switchrail("run", checkpoint, "--device", "cpu", "--max-new-tokens", tokens, *arguments)

    return run


@pytest.fixture
def run_json(run):
    def run_json(*arguments, **options):
        done = run("--json", *arguments, **options)
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    return run_json


def test_text_and_json_say_the_same(run, run_json, tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_text(f"\n{PROMPTS[1]}\n\n", "utf-8")
    prompts = ["--prompt", PROMPTS[0], "--prompts", file]
    document = run_json(*prompts)
    assert list(document) == [
        "platform",
        "plugins",
        "routes",
        "outputs",
        "prefill_tokens_per_s",
        "decode_tokens_per_s",
    ]
    assert document["platform"]["kind"] == "cpu"
    assert all(route["backend"] == "torch" for route in document["routes"])
    assert [output["prompt"] for output in document["outputs"]] == PROMPTS
    for output in document["outputs"]:
        assert list(output) == ["prompt", "prompt_tokens", "tokens", "text", "finish_reason"]
        assert len(output["prompt_tokens"]) > 1
        assert (len(output["tokens"]), output["finish_reason"]) == (6, "length")
    assert document["prefill_tokens_per_s"] > 0
    assert document["decode_tokens_per_s"] > 0

    done = run(*prompts)
    assert done.exit_code == 0, done.output
    first, second = (output["text"] for output in document["outputs"])
    assert done.stdout == f"{first}\n\n{second}\n", "the generated text alone"
    head, told = done.stderr.split(PROMPTS[0], 1)
    assert head.startswith("platform cpu: ")
    assert "\nplugins" in head
    routes = [line.split() for line in head.split("\nroutes", 1)[1].splitlines()]
    assert ["3,", "7", "full_attention", "attention", "torch", "torch"] in routes
    assert told.startswith(f"\n{PROMPTS[1]}\n\nprefill ")
    assert "tokens/s; decode 10 tokens, " in told


def test_drafts(run, run_json):
    plain = run_json("--prompt", PROMPTS[0])
    document = run_json("--prompt", PROMPTS[0], "--draft", "ngram")
    assert document["outputs"] == plain["outputs"]
    assert set(document) - set(plain) == {"verifications", "drafted_tokens", "accepted_tokens"}
    assert {route["phase"] for route in document["routes"]} == {"prefill", "decode", "verify"}
    done = run("--prompt", PROMPTS[0], "--draft", "ngram")
    told = f"drafts: {document['accepted_tokens']} of {document['drafted_tokens']} tokens accepted, "
    assert told in done.stderr
    misspelt = run("--prompt", PROMPTS[0], "--draft", "ngramm")
    assert misspelt.exit_code == 2
    assert "; nearest: ngram; valid: ngram, mtp, a checkpoint folder, or OWNER/ngramm" in misspelt.stderr
    failed = run("--prompt", PROMPTS[0], "--draft", "")
    assert failed.exit_code == 2
    assert "draft must be None, 'ngram', 'mtp', a checkpoint or a Drafts, got ''" in failed.stderr


def test_quiet(run, run_json):
    text = run_json("--prompt", PROMPTS[0])["outputs"][0]["text"]
    done = run("--prompt", PROMPTS[0], "--quiet")
    assert (done.exit_code, done.stdout, done.stderr) == (0, f"{text}\n", "")


def test_quiet_leaves_warnings(processes, checkpoint, tmp_path):
    write_distribution(tmp_path, "ill-gdn", "raise OSError('no driver')\n", plugin="ill")
    command = ["run", checkpoint, "--device", "cpu", "--prompt", PROMPTS[0], "--max-new-tokens", 2]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    program = "from switchrail.cli import main; main()"
    quiet = processes.run(program, [*command, "--quiet"], env=environment)
    told = processes.run(program, command, env=environment)
    assert (quiet.returncode, told.returncode) == (0, 0), quiet.stderr + told.stderr
    assert quiet.stderr.splitlines() == ["plugin ill-gdn:ill failed to load: OSError: no driver"]
    assert told.stderr.count("no driver") == 1, "only in the table of plugins"


@pytest.mark.parametrize("limit", ["model", "option"])
def test_a_prompt_that_is_too_long_is_refused_before_the_weights_are_loaded(
    switchrail, checkpoint, tmp_path, limit
):
    copy = tmp_path / "copy"
    shutil.copytree(checkpoint, copy)
    (copy / "model.safetensors").unlink()
    config = tmp_path / "config.toml"
    config.write_text("[engine]\nmax_length = 100\n" if limit == "option" else "")
    words = "word " * (200 if limit == "option" else 20_000)
    done = switchrail("run", copy, "--device", "cpu", "--prompt", words, "--config", config)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "a sequence can have" in done.stderr.splitlines()[-1]
    assert "model.safetensors" not in done.stderr


@pytest.mark.parametrize("length", [True, -5, 0, 2**70])
def test_a_model_of_no_length_is_refused_as_such(switchrail, checkpoint, tmp_path, length):
    copy = tmp_path / "copy"
    shutil.copytree(checkpoint, copy)
    config = json.loads((copy / "config.json").read_text("utf-8"))
    (copy / "config.json").write_text(json.dumps(config | {"max_position_embeddings": length}), "utf-8")
    done = switchrail("run", copy, "--device", "cpu", "--prompt", "a")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "a sequence can have" not in done.stderr
    assert "max_position_embeddings" in done.stderr


def test_help_says_which_models_run(switchrail):
    told = " ".join(switchrail("run", "--help").stdout.split())
    assert f"Model types that run: {', '.join(FAMILIES)}." in told
    assert tuple(FAMILIES) == MODEL_TYPES


@pytest.fixture
def hub(checkpoint, tmp_path, monkeypatch):
    """A hub cache that has only the checkpoint, under the name acme/kjv."""
    model = tmp_path / "hub" / "models--acme--kjv"
    (model / "refs").mkdir(parents=True)
    (model / "refs" / "main").write_text("0" * 40)
    (model / "snapshots").mkdir()
    shutil.copytree(checkpoint, model / "snapshots" / ("0" * 40))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)


def test_a_model_in_the_cache_of_the_hub(switchrail, hub):
    arguments = ["--device", "cpu", "--prompt", PROMPTS[0], "--max-new-tokens", "2", "--quiet"]
    done = switchrail("run", "acme/kjv", *arguments)
    assert done.exit_code == 0, done.stderr
    assert done.stdout.strip()
    explained = switchrail("explain", "acme/kjv", "--device", "cpu", "--layer", 0)
    assert explained.exit_code == 0, explained.stderr


@pytest.mark.parametrize("command", ["run", "explain", "tune"])
def test_a_model_that_is_not_in_the_cache(switchrail, hub, command):
    more = ["--prompt", "a"] if command == "run" else []
    done = switchrail(command, "acme/other", "--device", "cpu", *more)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "`hf download acme/other` downloads it" in done.stderr
    refused = switchrail(command, "acme/other", "--device", "cpu", "--download", *more)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "acme/other can't be downloaded: " in refused.stderr
    assert "HF_HUB_OFFLINE" in refused.stderr


@pytest.mark.parametrize("command", ["run", "explain", "tune"])
@pytest.mark.parametrize("more", [[], ["--download"]])
def test_a_name_without_an_owner(switchrail, hub, command, more):
    prompt = ["--prompt", "a"] if command == "run" else []
    done = switchrail(command, "kjv", "--device", "cpu", *more, *prompt)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1] == (
        "switchrail: there is no kjv in the current folder, and on the Hugging Face hub a model's name has "
        "an owner; valid: a checkpoint folder, or OWNER/kjv"
    )


@pytest.mark.parametrize("command", ["run", "explain", "plan"])
def test_a_misspelt_folder(switchrail, checkpoint, command):
    prompt = ["--prompt", "a"] if command == "run" else []
    path = str(checkpoint)[:-1]
    done = switchrail(command, path, "--device", "cpu", *prompt)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1].startswith(
        f"switchrail: no checkpoint folder at {path}; nearest: {checkpoint.name}"
    )


def test_a_file_in_place_of_a_folder(switchrail):
    done = switchrail("run", __file__, "--device", "cpu", "--prompt", "a")
    assert done.exit_code == 2
    assert f"no checkpoint folder at {__file__}, which is a file" in done.stderr


@pytest.mark.parametrize("command", ["run", "warmup"])
def test_a_download_of_a_draft(switchrail, checkpoint, tmp_path, monkeypatch, command):
    asked = []

    def download(name, *, allow_patterns, local_files_only):
        asked.append((name, local_files_only))
        raise OSError("no route")

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    config = tmp_path / "config.toml"
    config.write_text('[engine]\ndraft = "acme/draft"\n', "utf-8")
    more = ["--prompt", "a"] if command == "run" else []
    done = switchrail(command, checkpoint, "--device", "cpu", "--config", config, "--download", *more)
    assert "acme/draft can't be downloaded: no route" in done.stderr
    assert asked == [("acme/draft", False)]


def test_a_download_that_is_allowed(hub, tmp_path, monkeypatch):
    asked = []

    def download(name, *, allow_patterns, local_files_only):
        asked.append((name, local_files_only))
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert find_checkpoint("acme/other", download=True) == tmp_path
    assert find_checkpoint("acme/other") == tmp_path
    assert asked == [("acme/other", False), ("acme/other", True)]
    (tmp_path / "acme" / "other").mkdir(parents=True)
    assert find_checkpoint("acme/other") == Path("acme/other"), "a folder comes first"
    assert find_checkpoint(tmp_path / "none") == tmp_path / "none"
    assert len(asked) == 2


@pytest.mark.parametrize("command", ["run", "explain"])
@pytest.mark.parametrize("choice", ["kda=torch", "mla.decode=reference", "gated_delta.verify=torch"])
def test_a_choice_without_effect(switchrail, checkpoint, command, choice):
    more = ["--prompt", "a"] if command == "run" else []
    done = switchrail(command, checkpoint, "--device", "cpu", "--backend", choice, *more)
    assert (done.exit_code, done.stdout) == (2, "")
    told = done.stderr.splitlines()[-1]
    assert told.startswith(f"switchrail: {choice} would have no effect: ")
    assert "runs attention, gated_delta, short_conv, in prefill and decode; valid: attention" in told


def test_a_choice_for_the_linear_ops_of_a_model_without_them():
    layout = Layout.from_kinds("dense", ["full_attention"])
    with isolated() as runtime:
        platform = runtime.find_platform("cpu")
        options = {"platform": platform, "dtype": torch.float32, "page_size": 16}
        with pytest.raises(PreferenceError, match=r"linear\.decode=torch would have no effect"):
            plan_routes(runtime, layout, preferences={"linear.decode": "torch"}, **options)
        with pytest.raises(PreferenceError, match="nearest"):
            plan_routes(runtime, layout, preferences={"liner": "torch"}, **options)


def test_explain_accepts_choices_for_phases_that_it_does_not_show(switchrail, checkpoint):
    choices = ["--backend", "gated_delta.prefill=torch", "--backend", "gated_delta=reference"]
    done = switchrail("explain", checkpoint, "--device", "cpu", "--phase", "decode", *choices)
    assert done.exit_code == 0, done.stderr


def test_explain_shows_what_the_engine_does(switchrail, checkpoint, tmp_path):
    choices = {"linear.decode": "reference", "attention": "reference"}
    config = tmp_path / "choices.toml"
    config.write_text("[engine]\npage_size = 8")
    arguments = [argument for choice in choices.items() for argument in ("--backend", "=".join(choice))]
    explain = ["explain", checkpoint, "--device", "cpu", "--config", config, "--json", *arguments]
    explained = json.loads(switchrail(*explain).stdout)["routes"]
    with isolated() as runtime:
        runtime.load()
        with Engine(
            checkpoint, runtime=runtime, device="cpu", backends=choices, options={"page_size": 8}
        ) as engine:
            routes = [route.to_dict() for route in engine.plan.routes]

    def essence(route):
        decision = route["decision"]
        rejected = [(other["backend"]["name"], other["reasons"]) for other in decision["rejected"]]
        return route["layers"], decision["query"], decision["chosen"]["name"], decision["because"], rejected

    assert [essence(route) for route in json.loads(json.dumps(routes))] == [
        essence(route) for route in explained
    ]
    assert {route["decision"]["chosen"]["name"] for route in explained} == {"torch", "reference"}


def test_sampling(run_json):
    def tokens(*arguments):
        return run_json("--prompt", PROMPTS[0], *arguments, tokens=12)["outputs"][0]["tokens"]

    greedy = tokens()
    drawn = tokens("--temperature", 2, "--seed", 7)
    assert drawn != greedy
    assert tokens("--temperature", 2, "--seed", 7) == drawn
    assert tokens("--temperature", 2, "--seed", 7, "--top-k", 1) == greedy


def test_stop(run_json):
    text = run_json("--prompt", PROMPTS[0])["outputs"][0]["text"]
    word = text.split()[1]
    output = run_json("--prompt", PROMPTS[0], "--stop", word)["outputs"][0]
    assert (output["text"], output["finish_reason"]) == (text[: text.index(word)], "stop")


def test_the_chosen_backends_are_logged_once(run, caplog, tmp_path):
    caplog.set_level(logging.INFO, "switchrail")
    config = tmp_path / "choices.toml"
    config.write_text(
        '[backends]\nlinear = "reference"\n"attention.decode" = "reference"\n[engine]\npage_size = 8\n'
    )
    done = run("--prompt", PROMPTS[0], "--config", config, "--backend", "linear.decode=torch", tokens=2)
    assert done.exit_code == 0, done.output
    logged = [record.getMessage() for record in caplog.records if record.name == "switchrail"]
    assert len(logged) == 1
    assert set(logged[0].split()) == {
        "backends:",
        "gated_delta.prefill=reference",
        "gated_delta.decode=torch",
        "attention.prefill=torch",
        "attention.decode=reference",
        "short_conv.prefill=torch",
        "short_conv.decode=torch",
    }


class Broken(TorchGatedDelta):
    """A backend that fails in its fourth call, or, with `in_plan`, in the plan of a decode step."""

    error = OSError("no such kernel")
    in_plan = False

    def run(self, call, batch, plan):
        self.calls = getattr(self, "calls", 0) + 1
        if self.calls == 4:
            raise self.error
        return super().run(call, batch, plan)

    def plan(self, phase, batch, bounds=None):
        if self.in_plan and phase == "decode":
            raise self.error
        return super().plan(phase, batch, bounds)


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize(
    ("error", "in_plan", "code", "message"),
    [
        (
            OSError("no such kernel"),
            False,
            1,
            "failed in gated_delta decode of layer 4: OSError: no such kernel (",
        ),
        (
            OSError("no such kernel"),
            True,
            1,
            "failed in planning gated_delta decode: OSError: no such kernel (",
        ),
        (
            ContractError("wrong"),
            False,
            2,
            "switchrail: wrong; backend broken failed in gated_delta decode of layer 4",
        ),
    ],
)
def test_a_backend_that_fails(checkpoint, monkeypatch, as_json, error, in_plan, code, message):
    monkeypatch.setattr(Broken, "error", error)
    monkeypatch.setattr(Broken, "in_plan", in_plan)
    command = [
        "run",
        str(checkpoint),
        "--device",
        "cpu",
        "--prompt",
        PROMPTS[0],
        "--backend",
        "linear.decode=broken",
    ]
    with isolated() as runtime:
        runtime.register("broken", Broken, op="gated_delta", phases=["decode"])
        done = CliRunner().invoke(app, [*command, *(["--json"] if as_json else [])])
    assert done.exit_code == code
    assert message in done.stderr
    assert "broken" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.output
    if not as_json:  # the error message begins on its own line
        assert done.stdout.endswith("\n")


@pytest.mark.parametrize("with_traceback", [False, True])
def test_the_error_names_the_backends_line_if_torch_fails(checkpoint, with_traceback):
    class InTorch(TorchGatedDelta):
        def run(self, call, batch, plan):
            torch.einsum("ab,bc->ac", call.q)

    command = ["run", str(checkpoint), "--device", "cpu", "--prompt", PROMPTS[0]]
    chosen = ["--backend", "linear=intorch", *(["--traceback"] if with_traceback else [])]
    with isolated() as runtime:
        runtime.register("intorch", InTorch, op="gated_delta")
        done = CliRunner().invoke(app, [*command, *chosen])
    assert done.exit_code == 1
    line = InTorch.run.__code__.co_firstlineno + 1
    told = done.stderr.splitlines()[-1]
    assert f"({__file__}:{line}" in told
    assert ("--traceback" in told) != with_traceback
    assert (f'File "{__file__}", line {line}, in run' in done.stderr) == with_traceback
    assert ("functional.py" in done.stderr) == with_traceback


def test_text_comes_in_the_order_of_the_prompts():
    """A request's text is printed as it grows, but not before all earlier requests have finished."""
    printed = io.StringIO()

    def events():
        for number, text, reason, expected in [
            (0, " x", None, "A x"),
            (1, " y", None, "A x"),
            (2, " z", "stop", "A x"),
            (0, "x", None, "A xx"),
            (0, "", "length", "A xx\n\nB y"),
            (1, "y", None, "A xx\n\nB yy"),
            (1, "!", "length", "A xx\n\nB yy!\n\nC z\n"),
        ]:
            output = SimpleNamespace(text=text)
            yield SimpleNamespace(
                request=SimpleNamespace(id=number, output=output), text=text, finish_reason=reason
            )
            assert printed.getvalue() == expected

    console = Console(file=printed, force_terminal=True, color_system=None)
    outputs = _speak(console, console, events(), ["A", "B", "C"])
    assert [output.text for output in outputs] == ["", "!", " z"]


def test_the_message_of_a_foreign_error_has_its_class():
    assert _told(RequestError("too long")) == "too long"
    assert _told(OSError("no such kernel")) == "OSError: no such kernel"


REFUSED = {
    "no prompt": ([], "valid: --prompt TEXT, --prompts FILE"),
    "no tokens": (["--prompt", ""], "no tokens"),
    "one of two": (["--prompt", PROMPTS[0], "--prompt", ""], "prompt 2 of 2 (''): the prompt has no tokens"),
    "missing file": (["--prompts", "{tmp}/none.txt"], "none.txt can't be read"),
    "not text": (["--prompts", "{tmp}/binary"], "binary can't be read"),
    "too long": (["--prompt", PROMPTS[0], "--max-new-tokens", 10**6], "1000000"),
    "too few": (["--prompt", PROMPTS[0], "--max-new-tokens", 0], "max_new_tokens"),
    "temperature": (["--prompt", PROMPTS[0], "--temperature", -1], "temperature"),
    "key": (["--prompt", PROMPTS[0], "--backend", "liner=torch"], '"linear"'),
    "backend": (["--prompt", PROMPTS[0], "--backend", "linear=troch"], '"torch"'),
    "choice": (["--prompt", PROMPTS[0], "--backend", "=torch"], "valid: KEY=NAME"),
    "dtype": (["--prompt", PROMPTS[0], "--dtype", "bfloat61"], "nearest: bfloat16"),
    "device": (["--prompt", PROMPTS[0], "--device", "cuda:99"], "valid: cpu"),
    "config": (["--prompt", PROMPTS[0], "--config", "{tmp}/none.toml"], "none.toml can't be read"),
    "toml": (["--prompt", PROMPTS[0], "--config", "{tmp}/broken.toml"], "broken.toml can't be read"),
    "table": (["--prompt", PROMPTS[0], "--config", "{tmp}/table.toml"], "nearest: backends"),
    "no table": (
        ["--prompt", PROMPTS[0], "--config", "{tmp}/flat.toml"],
        "config.gated_delta; valid: a table",
    ),
    "no name": (["--prompt", PROMPTS[0], "--config", "{tmp}/number.toml"], "backends.linear; valid: a name"),
    "no quotes": (["--prompt", PROMPTS[0], "--config", "{tmp}/dots.toml"], 'such as "linear.decode" ='),
    "option": (["--prompt", PROMPTS[0], "--config", "{tmp}/engine.toml"], "page_size"),
    "configured": (["--prompt", PROMPTS[0], "--config", "{tmp}/unknown.toml"], "acme"),
    "no configuration": (["--prompt", PROMPTS[0], "--config", "{tmp}/values.toml"], "takes no configuration"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(run, tmp_path, case):
    (tmp_path / "binary").write_bytes(b"\xff\xfe\xff")
    for name, text in {
        "broken": "[backends",
        "table": "[backend]",
        "flat": "[config]\ngated_delta = 3",
        "number": "[backends]\nlinear = 3",
        "dots": '[backends]\nlinear.decode = "torch"',
        "engine": "[engine]\npage_sise = 8",
        "unknown": "[config.gated_delta.acme]\nscale = 1",
        "values": "[config.gated_delta.torch]\nscale = 1",
    }.items():
        (tmp_path / f"{name}.toml").write_text(text)
    arguments, message = REFUSED[case]
    done = run(*(str(argument).format(tmp=tmp_path) for argument in arguments))
    assert done.exit_code == 2
    assert PROMPTS[0] not in done.stdout
    assert done.stderr.splitlines()[-1].startswith("switchrail: ")
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("broken", ["folder", "config.json", "model.safetensors", "model_type"])
def test_refused_checkpoints(switchrail, checkpoint, tmp_path, broken):
    copy = tmp_path / "copy"
    shutil.copytree(checkpoint, copy)
    if broken == "folder":
        shutil.rmtree(copy)
    elif broken == "config.json":
        (copy / broken).unlink()
    elif broken == "model.safetensors":
        (copy / broken).write_bytes((copy / broken).read_bytes()[:1000])
    else:
        config = json.loads((copy / "config.json").read_text("utf-8"))
        (copy / "config.json").write_text(json.dumps({**config, "model_type": "qwen3_nxt"}), "utf-8")
    done = switchrail("run", copy, "--device", "cpu", "--prompt", "a")
    assert (done.exit_code, done.stdout) == (2, "")
    assert str(copy) in done.stderr
    assert {"model_type": "qwen3_next"}.get(broken, broken if "." in broken else "") in done.stderr


def test_interrupt(checkpoint):
    program = "from switchrail.cli import main; main()"
    command = ["run", checkpoint, "--device", "cpu", "--prompt", PROMPTS[0], "--max-new-tokens", 1500]
    process = subprocess.Popen(
        [sys.executable, "-c", program, *map(str, command), "--ignore-eos"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            assert process.stdout.read(1), process.stderr.read()  # the first text has begun
            process.send_signal(signal.SIGINT)
            rest, errors = process.communicate()
        finally:
            process.kill()  # in case the interrupt did not end it
    assert process.returncode == 130
    assert rest.endswith("\n")  # a line end, so that messages on the same terminal begin on their own line
    told, interrupted = errors.splitlines()[-2:]  # no traceback; no progress bar without a terminal
    assert told == PROMPTS[0]
    assert interrupted == "switchrail: interrupted"
