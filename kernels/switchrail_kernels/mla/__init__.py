"""Kernels of multi-head latent attention."""

from switchrail_kernels.claims import PAGE_FEATURES, Backends

LATENT_SIZES = ((40, 32), (96, 64), (160, 128), (192, 128), (288, 256), (320, 256), (576, 512))
"""The head sizes that the Triton backend claims: pairs (L, R) of a cached token's and a latent's size."""

BACKENDS: Backends = {
    "triton": (
        "TritonMla",
        {"head_sizes": LATENT_SIZES, "features": ("cuda_graph", "plan_chunked_prefix", *PAGE_FEATURES)},
    ),
    "flashinfer": (
        "FlashInferMla",
        {"head_sizes": ((576, 512),), "features": ("lse", "plan_chunked_prefix")},
    ),
}

__all__ = ["BACKENDS"]
