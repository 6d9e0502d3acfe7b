"""Kimi delta attention."""

from switchrail_kernels.claims import CUTEDSL, DELTA, FLASHINFER, STATES, Backends

BACKENDS: Backends = {
    "triton": ("TritonKda", DELTA),
    "flashinfer": (
        "FlashInferKda",
        {
            **STATES,
            "phases": ("decode",),
            "head_sizes": ((64, 64), (128, 128)),
            "state_dtypes": ("bfloat16",),
            "packages": (*FLASHINFER, CUTEDSL),
            "features": ("raw_gates",),
        },
    ),
}

__all__ = ["BACKENDS"]
