"""Kernels of switchrail's own and adapters to libraries of kernels, registered like any vendor's plugin.

Importing this package, and registering its backends, imports neither torch nor triton nor a library.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from switchrail.registration import DeviceSupport, Registry


class Claims(TypedDict, total=False):
    """What a backend's registration says of it; `Registrar.register` has the meanings."""

    phases: tuple[str, ...]
    devices: tuple[str | DeviceSupport, ...]
    dtypes: tuple[str, ...]
    state_dtypes: tuple[str, ...]
    head_sizes: tuple[int | tuple[int, int], ...]
    page_sizes: tuple[int, ...]
    state_layouts: tuple[str, ...]
    features: tuple[str, ...]
    packages: tuple[str, ...]
    priority: int


HEAD_SIZES = (8, 16, 24, 32, 40, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256)
"""Of attention: those that models have, and that are tested; the kernels pad others as well."""

_RECURRENT_SIZES = (16, 24, 32, 48, 64, 96, 128, 192, 256)
RECURRENT_SIZES = tuple((k, v) for k in _RECURRENT_SIZES for v in _RECURRENT_SIZES)
"""Of q and k, and of v, in the ops with a recurrent state."""

LATENT_SIZES = ((40, 32), (96, 64), (160, 128), (192, 128), (288, 256), (320, 256), (576, 512))
"""Of `mla`: a latent and the rotated part of its key together, and a latent; other latents up to 512 are
padded."""

_STATES: Claims = {"state_dtypes": ("float32", "bfloat16"), "state_layouts": ("VK",)}
_RECURRENT: Claims = {**_STATES, "head_sizes": RECURRENT_SIZES}

_CUTEDSL = "nvidia-cutlass-dsl>=4.8.1"
_FLASHINFER = ("flashinfer-python>=0.6.13,<0.7", "triton>=3.6")

CAPABILITIES: dict[str, tuple[tuple[int, int], tuple[int, int] | None]] = {
    "triton": ((8, 0), None),
    "cutedsl": ((9, 0), (9, 0)),
    "flashinfer": ((9, 0), (9, 0)),
    "flashqla": ((9, 0), (9, 0)),
}
"""By backend: the compute capabilities from which and up to which, itself included, it runs."""

COMMON: dict[str, Claims] = {
    "triton": {
        "dtypes": ("float32", "float16", "bfloat16"),
        "packages": ("triton>=3.6",),
        "priority": 100,
    },
    "cutedsl": {
        "dtypes": ("float32", "float16", "bfloat16"),
        "packages": (_CUTEDSL, "apache-tvm-ffi>=0.1.12"),
        "priority": 50,
    },
    "flashinfer": {
        "dtypes": ("bfloat16",),
        "packages": _FLASHINFER,
        "priority": 50,
    },
    "flashqla": {
        "dtypes": ("float16", "bfloat16"),
        "packages": ("flash-qla>=0.1.3,<0.2", "tilelang>=0.1.15", "triton>=3.6"),
        "priority": 50,
    },
}
"""By backend: what is claimed for each op, unless `BACKENDS` says otherwise."""

_INTERPRETED: Claims = {"devices": ("cpu",), "dtypes": ("float32", "float16"), "priority": -1000}

BACKENDS: dict[tuple[str, str], tuple[str, Claims]] = {
    ("attention", "triton"): (
        "TritonAttention",
        {
            "phases": ("prefill", "decode", "verify"),
            "head_sizes": HEAD_SIZES,
            "features": ("cuda_graph", "window", "soft_cap", "sinks", "lse", "trees"),
        },
    ),
    ("attention", "flashinfer"): (
        "FlashInferAttention",
        {
            "phases": ("prefill", "decode", "verify"),
            "head_sizes": (128, 256),
            "features": ("lse",),
        },
    ),
    ("gated_delta", "triton"): (
        "TritonGatedDelta",
        {
            **_RECURRENT,
            "phases": ("prefill", "decode", "verify"),
            "features": ("cuda_graph", "raw_gates", "checkpoints"),
        },
    ),
    ("gated_delta", "cutedsl"): (
        "CuteGatedDelta",
        {
            **_STATES,
            "phases": ("decode",),
            "head_sizes": tuple((k, v) for k in (64, 128, 256) for v in (64, 128, 256)),
            "features": ("raw_gates", "cuda_graph", "batch_invariant"),
        },
    ),
    ("gated_delta", "flashinfer"): (
        "FlashInferGatedDelta",
        {
            **_STATES,
            "phases": ("prefill", "decode"),
            "head_sizes": ((128, 128),),
            "packages": (*_FLASHINFER, _CUTEDSL),
            "features": ("raw_gates",),
        },
    ),
    ("gated_delta", "flashqla"): (
        "FlashQlaGatedDelta",
        {
            **_STATES,
            "phases": ("prefill",),
            "head_sizes": ((128, 128),),
            "features": ("raw_gates",),
        },
    ),
    ("kda", "triton"): (
        "TritonKda",
        {
            **_RECURRENT,
            "phases": ("prefill", "decode", "verify"),
            "features": ("cuda_graph", "raw_gates", "checkpoints"),
        },
    ),
    ("kda", "flashinfer"): (
        "FlashInferKda",
        {
            **_STATES,
            "phases": ("decode",),
            "head_sizes": ((64, 64), (128, 128)),
            "state_dtypes": ("bfloat16",),
            "packages": (*_FLASHINFER, _CUTEDSL),
            "features": ("raw_gates",),
        },
    ),
    ("lightning", "triton"): (
        "TritonLightning",
        {
            **_RECURRENT,
            "phases": ("prefill", "decode", "verify"),
            "features": ("cuda_graph", "checkpoints"),
        },
    ),
    ("mamba2", "triton"): (
        "TritonMamba2",
        {
            **_RECURRENT,
            "phases": ("prefill", "decode", "verify"),
            "features": ("cuda_graph", "checkpoints"),
        },
    ),
    ("mla", "triton"): (
        "TritonMla",
        {
            "phases": ("prefill", "decode", "verify"),
            "head_sizes": LATENT_SIZES,
            "features": ("cuda_graph", "lse", "trees"),
        },
    ),
    ("mla", "flashinfer"): (
        "FlashInferMla",
        {
            "phases": ("prefill", "decode", "verify"),
            "head_sizes": ((576, 512),),
            "features": ("lse",),
        },
    ),
    ("short_conv", "triton"): (
        "TritonShortConv",
        {
            "phases": ("prefill", "decode", "verify"),
            "features": ("batch_invariant", "cuda_graph", "checkpoints"),
        },
    ),
}
"""By op and backend: the class in `switchrail_kernels.OP.BACKEND`, and what it claims."""


def register(registry: Registry) -> None:
    """Registers each backend of `BACKENDS`: the target of this distribution's entry point.

    Where Triton's interpreter is switched on (`TRITON_INTERPRET=1`), the kernels in Triton run on CPU tensors
    as well, so slowly that they are never chosen unasked.
    """
    from switchrail.registration import DeviceSupport

    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    for (op, name), (attribute, own) in BACKENDS.items():
        claims: Claims = {
            "devices": (DeviceSupport("cuda", *CAPABILITIES[name]),),
            **COMMON[name],
            **own,
        }
        if interpreted and name == "triton":
            devices = claims["devices"] + _INTERPRETED["devices"]
            claims = {**claims, **_INTERPRETED, "devices": devices}
        registry.register(name, f"switchrail_kernels.{op}.{name}:{attribute}", op=op, **claims)


__all__ = ["register"]
