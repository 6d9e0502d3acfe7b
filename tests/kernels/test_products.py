"""Matrix products with few rows, compared with float64."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from switchrail_kernels.products.forward import MOST_ROWS, products


def check(found, expected, dtype):
    """Compare results of magnitude 1 with float64."""
    bound = max(4 * torch.finfo(dtype).eps, 2e-5)
    torch.testing.assert_close(found.double(), expected, rtol=bound, atol=bound)


@pytest.mark.parametrize("shape", [(1,), (1, 1), (1, MOST_ROWS), (MOST_ROWS + 1,), (0,)])
@pytest.mark.parametrize(("columns", "size"), [(1, 8), (70, 256), (19, 4096), (33, 200), (3, 20000)])
def test_a_product(shape, columns, size, dtype, device):
    random = torch.Generator().manual_seed(size)
    x = torch.randn((*shape, size), generator=random).to(device, dtype)
    weight = torch.randn((columns, size), generator=random).mul(size**-0.5).to(device, dtype)
    out = products(x, weight)
    expected = x.double() @ weight.double().T
    assert (out.dtype, out.shape) == (dtype, expected.shape)
    check(out, expected, dtype)


def test_rows_and_weights_that_are_parts_of_others(dtype, device):
    random = torch.Generator().manual_seed(0)
    wide = torch.randn((2, 3, 64), generator=random).to(device, dtype)
    weights = torch.randn((9, 64), generator=random).div(8).to(device, dtype)
    for x in (wide[:, 1], wide[:, :2, ::2][:1, 1], wide[1:, 0, :32]):
        parts = weights[2:, : x.shape[-1]], weights[:, :: 64 // x.shape[-1]]
        for weight in (*parts, parts[0].contiguous()):
            expected = x.double() @ weight.double().T
            check(products(x, weight), expected, dtype)
