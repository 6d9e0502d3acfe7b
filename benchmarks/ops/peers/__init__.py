"""Other libraries' functions for the same computation: one file per library, each with a function `peers`.

`peers(case, call)` returns functions by name. A function returns the call's output, or None if its result
can't be compared. A function whose name ends in "bare" is only the library's own: its inputs are dense,
normalised and expanded beforehand, and its states are a separate copy (those of `mul_ bare` excepted). Other
functions do everything that the contract requires: they take q, k and v as views of one buffer, apply norms
and gates, and read and write the states in their slots.
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
"""The packages that each file's library needs."""


def libraries(device: torch.device) -> Iterator[str]:
    """The installed libraries; on devices other than GPUs only torch."""
    for name, needs in NEEDS.items():
        if name == "torch" or (device.type == "cuda" and all(find_spec(need) for need in needs)):
            yield name


def peers(library: str, case: Case, call: Sample) -> dict[str, Run]:
    """The functions of a library."""
    found: dict[str, Run] = import_module(f"benchmarks.ops.peers.{library}").peers(case, call)
    return found
