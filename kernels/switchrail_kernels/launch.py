"""Launching a kernel a second time for less: Triton looks at every argument again at each call."""

from __future__ import annotations

from typing import Any

import torch
from switchrail.ops.batch import SequenceBatch
from triton import knobs

_MOST = 4096
"""Launches kept for a kernel; a batch-dependent stride could make their number grow without end."""


def launch_options(dtype: torch.dtype) -> dict[str, Any]:
    """Options of a kernel with products of `dtype`.

    Those of float32 are written out as single multiplications, for which the assembler, left alone, at times
    settles for 32 registers and spills.
    """
    return {"maxnreg": 255} if dtype == torch.float32 else {}


def padded(size: int, least: int = 1) -> int:
    """The next power of 2, `least` or more; Triton's own function takes longer than a launch."""
    return max(least, 1 << (size - 1).bit_length())


def signature(
    batch: SequenceBatch, tensors: tuple[torch.Tensor | None, ...], options: tuple[object, ...]
) -> tuple[object, ...] | None:
    """All that a contract asks of a call's arguments, and all that its launch follows from but alignment.

    Returns:
        Equal values for calls of which both are refused or both launched alike; None where an argument is
        not even a tensor.
    """
    try:
        return (
            len(batch.seqlens),
            *[t if t is None else (t.shape, t.stride(), t.dtype, t.get_device()) for t in tensors],
            *[(type(option), option) for option in options],
        )
    except AttributeError:
        return None


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
        self._remembered: dict[tuple[object, ...] | None, tuple[Any, ...]] = {}

    def knows(self, key: tuple[object, ...] | None) -> bool:
        """Whether something was launched with `remember=key`, so that the call was held to its contract."""
        try:
            return key in self._remembered
        except TypeError:  # an option without a hash
            return False

    def again(self, key: tuple[object, ...] | None, tensors: tuple[torch.Tensor, ...]) -> bool:
        """Launches what was launched with `remember=key`, on these tensors; False where nothing was.

        Args:
            key: The call's `signature`, which also decides on grid, numbers and constants.
            tensors: Those of the kernel.
        """
        if not self.knows(key):
            return False
        index, grid, arguments, run, function, metadata = self._remembered[key]
        addresses = [tensor.data_ptr() for tensor in tensors]
        merged = 0
        for address in addresses:
            merged |= address
        if merged % 16 or index != torch._C._cuda_getDevice() or _has_hooks():
            return False
        stream = torch._C._cuda_getCurrentRawStream(index)
        run(*grid, stream, function, metadata, None, None, None, *addresses, *arguments)
        return True

    def __call__(
        self,
        grid: tuple[int, int, int],
        tensors: tuple[torch.Tensor, ...],
        numbers: tuple[int | float, ...],
        constants: tuple[int | bool, ...],
        *,
        num_warps: int,
        num_stages: int = 1,
        remember: tuple[object, ...] | None = None,
        **options: int,
    ) -> None:
        """Launches on the current stream; the options follow from the other arguments.

        Args:
            grid: The programs.
            tensors: The kernel's tensors.
            numbers: Its numbers.
            constants: Its constants.
            num_warps: Warps a program.
            num_stages: Stages of its loads.
            remember: What `again` finds the launch by.
            **options: Other options of the compiler.
        """
        first = tensors[0]
        index = first.get_device()
        if index >= 0 and index != torch._C._cuda_getDevice():
            options |= {"num_warps": num_warps, "num_stages": num_stages}
            with torch.cuda.device(index):
                self(grid, tensors, numbers, constants, remember=remember, **options)
            return
        addresses = [tensor.data_ptr() for tensor in tensors]
        merged = 0
        for address in addresses:
            merged |= address
        key = (index, numbers, constants, *[tensor.dtype for tensor in tensors])
        known = None if merged % 16 else self._compiled.get(key)
        if known is not None:
            compiled, run, function, metadata = known
            if remember is not None:
                if len(self._remembered) == _MOST:
                    self._remembered.clear()
                self._remembered[remember] = index, grid, (*numbers, *constants), run, function, metadata
            if _has_hooks():
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


def _has_hooks() -> bool:
    return bool(knobs.runtime.launch_enter_hook.calls or knobs.runtime.launch_exit_hook.calls)


__all__ = ["Launcher", "launch_options", "padded", "signature"]
