import re
from pathlib import Path

import pytest

DOCUMENT = Path(__file__).parents[2] / "docs" / "hooks.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```", DOCUMENT.read_text(), re.DOTALL | re.MULTILINE)


def test_there_are_examples():
    assert len(EXAMPLES) == 7


NAMES = ["changes", "nesting", "no import", "replaced class", "generics", "order", "what runs"]


@pytest.mark.parametrize("example", EXAMPLES, ids=NAMES)
def test_examples_run(example):
    exec(compile(example, str(DOCUMENT), "exec"), {"__name__": "example"})
