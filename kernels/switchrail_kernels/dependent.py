"""Programmatic dependent launch: a kernel's programs start while the kernel before it still ends.

Starting and ending a kernel each take a microsecond or more, which is most of the time of small kernels.
"""

# Triton infers the types of kernel arguments at the call.
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
    """Wait until all earlier kernels have written their results. Every program must call it first.

    Only data that no kernel writes, such as weights, may be read before. Since all programs wait, a kernel
    ends only after all kernels before it, whatever kind of kernel comes next.
    """
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()


@triton.jit
def wait_first(EARLY: tl.constexpr):
    """As `wait`, and has the next kernel begin only when all before this one have ended.

    So the next one may read what those wrote before it waits, if not from the L1 cache.
    """
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()


@cache
def begins_early(index: int) -> bool:
    """Whether the device `index` supports dependent launches; -1 is the CPU."""
    return index >= 0 and torch.version.hip is None and torch.cuda.get_device_capability(index) >= (9, 0)


__all__ = ["begins_early", "wait", "wait_first"]
