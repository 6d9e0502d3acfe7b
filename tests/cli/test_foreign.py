"""On a terminal, commands escape and shorten texts of plugins, models and users. JSON keeps them whole."""

import io
import json
import os
import pty
import re
import select
import time
from types import SimpleNamespace

import pytest
from rich.console import Console
from switchrail.cli.run import _speak
from switchrail.errors import SwitchrailError
from switchrail.foreign import LINE, LINES, escaped, in_lines, json_escaped, one_line
from switchrail.lock import write_lock

BAD = "\x1b]0;title\x07\x1b[8;9H\x08\x9b7m\u061c\u200e\u200f\u202e\u2066\u2028[bold][link=x]"
"""Control characters and markup, without \\n and \\r, which metadata can't contain."""

WORSE = BAD + "\roverwritten\nanother line\x7f"

# Control sequences of Rich itself: for colours, for the cursor, and to erase lines.
OF_RICH = re.compile(r"\x1b\[[0-9;]*m|\x1b\[\?25[lh]|\x1b\[1A|\x1b\[2K|\r+(?=\n|\x1b|$)")
CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


@pytest.mark.parametrize("show", [one_line, in_lines, escaped])
def test_control_characters_are_escaped(show):
    assert show("a\x1b[2K\x07\r\x7f\x9b\u202e\u2028\udcff [b]é́👩‍🔬") == (
        r"a\x1b[2K\x07\r\x7f\x9b\u202e\u2028\udcff [b]é́👩‍🔬"
    )
    assert show("one\ttwo\n") == (r"one\ttwo\n" if show is one_line else "one\ttwo\n")


@pytest.mark.parametrize(("show", "limit"), [(one_line, LINE), (in_lines, LINES)])
@pytest.mark.parametrize("character", ["x", "\x1b", "\u202e", "\n"])
def test_long_texts_are_cut(show, limit, character):
    whole = character * (limit // 10)
    assert "more characters" not in show(whole)
    text = show(character * 5_000_000)
    assert len(text) <= limit
    kept, more = re.fullmatch(r"(.*)… \(([0-9,]+) more characters\)", text, re.DOTALL).groups()
    assert kept == show(character) * kept.count(show(character))
    assert kept.count(show(character)) + int(more.replace(",", "")) == 5_000_000
    assert show(text) == text


def test_messages_of_errors_are_escaped_and_shortened():
    error = SwitchrailError(f"no such thing: {WORSE}", found=WORSE)
    assert str(error) == error.message == f"no such thing: {in_lines(WORSE)}"
    assert error.found == WORSE
    assert len(str(SwitchrailError("x" * 50_000_000))) <= LINES


def test_json_is_exact():
    document = {WORSE: [WORSE, "\udcff\x85é"]}
    text = json_escaped(json.dumps(document, indent=2, ensure_ascii=False))
    assert json.loads(text) == document
    assert not CONTROL.search(text)
    assert "é" in text


@pytest.mark.parametrize("is_terminal", [True, False])
def test_text_of_a_model_is_escaped_on_terminals_only(is_terminal):
    request = SimpleNamespace(id=0, output="the output")
    events = [SimpleNamespace(request=request, text=WORSE, finish_reason="length")]
    out, told = (Console(file=io.StringIO(), force_terminal=is_terminal, width=500) for _ in range(2))
    _speak(out, told, iter(events), ["prompt\x1b[2K"])
    said, prompt = out.file.getvalue(), told.file.getvalue()
    if is_terminal:
        assert not CONTROL.search(OF_RICH.sub("", said))
        assert escaped(WORSE) in said
        assert r"prompt\x1b[2K" in prompt
    else:
        assert (said, prompt) == (f"{WORSE}\n", "prompt\x1b[2K\n")


PLUGIN = f"""
import switchrail
BAD = {BAD!r}

def report(*args, **options): pass
report.__qualname__ = report.__name__ = "report" + BAD

class Backend:
    pass

def register(registry):
    registry.register("acme", "acme_b:Missing" + BAD, op="kda", devices=["cpu"])
    registry.hook("acme_target.greet", report, "after")
    registry.hook("acme_target.nothing", report)
"""


@pytest.fixture
def site(tmp_path):
    """Distributions with hostile metadata, texts and exceptions."""

    def install(module, code, *, name=None, version="1.0", plugin="acme", group="plugins"):
        info = tmp_path / "site" / f"{module}-1.0.dist-info"
        info.mkdir(parents=True)
        (info.parent / f"{module}.py").write_text(code, "utf-8")
        distribution = name or module.replace("_", "-")
        write(
            info / "METADATA",
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\nSummary: {BAD}\n",
        )
        write(info / "RECORD", f"{module}.py,,\n")
        write(info / "entry_points.txt", f"[switchrail.{group}]\n{plugin} = {module}:register\n")

    def write(path, text):
        path.write_bytes(text.encode())

    bad = BAD.replace("[", "(").replace("]", ")")  # `extra` in brackets is part of an entry point
    install("acme_a", f"raise OSError({WORSE!r})", name=f"acme-a{BAD}", version=f"1.0{BAD}", plugin=f"a{bad}")
    install("acme_b", PLUGIN, version=f"2.0{BAD}", plugin=f"b{bad}")
    install("acme_c", "raise OSError('y' * 50_000_000)")
    install("acme_d", "def register(registry): pass", name=f"acme-d{BAD}", group="plugin")
    install("acme_p", f"def register(): raise OSError({WORSE!r})", plugin=f"p{bad}", group="platforms")
    (tmp_path / "site" / "acme_target.py").write_text(f"def greet(): return 1\ngreet.text = {BAD!r}\n")
    return tmp_path / "site"


def in_a_terminal(processes, arguments, environment, folder):
    """Run the command on a terminal and return its output there."""
    ours, theirs = pty.openpty()
    try:
        processes.start(
            "from switchrail.cli import main; main()",
            arguments,
            streams=(theirs, theirs, theirs),
            env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "400", **environment},
            cwd=folder,
        )
        os.close(theirs)
        shown, end = b"", time.monotonic() + 240
        while time.monotonic() < end:
            if select.select([ours], [], [], 1)[0]:
                try:
                    read = os.read(ours, 65536)
                except OSError:  # the process has closed its end of the terminal
                    break
                if not read:
                    break
                shown += read
        return shown.decode()
    finally:
        os.close(ours)
        processes.wait()


COMMANDS = {
    "plugins": ["plugins"],
    "plugins in JSON": ["plugins", "--json"],
    "hooks": ["plugins", "--hooks"],
    "backends": ["backends"],
    "doctor": ["doctor"],
    "lock": ["lock"],
    "a lock that differs": ["lock", "--check", "-o", "{lock}"],
    "explain": ["explain", "{checkpoint}", "--device", "cpu"],
    "explain a hook": ["explain", "--hook", "acme_target.greet"],
    "explain a hook that is not there": ["explain", "--hook", f"acme_target.gone{BAD}"],
    "a platform that fails": ["explain", "{checkpoint}"],
    "a model that is not known": ["explain", "{hostile}", "--device", "cpu"],
    "run": ["run", "{checkpoint}", "--device", "cpu", "--prompt", f"In the{BAD}", "--max-new-tokens", "2"],
    "help": ["run", "--help"],
    "check-backend": ["check-backend", "acme", "--quick", "--device", "cpu"],
    "a backend that is not there": ["check-backend", f"acme{BAD}"],
}


SHOW_BLOCKED = ("plugins", "doctor", "backends", "a platform that fails")


@pytest.mark.parametrize(
    ("name", "is_locked"),
    [*((name, False) for name in COMMANDS), *((name, True) for name in SHOW_BLOCKED)],
)
def test_no_command_prints_control_characters(processes, site, tmp_path, checkpoint, name, is_locked):
    (tmp_path / "hostile").mkdir()
    config = {"model_type": f"acme{WORSE}", "architectures": [BAD]}
    (tmp_path / "hostile" / "config.json").write_text(json.dumps(config))
    lock = tmp_path / "lock.json"
    write_lock(lock)  # without the hostile distributions, which are not on this process's `sys.path`
    places = {"{checkpoint}": checkpoint, "{hostile}": tmp_path / "hostile", "{lock}": lock}
    arguments = [places.get(argument, argument) for argument in COMMANDS[name]]
    environment = {"PYTHONPATH": str(site)} | ({"SWITCHRAIL_LOCK": str(lock)} if is_locked else {})
    shown = in_a_terminal(processes, arguments, environment, tmp_path)
    left = CONTROL.search(OF_RICH.sub("", shown))
    assert left is None, (left, shown)
    assert "\roverwritten" not in shown
    assert len(shown) < 300_000
    if name in ("plugins", "hooks", "doctor"):
        assert r"\x1b]0;title\x07" in shown
        assert "[bold][link=x]" in shown
    if name == "plugins" and not is_locked:
        assert "more characters)" in shown
        assert "\nanother line" not in shown
