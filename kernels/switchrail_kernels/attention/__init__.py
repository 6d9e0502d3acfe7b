"""Kernels of softmax attention."""

from switchrail_kernels.claims import PAGE_FEATURES, Backends

HEAD_SIZES = (8, 16, 24, 32, 40, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256)
"""The head sizes that the Triton backend claims: all are tested. Its kernels pad sizes to powers of 2."""

BACKENDS: Backends = {
    "triton": (
        "TritonAttention",
        {"head_sizes": HEAD_SIZES, "features": ("cuda_graph", *PAGE_FEATURES, "sinks", "soft_cap", "window")},
    ),
    "flashinfer": ("FlashInferAttention", {"head_sizes": (128, 256), "features": ("lse",)}),
}

OPERATIONS = {"ragged_attention": "switchrail_kernels.attention.ragged:ragged_attention"}

__all__ = ["BACKENDS", "OPERATIONS"]
