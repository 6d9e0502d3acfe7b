"""Launching a kernel a second time for less: Triton looks at every argument again at each call."""

from __future__ import annotations

from typing import Any

import torch

_MOST = 4096
"""Launches kept for a kernel; a batch-dependent stride could make their number grow without end."""


def launch_options(dtype: torch.dtype) -> dict[str, int]:
    """Options of a kernel with products of `dtype`.

    Those of float32 are written out as single multiplications, for which the assembler, left alone, at times
    settles for 32 registers and spills.
    """
    return {"maxnreg": 255} if dtype == torch.float32 else {}


class Launcher:
    """Launches one kernel, whose parameters are tensors, then numbers, then constants.

    Triton compiles for the dtypes and the alignment of the tensors and for what the numbers are divisible
    by. A launch that agrees with an earlier one in dtypes, numbers and constants, all tensors aligned,
    therefore runs the same binary, which is then launched directly.
    """

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._compiled: dict[tuple[Any, ...], Any] = {}

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
        pointers = 0
        for tensor in tensors:
            pointers |= tensor.data_ptr()
        key = (tensors[0].device, numbers, constants, *[tensor.dtype for tensor in tensors])
        compiled = None if pointers % 16 else self._compiled.get(key)
        if compiled is not None:
            compiled[grid](*tensors, *numbers, *constants)
            return
        compiled = self._kernel[grid](
            *tensors, *numbers, *constants, num_warps=num_warps, num_stages=num_stages, **options
        )
        if compiled is not None and pointers % 16 == 0:  # the interpreter compiles nothing
            if len(self._compiled) == _MOST:
                self._compiled.clear()
            self._compiled[key] = compiled


__all__ = ["Launcher", "launch_options"]
