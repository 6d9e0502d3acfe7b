"""The commands `plugins --hooks` and `explain --hook`."""

import json
import sys

import pytest
from switchrail.testing import isolated

from tests.distributions import write_distribution

PLUGIN = """
def shout(result, *args, **kwargs):
    return result.upper()

def instead(text):
    return "instead"

def wait(*args, **kwargs):
    pass

def register(registry):
    registry.hook("textwrap.dedent", shout, "after", priority=4)
    registry.hook("textwrap.dedent", instead, "replace")
    registry.hook("cli_late.f", wait)
    registry.hook("cli_late.missing", wait)
"""


@pytest.fixture
def hooking(tmp_path, monkeypatch):
    write_distribution(tmp_path, "boreal-hooks", PLUGIN, plugin="boreal", version="1.5")
    (tmp_path / "cli_late.py").write_text("import functools\n@functools.lru_cache\ndef f(): return 1\n")
    (tmp_path / "cli_broken.py").write_text("1 / 0\n")
    (tmp_path / "cli_ending.py").write_text("raise SystemExit(0)\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in ("boreal_hooks", "cli_late"):
        sys.modules.pop(name, None)


def test_all_hooks(switchrail, hooking):
    done = switchrail("plugins", "--hooks")
    assert done.exit_code == 0, done.output
    lines = [line.split() for line in done.output.splitlines()]
    after = ["after", "boreal_hooks.shout", "boreal", "boreal-hooks", "1.5", "4", "runs"]
    replace = ["replace", "boreal_hooks.instead", "boreal", "boreal-hooks", "1.5", "0", "runs"]
    assert lines.index(["textwrap.dedent"]) < lines.index(replace) < lines.index(after)
    assert any(" ".join(line).endswith("waiting its module is not imported") for line in lines)
    document = json.loads(switchrail("plugins", "--hooks", "--json").output)
    assert {each["target"] for each in document} == {"cli_late.f", "cli_late.missing", "textwrap.dedent"}


def test_hooks_of_one_target(switchrail, hooking):
    done = switchrail("explain", "--hook", "textwrap.dedent", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    assert [(hook["kind"], hook["plugin"], hook["version"], hook["state"]) for hook in found["hooks"]] == [
        ("replace", "boreal", "1.5", "runs"),
        ("after", "boreal", "1.5", "runs"),
    ]


def test_a_hook_on_a_module_that_explain_imports(switchrail, hooking):
    done = switchrail("explain", "--hook", "cli_late.f")
    assert done.exit_code == 0, done.output
    assert "runs" in done.output
    assert "waiting" not in done.output


def test_bypasses_are_shown(switchrail, hooking):
    import cli_late

    with isolated() as runtime:
        runtime.hooks.add(cli_late.f.__wrapped__, lambda: None)
        done = switchrail("explain", "--hook", "cli_late.f.__wrapped__")
    assert "bypassed: calls that the lru_cache of cli_late.f answers" in done.output


def test_no_hooks(switchrail, tmp_path, monkeypatch):
    monkeypatch.setenv("SWITCHRAIL_PLUGINS", "")
    assert "has no hooks" in switchrail("explain", "--hook", "textwrap.indent").output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--hook", "textwrap.dedentt"], "nearest: dedent"),
        (["--hook", "cli_broken.f"], "cli_broken can't be imported: ZeroDivisionError"),
        (["--hook", "cli_ending.f"], "cli_ending can't be imported: SystemExit(0)"),
        (["--hook", "no_such_module_anywhere.f"], "does not exist"),
        (["--hook", "textwrap"], "not a dotted path"),
        ([], "either a checkpoint or --hook"),
        (["somewhere", "--hook", "textwrap.dedent"], "either a checkpoint or --hook"),
    ],
)
def test_explain_refuses_wrong_targets(switchrail, hooking, arguments, message):
    done = switchrail("explain", *arguments)
    assert done.exit_code == 2
    assert message in " ".join(done.stderr.split())
