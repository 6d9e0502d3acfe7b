"""The selective state space of Mamba 2."""

from switchrail_kernels.claims import EVERY_PHASE, RECURRENT, Backends

BACKENDS: Backends = {
    "triton": (
        "TritonMamba2",
        {
            **RECURRENT,
            "phases": EVERY_PHASE,
            "features": ("cuda_graph", "checkpoints"),
        },
    ),
}

__all__ = ["BACKENDS"]
