"""Repeats the launches of earlier calls with less overhead.

For each call, Triton inspects every argument of each launch, and the op's contract checks every tensor. Both
take tens of microseconds per layer. Whether a call is valid, and which kernels it launches with which
numbers, depends only on the kind of layer (its options and the properties of its tensors) and on two
arguments of `Calls.record`: the properties of `tensors` and the values in `options`. So if a call matches an
earlier call of any layer of the same kind, it is valid too and launches the same kernels with the same
numbers. `replay.c` repeats the launches in C, with the addresses of the new call and layer, and with new
scratch memory. The records of a kind are freed with the last layer of that kind.
"""

from __future__ import annotations

import ctypes
import re
import struct
import sys
import threading
import warnings
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from itertools import count
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any
from weakref import WeakValueDictionary

import torch
from switchrail.ops.call import Layer
from triton import knobs

ALIGNMENT = 16
"""In bytes. Kernels are compiled separately for addresses that are multiples of this and for others."""

_SCRATCH_ALIGNMENT = 256

_CONSTANT, _SCRATCH, _KEPT = -1, -2, -3
"""Used in pairs that give the source of a kernel's parameter, as in `replay.c`.

The pairs are (`_CONSTANT`, the constant's bits), (`_SCRATCH`, the offset in scratch memory in bytes),
(`_KEPT`, the index of a tensor of the layer) and (the index of a tensor of the call, 0).
"""

Tensors = tuple[torch.Tensor | None, ...]
Options = tuple[int | float | str | None, ...]


def _build() -> Any:
    """Compile `replay.c` in the way in which Triton builds its launcher."""
    from triton.runtime.build import compile_module_from_src  # internal to Triton

    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        raise RuntimeError(
            "importing `replay.c` would enable the global interpreter lock, which this Python runs without"
        )
    interface = torch.Tensor.__dlpack_c_exchange_api__
    source = Path(__file__).with_name("replay.c").read_text()
    headers = Path(torch.__file__).parent / "include"
    module = compile_module_from_src(source, "switchrail_replay", include_dirs=[str(headers)])
    module.connect(interface)
    return module


@cache
def _native() -> Any:
    """The compiled `replay.c`, built at the first call on a GPU; None, with a warning, if that fails."""
    try:
        return _build()
    except Exception as error:  # for example without a compiler, or with an unsupported torch or Triton
        warnings.warn(
            f"switchrail_kernels can't repeat calls from C, so each call takes tens of microseconds longer: "
            f"{type(error).__name__}: {error}",
            RuntimeWarning,
            stacklevel=2,
        )
        return None


def _driver(name: str) -> int:
    """The address of a function of the CUDA driver."""
    return ctypes.cast(ctypes.CDLL("libcuda.so.1")[name], ctypes.c_void_p).value or 0


def _nothing_yet(tensors: Tensors, options: Options) -> bool:
    return False


class _Table:
    """One owner's recorded calls of all layers of one kind; see `calls_of`.

    Attributes:
        records: The table of `replay.c`; None before the first recorded call.
        number: The table's unique number, 1 or more.
    """

    def __init__(self) -> None:
        self.records: Any = None
        self.number = next(_numbers)


_numbers = count(1)
_tables: WeakValueDictionary[tuple[object, ...], _Table] = WeakValueDictionary()
_lock = threading.Lock()

_OPTIONS = (type(None), bool, int, float, str)


def _values(layer: Layer) -> list[Any]:
    return [getattr(layer, each.name) for each in fields(layer) if each.init]


def _own_tensors(layer: Layer) -> list[torch.Tensor]:
    return [value for value in _values(layer) if isinstance(value, torch.Tensor)]


def _kind(layer: Layer) -> tuple[object, ...] | None:
    """All facts about a layer that determine its launches, except addresses; None if one is unknown."""
    kind: list[object] = [type(layer)]
    seen: dict[int, int] = {}
    for value in _values(layer):
        if isinstance(value, torch.Tensor):
            if type(value).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
                return None  # fake tensors, for example, have no memory
            try:
                aligned = value.data_ptr() % ALIGNMENT == 0
                which = seen.setdefault(id(value), len(seen))
                kind.append((value.shape, value.stride(), value.dtype, value.device, aligned, which))
            except RuntimeError:  # a tensor without strides
                return None
        elif type(value) in _OPTIONS:
            kind.append(repr(value))  # as repr, since 1, 1.0 and True are equal, and so are 0.0 and -0.0
        else:
            return None
    return tuple(kind)


def calls_of(layer: Layer, owner: object) -> Calls:
    """The recorded calls of a layer.

    Args:
        layer: The layer.
        owner: A backend's class, or a pair of the class and a name. For one owner, launches must depend only
            on the kind of layer and a call's arguments.
    """
    calls: Calls = layer.kept.get(owner) or layer.kept.setdefault(owner, Calls(layer, owner))
    return calls


class Calls:
    """The recorded calls of one layer, shared with all layers of its kind.

    Attributes:
        again: Takes tensors and options. Repeats the launches of an equal recorded call and returns True;
            otherwise returns False. Two calls are equal if their tensors agree in shape, strides, dtype,
            device and alignment, and their options in type and value. Also, if two arguments of one call are
            the same tensor, these two arguments of the other call must be the same tensor, too. If hooks on
            Triton's launches are set (for example by a profiler) or another device is current, `again`
            launches nothing and returns False.
        kind: A number for the kind of layer, unique for each owner and kind; 0 if the kind is unknown.
    """

    def __init__(self, layer: Layer, owner: object) -> None:
        self.again: Callable[[Tensors, Options], bool] = _nothing_yet
        self._calls: Any = None
        kind = _kind(layer)
        self._table: _Table | None = None
        self.kind = 0
        if kind is None:
            return
        self._addresses = tuple(tensor.data_ptr() for tensor in _own_tensors(layer))
        with _lock:
            self._table = _tables.setdefault((owner, *kind), _Table())
        self.kind = self._table.number
        if self._table.records is not None:
            self._connect(self._table.records)

    def _connect(self, records: Any) -> None:
        self._calls = _native().Calls(records, self._addresses)
        self.again = self._calls.again

    def record(self, layer: Layer, tensors: Tensors, options: Options) -> Recording:
        """Record the launches of a `with` block if it ends without an error and all can be repeated.

        Args:
            layer: The layer.
            tensors: All tensors of the kernels except the layer's and scratch memory; None for absent ones.
            options: All other values that determine the launches or the contract's check, except the layer's.
        """
        return Recording(self, layer, tensors, options)

    def remember(self, tensors: Tensors, options: Options, *record: object) -> None:
        """Add a recorded call, in the format of `replay.c`."""
        if self._table is None:
            return
        native = _native()
        if native is None:
            return
        if self._calls is None:
            addresses = (_driver("cuLaunchKernelEx"), _driver("cuCtxGetDevice"))
            types = (torch.Tensor, torch.nn.Parameter)
            with _lock:
                if self._table.records is None:
                    self._table.records = native.Table(*types, knobs.runtime, *addresses)
            self._connect(self._table.records)
        self._calls.add(tensors, options, *record)


class Recording:
    """A call whose launches are being recorded."""

    def __init__(self, calls: Calls, layer: Layer, tensors: Tensors, options: Options) -> None:
        self._calls = calls
        self._tensors = tensors
        self._options = options
        self._sources = {id(tensor): (_KEPT, i) for i, tensor in enumerate(_own_tensors(layer))}
        brought = {id(tensor): (i, 0) for i, tensor in enumerate(tensors) if tensor is not None}
        # A tensor that belongs to both the call and the layer could be two tensors in another call.
        self._known = brought.keys().isdisjoint(self._sources)
        self._sources |= brought
        self._scratch: list[torch.Tensor] = []
        self._bytes = 0
        self._launches: list[object] = []
        self._kernels: list[object] = []
        self._caller: FrameType | None = None

    def __enter__(self) -> Recording:
        if recording() is not None:
            raise RuntimeError("a call is already being recorded on this thread")
        self._caller = sys._getframe(1)
        _thread.call = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _thread.call = self._caller = None
        if kind is None and self._known and self._launches:
            self._calls.remember(
                self._tensors, self._options, tuple(self._launches), self._bytes, tuple(self._kernels)
            )

    def is_running(self, frame: FrameType | None) -> bool:
        """Whether `frame` belongs to the function that entered the `with` block, or was called from it.

        The call may be indirect.
        """
        while frame is not None and frame is not self._caller:
            frame = frame.f_back
        return frame is not None

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Allocate memory for the duration of the call."""
        tensor = torch.empty(shape, dtype=dtype, device=device)
        self._scratch.append(tensor)
        self._sources[id(tensor)] = (_SCRATCH, self._bytes)
        self._bytes += -(-tensor.nbytes // _SCRATCH_ALIGNMENT) * _SCRATCH_ALIGNMENT
        return tensor

    def sources(self, tensors: tuple[torch.Tensor, ...]) -> list[tuple[int, int]]:
        """The source of each of a kernel's tensors, from which a later call takes the tensor's address.

        Raises:
            KeyError: A tensor belongs neither to the call nor to the layer, and is not scratch memory.
        """
        return [self._sources[id(tensor)] for tensor in tensors]

    def add(
        self,
        grid: tuple[int, int, int],
        binary: Binary | None,
        sources: list[tuple[int, int]],
        values: tuple[float, ...],
    ) -> None:
        """Add a launch.

        Args:
            grid: The launch's programs.
            binary: The kernel; None if the launch can't be repeated.
            sources: The sources of the kernel's tensors.
            values: The kernel's numbers and constants.
        """
        if binary is None or not binary.is_plain:
            self._known = False
            return
        shape = (binary.function, *grid, binary.threads, binary.shared, binary.early)
        self._launches.append((shape, binary.parameters(sources, values)))
        self._kernels.append(binary)


_thread = threading.local()


def recording() -> Recording | None:
    """The call that is being recorded on this thread, or None."""
    call: Recording | None = getattr(_thread, "call", None)
    if call is not None and not call.is_running(sys._getframe(1)):
        # An exception from a signal handler can prevent `__exit__`.
        call = _thread.call = None
    return call


def scratch(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Allocate memory for the duration of a call. Each replay gets its own."""
    call = recording()
    return (
        torch.empty(shape, dtype=dtype, device=device) if call is None else call.empty(shape, dtype, device)
    )


_DECLARED = {"fp32": "f32", "i32": "u32", "i64": "u64", "u64": "u64"}
"""Type of a number in Triton's signature -> type of its parameter in PTX."""

_ENTRY = re.compile(r"\.entry\s+[^\s(]+\(([^)]*)\)")
_PARAMETER = re.compile(r"\.param\s+\.(\w+)")


@cache
def _warn_without_ptx() -> None:
    warnings.warn(
        "switchrail_kernels can't repeat the launches of kernels without PTX, so each call takes tens of "
        "microseconds longer: TRITON_STORE_BINARY_ONLY is set, or PTX was removed from Triton's cache",
        RuntimeWarning,
        stacklevel=2,
    )


def _declared(compiled: Any) -> list[str]:
    """The PTX types of a kernel's parameters; empty, with a warning, if Triton's cache lacks the PTX."""
    if "ptx" not in compiled.asm:
        _warn_without_ptx()
    entry = _ENTRY.search(compiled.asm.get("ptx", ""))
    return [] if entry is None else _PARAMETER.findall(entry[1])


class Binary:
    """A compiled kernel, in the form that the driver launches.

    Attributes:
        is_plain: Whether `parameters` gives all its parameters, and its launch needs no attribute other than
            `early`.
        function: The driver's handle of the kernel.
        threads: Threads per program.
        shared: Bytes of shared memory per program.
        early: Whether its programs may start before the previous kernel has ended.
    """

    def __init__(self, compiled: Any) -> None:
        metadata = compiled.metadata
        warps, blocks, shared = compiled.packed_metadata
        self.run: Callable[..., None] = compiled.run
        self.compiled = compiled
        self.function: int = compiled.function
        self.metadata = compiled.packed_metadata
        self.threads: int = 32 * warps
        self.shared: int = shared
        self.early: bool = metadata.launch_pdl
        self._types = tuple(compiled.src.signature.values())
        types = [kind for kind in self._types if kind != "constexpr"]
        given = ["u64" if kind[0] == "*" else _DECLARED.get(kind) for kind in types]
        self.is_plain = (
            [*given, "u64", "u64"] == _declared(compiled)
            and blocks == 1
            and not metadata.launch_cooperative_grid
            and metadata.global_scratch_size == 0
            and metadata.profile_scratch_size == 0
        )

    def parameters(
        self, sources: list[tuple[int, int]], values: tuple[float, ...]
    ) -> tuple[tuple[int, int], ...]:
        """The sources of the driver's parameters."""
        arguments: list[Any] = [*sources, *values]
        found: list[tuple[int, int]] = []
        for kind, argument in zip(self._types, arguments, strict=True):
            if kind == "constexpr":
                continue
            if kind[0] == "*":
                found.append(argument)
            elif kind == "fp32":
                found.append((_CONSTANT, struct.unpack("<I", struct.pack("<f", argument))[0]))
            else:
                found.append((_CONSTANT, argument & 0xFFFFFFFFFFFFFFFF))
        return (*found, (_CONSTANT, 0), (_CONSTANT, 0))  # Triton's two kinds of scratch memory, both unused
