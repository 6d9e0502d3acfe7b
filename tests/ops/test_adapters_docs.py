"""The program in docs/adapters.md prints the documented output, and the table there lists all features."""

import contextlib
import io
import re
from pathlib import Path

from switchrail.adapters import ADAPTED
from switchrail.ops.samples.engine import FORMS

PAGE = (Path(__file__).parents[2] / "docs" / "adapters.md").read_text()


def test_the_program_prints_what_the_page_shows():
    program = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)[1]
    shown = re.search(r"```text\n(.*?)```", PAGE, re.DOTALL)[1]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(program, {})
    assert printed.getvalue() == shown


def test_the_table_has_every_feature():
    for feature in FORMS.keys() | ADAPTED.keys() - {"raw_gates"}:
        assert f"| `{feature}` |" in PAGE
