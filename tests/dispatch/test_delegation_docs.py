"""The example of docs/delegation.md prints what the document says, and its table lists every step."""

import re
from pathlib import Path

from switchrail.ops.steps import STEPS

TEXT = (Path(__file__).parents[2] / "docs" / "delegation.md").read_text("utf-8")


def test_the_example(capsys) -> None:
    code, printed = re.findall(r"```(?:python|text)\n(.*?)```", TEXT, re.DOTALL)
    exec(compile(code, "docs/delegation.md", "exec"), {"__name__": "delegation"})
    assert capsys.readouterr().out == printed


def test_the_table_lists_every_step() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([`\w, ]*) ?\| ", TEXT, re.MULTILINE)
    listed = {name: tuple(re.findall(r"`(\w+)`", arguments)) for name, arguments in rows if name in STEPS}
    assert listed == {step.name: step.arguments for step in STEPS.values()}
