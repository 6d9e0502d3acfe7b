"""Lightning attention."""

from switchrail_kernels.claims import RECURRENT, Backends

BACKENDS: Backends = {"triton": ("TritonLightning", {**RECURRENT, "features": ("cuda_graph", "checkpoints")})}

__all__ = ["BACKENDS"]
