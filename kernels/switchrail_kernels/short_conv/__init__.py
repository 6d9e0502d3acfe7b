"""Kernels of the short causal convolution."""

from switchrail_kernels.claims import EVERY_PHASE, Backends

BACKENDS: Backends = {
    "triton": (
        "TritonShortConv",
        {
            "phases": EVERY_PHASE,
            "features": ("batch_invariant", "cuda_graph", "checkpoints"),
        },
    ),
}

__all__ = ["BACKENDS"]
