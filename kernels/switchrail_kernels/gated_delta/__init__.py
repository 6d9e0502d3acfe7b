"""Kernels of the gated delta rule."""

from switchrail_kernels.claims import CUTEDSL, DELTA, FLASHINFER, STATES, Backends

BACKENDS: Backends = {
    "triton": ("TritonGatedDelta", DELTA),
    "cutedsl": (
        "CuteGatedDelta",
        {
            **STATES,
            "phases": ("decode",),
            "head_sizes": tuple((k, v) for k in (64, 128, 256) for v in (64, 128, 256)),
            "features": ("raw_gates", "cuda_graph", "batch_invariant"),
        },
    ),
    "flashinfer": (
        "FlashInferGatedDelta",
        {
            **STATES,
            "phases": ("prefill", "decode"),
            "head_sizes": ((128, 128),),
            "packages": (*FLASHINFER, CUTEDSL),
            "features": ("raw_gates",),
        },
    ),
    "flashqla": (
        "FlashQlaGatedDelta",
        {**STATES, "phases": ("prefill",), "head_sizes": ((128, 128),), "features": ("raw_gates",)},
    ),
}

OPERATIONS = {"gated_delta_inputs": "switchrail_kernels.gated_delta.inputs:gated_delta_inputs"}

__all__ = ["BACKENDS", "OPERATIONS"]
