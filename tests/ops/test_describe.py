"""docs/contracts.md agrees with the contracts."""

from pathlib import Path

import pytest
import torch
from switchrail.errors import ContractError
from switchrail.ops.catalog import CONTRACTS
from switchrail.ops.describe import describe, describe_batches, document
from switchrail.testing.inputs import attention_call

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


@pytest.mark.parametrize(("name", "valid"), [("k_cache", "any strides"), ("out", "gaps")])
def test_written_tensors_may_have_gaps_but_not_any_strides(name, valid):
    """`k_cache` and `out` may have gaps, but only `k_cache`, which is read, may have its axes in another
    order."""
    contract, sample = CONTRACTS["attention"], attention_call([3, 5])
    (row,) = (line for line in describe(contract).splitlines() if line.startswith(f"| `{name}` |"))
    assert f"` {valid} along the outermost" in row

    def check(tensor):
        call = contract.make({**sample.tensors, **sample.options, name: tensor})
        contract.check("prefill", call, sample.batch)

    dense = sample.tensors[name]
    check(torch.empty(*dense.shape[:-1], 2 * dense.shape[-1])[..., : dense.shape[-1]])
    *outer, last = dense.shape
    reordered = torch.empty(*reversed(outer), last).permute(*reversed(range(len(outer))), -1)
    assert reordered.shape == dense.shape
    if valid == "any strides":
        check(reordered)
    else:
        with pytest.raises(ContractError, match=f"{name}: got strides"):
            check(reordered)
