"""Other libraries' functions for the same computation: one file per library, each with a function `peers`.

`peers(case, call)` returns functions by name, each of which computes a result of the call's shape. A name
that ends in "bare" stands for a library's function by itself: on dense inputs that are already normalised and
expanded, and on a separate copy of the states. Other names include everything that the contract requires: q,
k and v as views of one buffer, norm and gates, and states that are read from their slots and written back.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from switchrail.testing.inputs import Sample

    from benchmarks.ops.cases import Case
    from benchmarks.ops.clock import Run

NEEDS = {
    "torch": (),
    "fla": ("fla",),
    "flashqla": ("flash_qla", "tilelang"),
    "flashinfer": ("flashinfer",),
    "mamba_ssm": ("mamba_ssm",),
}
"""By file: the packages that its library needs."""


def libraries(device: torch.device) -> Iterator[str]:
    """The installed libraries; on devices other than GPUs only torch."""
    for name, needs in NEEDS.items():
        if name == "torch" or (device.type == "cuda" and all(find_spec(need) for need in needs)):
            yield name


def peers(library: str, case: Case, call: Sample) -> dict[str, Run]:
    """The functions of a library."""
    found: dict[str, Run] = import_module(f"benchmarks.ops.peers.{library}").peers(case, call)
    return found
