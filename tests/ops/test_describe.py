"""docs/contracts.md agrees with the contracts."""

from pathlib import Path

import pytest
from switchrail.ops.catalog import CONTRACTS
from switchrail.ops.describe import describe, describe_batches, document

DOCUMENT = Path(__file__).parents[2] / "docs" / "contracts.md"


def test_the_document_is_up_to_date():
    assert DOCUMENT.read_text() == document(), "run: python -m switchrail.ops.describe > docs/contracts.md"


@pytest.mark.parametrize("op", CONTRACTS)
def test_a_description_has_everything(op):
    contract = CONTRACTS[op]
    text = describe(contract) + describe_batches(contract.batch_type)
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    for name in (*contract.tensors, *contract.options, *contract.batch):
        assert sum(row.startswith(f"| `{name}` |") for row in rows) == 1
    for feature in contract.features:
        assert f"`{feature}`" in text
    assert len({row.count("|") for row in rows if row.startswith("| `")}) <= 2
    for note in contract.notes:
        assert f"- {note}\n" in text
    assert "arXiv" in text or op == "short_conv"
