"""The table of bounds in docs/conformance.md agrees with `BOUNDS`."""

import re
from pathlib import Path

import torch
from switchrail.testing.conformance import BOUNDS

TEXT = (Path(__file__).parents[2] / "docs" / "conformance.md").read_text("utf-8")
ROWS = {
    "usual": "usual",
    "beta up to 2, nearly parallel keys": "hard",
    "bfloat16 state": "bfloat16_state",
    "a sequence alone, compared with the same sequence in a batch": "company",
}
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def test_the_table_of_bounds():
    assert set(ROWS.values()) == set(BOUNDS)
    for title, hardness in ROWS.items():
        (line,) = re.findall(rf"^\| {title} \|(.*)\|$", TEXT, re.MULTILINE)
        told = [tuple(map(float, cell.split("/"))) for cell in line.split("|")]
        assert told == [(BOUNDS[hardness][dtype].norm, BOUNDS[hardness][dtype].row) for dtype in DTYPES]
