"""Capability claims shared by the registrations of several ops."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from switchrail.registration import DeviceSupport


class Claims(TypedDict, total=False):
    """The claims of a backend's registration; `Registrar.register` documents them."""

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


_SIZES = (16, 24, 32, 48, 64, 96, 128, 192, 256)
RECURRENT_SIZES = tuple((k, v) for k in _SIZES for v in _SIZES)
"""Head sizes of q and k, and of v, for the ops with a recurrent state."""

STATE_FEATURES = (
    *("checkpoints", "device_parents", "index_views", "null_slot", "read_only_states", "row_states"),
    *("strided_out", "strided_pool", "transposed_state"),
)
"""The features that the Triton backends of all ops with a state have."""

PAGE_FEATURES = (
    *("device_parents", "index_views", "kv_bounds", "lse", "strided_out", "strided_pool", "trees"),
)
"""The features that the Triton backends over a paged cache have."""

STATES: Claims = {"state_dtypes": ("float32", "bfloat16"), "state_layouts": ("VK",)}
RECURRENT: Claims = {
    **STATES,
    "state_dtypes": ("float32", "bfloat16", "float16"),
    "head_sizes": RECURRENT_SIZES,
    "features": ("cuda_graph", *STATE_FEATURES, "time_innermost"),
}
"""The claims of Triton for the ops with a state per head."""

DELTA: Claims = {
    **RECURRENT,
    "features": (*RECURRENT["features"], "deferred_commit", "mixed_weights", "raw_gates"),
}
"""The claims of Triton for the delta rule."""

CUTEDSL = "nvidia-cutlass-dsl>=4.8.1"
FLASHINFER = ("flashinfer-python>=0.6.13,<0.7", "triton>=3.6")

CAPABILITIES: dict[str, tuple[tuple[int, int], tuple[int, int] | None]] = {
    "triton": ((8, 0), None),
    "cutedsl": ((9, 0), (9, 0)),
    "flashinfer": ((9, 0), (9, 0)),
    "flashqla": ((9, 0), (9, 0)),
}
"""By backend, the first and the last supported compute capability; None if there is no last one."""

COMMON: dict[str, Claims] = {
    "triton": {"dtypes": ("float32", "float16", "bfloat16"), "packages": ("triton>=3.6",), "priority": 100},
    "cutedsl": {
        "dtypes": ("float32", "float16", "bfloat16"),
        "packages": (CUTEDSL, "apache-tvm-ffi>=0.1.12"),
        "priority": 50,
    },
    "flashinfer": {"dtypes": ("bfloat16",), "packages": FLASHINFER, "priority": 50},
    "flashqla": {
        "dtypes": ("float16", "bfloat16"),
        "packages": ("flash-qla>=0.1.3,<0.2", "tilelang>=0.1.15", "triton>=3.6"),
        "priority": 50,
    },
}
"""By backend, the claims that its registrations for all ops share, unless the op's folder overrides them."""

INTERPRETED: Claims = {"devices": ("cpu",), "dtypes": ("float32", "float16"), "priority": -1000}

Backends = dict[str, tuple[str, Claims]]
"""The backends of one op by module name: the class in that module, and its claims."""
