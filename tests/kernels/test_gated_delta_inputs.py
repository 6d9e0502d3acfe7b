"""The inputs of a gated delta layer: parts of one product, and gates, which are compared with float64."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import softplus

pytest.importorskip("triton")

from switchrail_kernels.gated_delta import inputs
from switchrail_kernels.gated_delta.inputs import gated_delta_inputs
from switchrail_kernels.products.forward import MOST_ROWS, products


@pytest.mark.parametrize(
    ("t", "heads", "hidden"), [(0, 4, 32), (1, 32, 32), (1, 5, 2048), (2, 7, 1000), (37, 5, 32), (300, 4, 32)]
)
def test_parts_of_the_product_and_gates(t, heads, hidden, dtype, device, monkeypatch):
    if 0 < t <= MOST_ROWS and dtype != torch.float32:
        monkeypatch.setattr(inputs, "_gates", None)  # not called: the product's kernel computes the gates
    random = torch.Generator().manual_seed(t)
    channels, values = 24, 20

    def normal(*shape, scale=1.0):
        return (torch.randn(shape, generator=random) * scale).to(device)

    x = normal(t, hidden).to(dtype)
    weight = normal(channels + values + 2 * heads, hidden, scale=hidden**-0.5).to(dtype)
    A_log, dt_bias = normal(heads), normal(heads, scale=9.0).to(dtype)
    qkv, z, g, beta = gated_delta_inputs(x, weight, A_log, dt_bias, channels=channels)
    product = products(x, weight)
    b, a = product[:, channels + values :].double().chunk(2, -1)
    assert torch.equal(qkv, product[:, :channels])
    assert torch.equal(z, product[:, channels : channels + values])
    assert (g.dtype, beta.dtype) == (torch.float32, dtype)
    expected = -A_log.double().exp() * softplus(a + dt_bias.double(), threshold=1e9)
    torch.testing.assert_close(g.double(), expected, rtol=2e-5, atol=1e-12)
    torch.testing.assert_close(beta, b.sigmoid().to(dtype), rtol=2 * torch.finfo(dtype).eps, atol=1e-7)
