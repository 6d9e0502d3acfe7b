"""Lightning attention."""

from switchrail_kernels.claims import EVERY_PHASE, RECURRENT, Backends

BACKENDS: Backends = {
    "triton": (
        "TritonLightning",
        {
            **RECURRENT,
            "phases": EVERY_PHASE,
            "features": ("cuda_graph", "checkpoints"),
        },
    ),
}

__all__ = ["BACKENDS"]
