"""The kernel for the inputs of a captured decode, compared with the engine's plain torch."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from switchrail.engine import inputs
from switchrail_kernels.elementwise.decode_rows import decode_rows

PAGE = 16


def results(function, rows, last_tokens, page_table, width, steps):
    device, count = rows.device, rows.shape[1]
    made = {
        "ids": torch.full((count,), -7, device=device),
        "pages": torch.full((count, width), -7, dtype=torch.int32, device=device),
        "kv_rows": torch.full((count,), -7, device=device),
        "kv_lens": torch.full((count,), -7, dtype=torch.int32, device=device),
        "sequence_ids": torch.full((count,), -7, dtype=torch.int32, device=device),
        "real": torch.full((1,), -7, dtype=torch.int32, device=device),
    }
    made["rows"] = rows.clone()
    for _ in range(steps):
        function(made["rows"], last_tokens, page_table, page_size=PAGE, out=tuple(made.values())[:6])
    return made


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize(("count", "real", "width"), [(1, 1, 3), (1, 0, 1), (5, 3, 7), (33, 33, 1500)])
def test_as_the_engine_computes_it(count, real, width, steps, device):
    random = torch.Generator().manual_seed(count)
    slots = 40
    page_table = torch.randint(1, 9999, (slots, width + 2), generator=random, dtype=torch.int32)
    page_table[0] = 0
    last_tokens = torch.randint(0, 500, (slots,), generator=random)
    every = torch.zeros(3, count + 3, dtype=torch.int64)
    every[1] = -1
    every[0, :real] = torch.randint(0, PAGE * width - 2, (real,), generator=random)
    every[1, :real] = torch.randperm(slots - 1, generator=random)[:real] + 1
    given = [tensor.to(device) for tensor in (every[:, :count], last_tokens, page_table)]
    found = results(decode_rows, *given, width, steps)
    expected = results(inputs.decode_rows, *given, width, steps)
    assert torch.equal(found["rows"][0], given[0][0] + (steps - 1) * (given[0][1] >= 0))
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name
