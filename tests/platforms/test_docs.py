from __future__ import annotations

import re
from pathlib import Path

import pytest
import switchrail
from switchrail.platforms import KINDS, OPERATIONS, Serving

DOCUMENT = (Path(__file__).parents[2] / "docs" / "platforms.md").read_text("utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```", DOCUMENT, re.M | re.S)


@pytest.mark.parametrize("index", range(2))
def test_an_example_runs(index: int, runtime: switchrail.Runtime, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(EXAMPLES) == 2
    exec(compile(EXAMPLES[index], f"example {index + 1}", "exec"), {"__name__": "example"})
    if index == 0:
        assert re.search(r"^\d+ bytes are free$", capsys.readouterr().out, re.M)


def test_the_tables_are_complete() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `", DOCUMENT, re.M)
    assert rows[: len(KINDS)] == list(KINDS)
    own = {name for name in vars(Serving) if not name.startswith("_")} - {"register_oot_forward"}
    assert own == {name for name in own if re.search(rf"^\|.*`{name}[`(]", DOCUMENT, re.M)}
    assert all(f"`{name}`" in DOCUMENT for name in OPERATIONS)
