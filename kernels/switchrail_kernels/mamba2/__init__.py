"""The selective state space of Mamba 2."""

from switchrail_kernels.claims import RECURRENT, Backends

BACKENDS: Backends = {"triton": ("TritonMamba2", RECURRENT)}

__all__ = ["BACKENDS"]
