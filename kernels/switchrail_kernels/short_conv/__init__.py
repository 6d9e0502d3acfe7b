"""Kernels of the short causal convolution."""

from switchrail_kernels.claims import Backends

BACKENDS: Backends = {
    "triton": ("TritonShortConv", {"features": ("batch_invariant", "cuda_graph", "checkpoints")})
}

__all__ = ["BACKENDS"]
