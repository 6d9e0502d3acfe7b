"""What others take for the same, where they are installed: one file a library, each with a function `peers`.

`peers(case, call)` has the calls by name, ready to be made, each with the result of the call's shape. A name
that ends in "bare" is of the library's function alone: on dense inputs, normalised and expanded before, and
on states of the batch's own. Other names are of what the contract asks for: q, k and v as views of one
buffer, norm and gates, the states taken from their slots and put back.
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
"""By file: the packages without which its library is not there."""


def libraries(device: torch.device) -> Iterator[str]:
    """The libraries that are installed; on a device that is no GPU torch alone."""
    for name, needs in NEEDS.items():
        if name == "torch" or (device.type == "cuda" and all(find_spec(need) for need in needs)):
            yield name


def peers(library: str, case: Case, call: Sample) -> dict[str, Run]:
    """The calls of a library."""
    found: dict[str, Run] = import_module(f"benchmarks.ops.peers.{library}").peers(case, call)
    return found
