"""Kernels of the short causal convolution."""

from switchrail_kernels.claims import STATE_FEATURES, Backends

BACKENDS: Backends = {
    "triton": ("TritonShortConv", {"features": ("batch_invariant", "cuda_graph", *STATE_FEATURES)})
}

__all__ = ["BACKENDS"]
