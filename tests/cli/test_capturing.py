"""The progress bar while an engine's steps are captured."""

import io

import pytest
from rich.console import Console
from switchrail.cli.capturing import capturing


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_bar_on_a_terminal_alone(is_terminal):
    out = io.StringIO()
    with capturing(Console(file=out, force_terminal=is_terminal, width=100)) as show:
        for done in range(4):
            show(done, 3)
            show(done, 3)
    assert ("capturing steps" in out.getvalue()) is is_terminal
    assert ("3/3" in out.getvalue()) is is_terminal


def test_nothing_is_shown_where_nothing_is_captured():
    out = io.StringIO()
    with capturing(Console(file=out, force_terminal=True, width=100)):
        pass
    assert "capturing" not in out.getvalue()
