"""The selective state space of Mamba 2."""

from switchrail_kernels.claims import RECURRENT, Backends

BACKENDS: Backends = {"triton": ("TritonMamba2", {**RECURRENT, "features": ("cuda_graph", "checkpoints")})}

__all__ = ["BACKENDS"]
