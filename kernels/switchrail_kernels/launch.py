"""Launching a kernel a second time for less: Triton looks at every argument again at each call."""

from __future__ import annotations

from typing import Any

import torch
from triton import knobs

_MOST = 4096
"""Launches kept for a kernel; a batch-dependent stride could make their number grow without end."""


def launch_options(dtype: torch.dtype) -> dict[str, int]:
    """Options of a kernel with products of `dtype`.

    Those of float32 are written out as single multiplications, for which the assembler, left alone, at times
    settles for 32 registers and spills.
    """
    return {"maxnreg": 255} if dtype == torch.float32 else {}


def padded(size: int, least: int = 1) -> int:
    """The next power of 2, `least` or more; Triton's own function takes longer than a launch."""
    return max(least, 1 << (size - 1).bit_length())


class Launcher:
    """Launches one kernel, whose parameters are tensors, then numbers, then constants.

    Triton compiles for the dtypes and the alignment of the tensors and for what the numbers are divisible
    by. A launch that agrees with an earlier one in dtypes, numbers and constants, all tensors aligned,
    therefore runs the same binary, which is then launched directly, with bare addresses: Triton would ask the
    driver about each tensor. Where hooks on Triton's launches are set (a profiler's), they see every launch.
    """

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._compiled: dict[tuple[Any, ...], tuple[Any, ...]] = {}

    def __call__(
        self,
        grid: tuple[int, int, int],
        tensors: tuple[torch.Tensor, ...],
        numbers: tuple[int | float, ...],
        constants: tuple[int | bool, ...],
        *,
        num_warps: int,
        num_stages: int = 1,
        **options: int,
    ) -> None:
        """Launches on the current stream; the options follow from the other arguments."""
        first = tensors[0]
        index = first.get_device()
        if index >= 0 and index != torch._C._cuda_getDevice():
            with torch.cuda.device(index):
                self(grid, tensors, numbers, constants, num_warps=num_warps, num_stages=num_stages, **options)
            return
        addresses = [tensor.data_ptr() for tensor in tensors]
        merged = 0
        for address in addresses:
            merged |= address
        key = (index, numbers, constants, *[tensor.dtype for tensor in tensors])
        known = None if merged % 16 else self._compiled.get(key)
        if known is not None:
            compiled, run, function, metadata = known
            if knobs.runtime.launch_enter_hook.calls or knobs.runtime.launch_exit_hook.calls:
                compiled[grid](*tensors, *numbers, *constants)
                return
            stream = torch._C._cuda_getCurrentRawStream(index)
            run(*grid, stream, function, metadata, None, None, None, *addresses, *numbers, *constants)
            return
        compiled = self._kernel[grid](
            *tensors, *numbers, *constants, num_warps=num_warps, num_stages=num_stages, **options
        )
        if compiled is not None and merged % 16 == 0:  # the interpreter compiles nothing
            if len(self._compiled) == _MOST:
                self._compiled.clear()
            self._compiled[key] = (compiled, compiled.run, compiled.function, compiled.packed_metadata)


__all__ = ["Launcher", "launch_options", "padded"]
