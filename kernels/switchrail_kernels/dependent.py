"""Programmatic dependent launch: a kernel's programs can start before the previous kernel has ended.

Starting and ending a kernel each take a microsecond or more, which is most of the time of small kernels.
"""

# Triton infers the types of kernel arguments at the call.
# ruff: noqa: ANN201
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import ctypes
from functools import cache

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def wait(EARLY: tl.constexpr):
    """Wait until all earlier kernels have written their results. Every program must call this.

    Before this call, a program may read only data that no recent kernel writes, such as weights. Since all
    programs wait, a kernel ends only after all earlier kernels. Without `EARLY`, programs start after the
    earlier kernels' end, and there is nothing to wait for.
    """
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()


@triton.jit
def wait_first(EARLY: tl.constexpr):
    """Like `wait`, but the next kernel starts only after all kernels before this one have ended.

    So the next kernel may read the results of those earlier kernels before it waits. Such reads must bypass
    the L1 cache, which may hold older data.
    """
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()


def _driver_version() -> int:
    """The version number of the CUDA driver; 12030 means 12.3."""
    found = ctypes.c_int()
    ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(found))
    return found.value


@cache
def begins_early(index: int) -> bool:
    """Whether the device `index` supports dependent launches, also in captured graphs; -1 is the CPU."""
    if index < 0 or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(index) >= (9, 0) and _driver_version() >= _DRIVER


_DRIVER = 12030
"""The first driver version that can capture dependent launches."""
