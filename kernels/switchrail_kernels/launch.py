"""Launches kernels with less overhead than Triton, which inspects every argument at each launch."""

from __future__ import annotations

import re
import warnings
from functools import cache
from typing import Any

import torch
import triton
from triton import knobs

from switchrail_kernels.dependent import begins_early
from switchrail_kernels.replay import ALIGNMENT, Binary, recording

_MOST = 4096
"""Maximum binaries kept per kernel. Bounds the memory if a constant changes from batch to batch."""

TABLES = (
    *("p_cu_seqlens", "p_cu_seqlens_k", "p_has_initial_state"),
    *("p_read_slots", "p_write_slots", "p_kept_slots", "p_slots"),
    *(
        "p_pages",
        "p_kv_lens",
        "p_items",
        "p_parents",
        "p_pieces",
        "p_sequences",
        "p_blocks",
        "p_spans",
        "p_rows",
        "p_row_slots",
    ),
    *("p_tiles", "p_paths", "p_accepted", "p_started", "p_before"),
    *("p_pending_records", "p_pending_rows", "p_records"),
)
"""The names of kernel parameters that are tables of a step.

The alignment of these tables depends on the batch. Kernels are not specialized for it, since loads of single
numbers would gain nothing.
"""


def launch_options(dtype: torch.dtype) -> dict[str, Any]:
    """Launch options of a kernel with products of `dtype`.

    float32 products are unrolled into single multiplications. For these the assembler sometimes chooses only
    32 registers per thread and spills, so the limit is set to the maximum, 255.
    """
    return {"maxnreg": 255} if dtype == torch.float32 else {}


def padded(size: int, least: int = 1) -> int:
    """`size` rounded up to a power of 2, or `least` if that is larger.

    Triton's own function for rounding takes longer than a launch.
    """
    return max(least, 1 << (size - 1).bit_length())


class Launcher:
    """Launches one kernel, whose parameters are tensors, then numbers, then constants.

    Triton specializes kernels for the dtypes and the alignment of tensors, for the width of integers, and for
    whether an integer is 1 or divisible by 16. So a launch with the same properties, constants and options as
    an earlier launch on the same device uses the same binary. The binary is then launched directly with plain
    addresses, whereas Triton would query the driver about each tensor. If hooks on Triton's launches are set,
    for example by a profiler, all launches go through Triton.

    Args:
        kernel: The kernel.
        early: Whether the kernel calls `dependent.wait` or `wait_first`. Then the kernel's last constant says
            whether programs start before the previous kernel has ended; the launcher sets this constant to
            True if the device supports such launches.
    """

    def __init__(self, kernel: Any, *, early: bool = False) -> None:
        self._kernel = kernel
        self._early = early
        self._binaries: dict[tuple[object, ...], Binary] = {}

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
        """Launch on the current stream, and add the launch to the call being recorded, if any.

        Args:
            grid: The number of programs along each axis.
            tensors: The tensors that the kernel takes.
            numbers: The numbers that the kernel takes.
            constants: The constants that the kernel takes.
            num_warps: Warps per program.
            num_stages: Pipeline stages of the kernel's loads.
            **options: Other compiler options.

        Raises:
            KeyError: A call is being recorded, and a tensor belongs neither to the call nor to the layer, and
                is not scratch memory.
        """
        call = recording()
        sources = None if call is None else call.sources(tensors)
        index = tensors[0].get_device()
        if self._early:
            begins = begins_early(index)
            constants = (*constants, begins)
            if begins:
                options["launch_pdl"] = True
        if index >= 0 and index != torch._C._cuda_getDevice():
            with torch.cuda.device(index):
                self._launch(index, grid, tensors, numbers, constants, num_warps, num_stages, options)
            binary = None
        else:
            binary = self._launch(index, grid, tensors, numbers, constants, num_warps, num_stages, options)
        if call is not None and sources is not None:
            call.add(grid, binary, sources, (*numbers, *constants))

    def _launch(
        self,
        index: int,
        grid: tuple[int, int, int],
        tensors: tuple[torch.Tensor, ...],
        numbers: tuple[int | float, ...],
        constants: tuple[int | bool, ...],
        num_warps: int,
        num_stages: int,
        options: dict[str, int],
    ) -> Binary | None:
        """Launch the kernel on the device `index`; return its binary, or None if `_run` can't launch it."""
        addresses = [tensor.data_ptr() for tensor in tensors]
        key = (
            index,
            num_warps,
            num_stages,
            *options.values(),
            *constants,
            *map(_specialization, numbers),
            *[address % ALIGNMENT == 0 for address in addresses],
            *[tensor.dtype for tensor in tensors],
        )
        binary = self._binaries.get(key)
        if binary is not None and not _has_hooks():
            _run(binary, index, grid, addresses, (*numbers, *constants))
            return binary
        compiled = self._kernel[grid](
            *tensors, *numbers, *constants, num_warps=num_warps, num_stages=num_stages, **options
        )
        if compiled is None or not _is_known():
            return None
        if len(self._binaries) >= _MOST:
            self._binaries.clear()
        return self._binaries.setdefault(key, Binary(compiled))


@cache
def _is_known() -> bool:
    """Whether `_run` and `Binary` have been checked against this version of Triton; warns if not."""
    known = (3, 6) <= tuple(map(int, re.findall(r"\d+", triton.__version__)[:2])) <= (3, 9)
    if not known:
        warnings.warn(
            "switchrail_kernels launches through Triton, which takes tens of microseconds more per "
            f"call: its own launcher supports Triton 3.6 to 3.9, got {triton.__version__}",
            RuntimeWarning,
            stacklevel=2,
        )
    return known


def _specialization(number: float) -> object:
    """The properties of a number that Triton specializes for."""
    if type(number) is not int:
        return type(number)
    if number == 1:
        return 1
    size = 32 if -(1 << 31) <= number < 1 << 31 else 64 if number < 1 << 63 else -64
    return size if number & 15 else size + 1


def _run(
    binary: Binary, index: int, grid: tuple[int, int, int], addresses: list[int], arguments: tuple[float, ...]
) -> None:
    stream = torch._C._cuda_getCurrentRawStream(index)
    binary.run(*grid, stream, binary.function, binary.metadata, None, None, None, *addresses, *arguments)


def _has_hooks() -> bool:
    return bool(knobs.runtime.launch_enter_hook.calls or knobs.runtime.launch_exit_hook.calls)
