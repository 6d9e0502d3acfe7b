"""The `switchrail` command: version, help, completion, imports, plain messages, and a closed output."""

import os
import subprocess
import sys
from functools import partial
from importlib import metadata

import pytest
from switchrail import Runtime
from switchrail.cli import complete
from switchrail.cli.app import COMMANDS
from switchrail.testing import isolated
from switchrail.waiting import PATIENCE

from tests.distributions import write_distribution

PROGRAM = "from switchrail.cli import main; main()"


@pytest.fixture
def offered(processes):
    """Returns a function that completes the last of some words, and returns the output for zsh."""
    return partial(_offered, processes)


def _offered(processes, *words, **environment):
    told = {"_SWITCHRAIL_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": " ".join(["switchrail", *words])}
    done = processes.run(PROGRAM, env=os.environ | told | environment)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_the_version_is_the_installed_one(switchrail):
    version = metadata.version("switchrail")
    assert sys.modules["switchrail"].__version__ == version
    done = switchrail("--version")
    assert (done.exit_code, done.stdout) == (0, f"switchrail {version}\n")


def test_every_command_is_listed_and_has_help(switchrail):
    done = switchrail("--help")
    assert done.exit_code == 0
    for name in COMMANDS:
        assert f"  {name} " in done.stdout
        assert switchrail(name, "--help").stdout.startswith(f"Usage: switchrail {name} ")


@pytest.mark.parametrize("command", ["check-backend", "tune"])
def test_help_that_fits_the_command(switchrail, command):
    told = switchrail(command, "--help").stdout
    assert "to plan" not in told
    assert "list[" not in told
    assert " --op OP " in told
    assert ("NAME" if command == "check-backend" else "[CHECKPOINT]") in told.splitlines()[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plugin"], "No such command 'plugin'. Did you mean 'plugins'"),
        (["plugins", "--jsn"], "No such option: --jsn"),
        (["check-backend"], "Missing argument 'NAME'"),
    ],
)
def test_misuse_gives_a_plain_message(switchrail, arguments, message):
    done = switchrail(*arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.isascii(), "the message is in a box"
    assert message in done.stderr.splitlines()[-1]


def test_commands_and_values_are_completed(offered):
    assert {"plugins", "explain"} <= set(offered("").replace('"', " ").split())
    backends = offered("run", "somewhere", "--backend", "linear.decode=")
    assert "linear.decode=torch" in backends
    assert "linear.decode=auto" in backends
    assert "attention.prefill=" in offered("explain", "somewhere", "--backend", "attention.")
    assert "decode" in offered("explain", "--phase", "de")
    assert "bfloat16" in offered("run", "--dtype", "bf")
    assert "cuda" in offered("run", "--device", "cu")
    assert "gated_delta" in offered("new-plugin", "acme", "--op", "gated")
    assert "reference" in offered("check-backend", "ref")


def test_completion_stays_silent_where_plugins_cannot_be_loaded(offered):
    assert "torch" not in offered("check-backend", "t", SWITCHRAIL_PLUGINS="no-such-plugin")


def test_completion_waits_less_long_for_plugins_than_a_command(monkeypatch):
    given = []
    with isolated():
        monkeypatch.setattr(Runtime, "load", lambda self, **options: given.append(options))
        assert "reference" in complete.backend_names()
    assert given == [{"timeout": complete.SECONDS}]
    assert complete.SECONDS < PATIENCE


@pytest.mark.parametrize(
    ("words", "key", "left"),
    [
        (["switchrail", "run", "x", "--backend", "linear", "=", "tri"], "linear", ["--backend", "tri"]),
        (["switchrail", "run", "x", "--backend", "linear", "="], "linear", ["--backend", ""]),
        (["switchrail", "run", "x", "--backend", "=", "linear", "=", "t"], "linear", ["--backend", "t"]),
        (["switchrail", "run", "x", "--device", "=", "cp"], "", ["--device", "cp"]),
        (["switchrail", "run", "x", "--dtype", "=", "f", "--device", "c"], "", ["--device", "c"]),
        (["switchrail", "run", "x", "--backend", ""], "", ["--backend", ""]),
    ],
)
def test_bash_cuts_words_at_equals_signs(monkeypatch, words, key, left):
    monkeypatch.setattr(complete, "_key", "")
    environment = {"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1)}
    complete.join_words(environment)
    assert complete._key == key
    found = environment["COMP_WORDS"].split("\n")
    assert found[-2:] == left
    assert environment["COMP_CWORD"] == str(len(found) - 1)
    if key:
        with isolated():
            assert "torch" in complete.backend_choices(left[-1])
            assert all("=" not in name for name in complete.backend_choices(left[-1]))


def test_the_completion_script_for_bash(switchrail, monkeypatch):
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "--show-completion", "bash"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "_SWITCHRAIL_COMPLETE=complete_bash" in done.stdout


@pytest.mark.parametrize("arguments", [["plugins"], ["plugins", "--json"], ["--version"], ["--help"]])
def test_cheap_commands_import_little(tmp_path, arguments):
    """`plugins` also asks an installed platform plugin, which declines."""
    declining = "def activate(): pass\n"
    write_distribution(tmp_path, "acme-platform", declining, plugin="acme", entry="platforms:activate")
    program = f"""
import sys, typer
before = set(sys.modules)
from switchrail.cli.app import app
app({arguments!r}, standalone_mode=False)
heavy = {{"torch", "transformers", "numpy", "pydantic", "safetensors"}}
if {arguments!r} == ["--version"]: heavy = {{"torch", "rich", "switchrail.runtime"}}
print(sorted(heavy & (set(sys.modules) - before)), file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == "[]\n"
    if arguments == ["plugins"]:
        assert "it declines" in done.stdout


@pytest.mark.parametrize(
    ("command", "arguments", "problem"),
    [
        ("run", ["--prompt", "hi", "--backend", "gated_delta=trch"], "unknown backend"),
        ("run", ["--prompt", "hi", "--backend", "gated_dleta=torch"], "gated_dleta"),
        ("run", ["--prompt", "hi", "--dtype", "float17"], "unknown dtype"),
        ("run", ["--prompt", "hi", "--temperature", "-1"], "temperature"),
        ("run", ["--prompt", "hi", "--draft", "ngramm"], "nearest: ngram"),
        ("warmup", ["--backend", "gated_delta=trch"], "unknown backend"),
        ("warmup", ["--dtype", "float17"], "unknown dtype"),
    ],
)
def test_wrong_arguments_are_refused_before_torch_is_imported(checkpoint, command, arguments, problem):
    program = f"""
import sys
from switchrail.cli.app import main
sys.argv = {["switchrail", command, str(checkpoint), *arguments]!r}
try:
    main()
except SystemExit as end:
    assert end.code == 2
print(sorted({{"torch", "transformers"}} & sys.modules.keys()))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    assert problem in done.stderr


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["plugins"], ["plugins", "--json"], ["explain", "{checkpoint}"]]
)
def test_a_closed_output_ends_the_command(checkpoint, arguments):
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *(word.format(checkpoint=checkpoint) for word in arguments)],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize("command", ["plugins", "doctor"])
def test_one_line_for_a_plugin_that_fails(processes, tmp_path, command):
    write_distribution(tmp_path, "ill-gdn", "raise OSError('no driver')\n", plugin="ill")
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = processes.run(PROGRAM, [command], env=environment)
    assert (done.stdout + done.stderr).count("no driver") == 1, done.stderr
    listed = processes.run(PROGRAM, ["backends"], env=environment)
    assert listed.stderr.count("no driver") == 1, "a command without the plugins' table logs it"
