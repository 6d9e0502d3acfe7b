"""Lightning attention."""

from switchrail_kernels.claims import RECURRENT, Backends

BACKENDS: Backends = {"triton": ("TritonLightning", RECURRENT)}

__all__ = ["BACKENDS"]
