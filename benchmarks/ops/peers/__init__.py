"""What others take for the same, where they are installed: one file a library, each with a function `peers`.

`peers(case, call)` has the calls by name, ready to be made, each with the result of the call's shape. A name
that ends in "bare" is of the library's function alone: on dense inputs, normalised and expanded before, and
on states of the batch's own. Other names are of what the contract asks for: q, k and v as views of one
buffer, norm and gates, the states taken from their slots and put back.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from switchrail.testing.inputs import Call

    from benchmarks.ops.cases import Case
    from benchmarks.ops.clock import Run


def all_peers(case: Case, call: Call) -> dict[str, Run]:
    """The calls of every library that is installed and has the op."""
    from benchmarks.ops.peers import torch

    found = torch.peers(case, call)
    if call.out.is_cuda:
        if find_spec("fla"):
            from benchmarks.ops.peers import fla

            found |= fla.peers(case, call)
        if find_spec("flash_qla") and find_spec("tilelang"):
            from benchmarks.ops.peers import flashqla

            found |= flashqla.peers(case, call)
        if find_spec("flashinfer"):
            from benchmarks.ops.peers import flashinfer

            found |= flashinfer.peers(case, call)
        if find_spec("mamba_ssm"):
            from benchmarks.ops.peers import mamba_ssm

            found |= mamba_ssm.peers(case, call)
    return found
