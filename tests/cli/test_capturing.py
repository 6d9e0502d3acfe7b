"""The progress bar while an engine's steps are captured."""

import io

import pytest
from rich.console import Console
from switchrail.cli.capturing import capturing


class Terminal(io.StringIO):
    """A file in memory that counts as a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("file", [Terminal, io.StringIO])
@pytest.mark.parametrize("forced", [False, True])
def test_a_bar_on_a_terminal_alone(file, forced, monkeypatch):
    """Even with `FORCE_COLOR`, a log gets no bar, since the bar's frames would fill it."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("TTY_COMPATIBLE", raising=False)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    if forced:
        monkeypatch.setenv("FORCE_COLOR", "1")
    out = file()
    with capturing(Console(file=out, width=100)) as show:
        for done in range(4):
            show(done, 3)
            show(done, 3)
    assert ("capturing steps" in out.getvalue()) is out.isatty()
    assert ("3/3" in out.getvalue()) is out.isatty()
    assert out.isatty() or not out.getvalue()


def test_nothing_is_shown_where_nothing_is_captured():
    out = Terminal()
    with capturing(Console(file=out, force_terminal=True, width=100)):
        pass
    assert "capturing" not in out.getvalue()
