"""Programmatic dependent launch: a kernel whose programs begin while the one before it still ends.

Each of the two costs a microsecond or more to start and to end, which is most of what small kernels take.
"""

# Triton reads the types of a kernel's arguments at the call.
# ruff: noqa: ANN201
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def wait(EARLY: tl.constexpr):
    """What every program of such a kernel does first: waits until what came before has written everything.

    Only what no kernel writes, such as weights, may be read before. Since all programs wait, a kernel has
    ended only when all before it have, whatever kind of kernel comes next.
    """
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()


@cache
def begins_early(index: int) -> bool:
    """Whether the device `index` can; -1 is the CPU."""
    return index >= 0 and torch.version.hip is None and torch.cuda.get_device_capability(index) >= (9, 0)


__all__ = ["begins_early", "wait"]
