"""Lists the GPUs of this machine through NVIDIA's driver, without torch.

Uses the CUDA driver API, as torch does, so both see the same devices in the same order, also if
`CUDA_VISIBLE_DEVICES` is set.
"""

from __future__ import annotations

import ctypes
import logging
import sys
from functools import cache
from typing import Final, NamedTuple

from switchrail.platforms.identity import DeviceCapability

_log = logging.getLogger("switchrail")

_LIBRARY: Final = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
_NO_DEVICE: Final = 100
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR


class Gpu(NamedTuple):
    """One device.

    Attributes:
        name: The vendor's name for the device.
        capability: The device's compute capability.
        total_memory: The device's memory in bytes.
    """

    name: str
    capability: DeviceCapability
    total_memory: int


@cache
def gpus(toolkit: str) -> tuple[Gpu, ...]:
    """The devices in the driver's order; none if the driver is missing, too old, or reports an error.

    Args:
        toolkit: The CUDA version that torch was built with. The driver must support this major version of
            CUDA.
    """
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError:
        return ()
    try:
        return _read(library, toolkit)
    except _DriverError as error:
        if error.code != _NO_DEVICE:
            _log.warning("the NVIDIA driver is installed, but no GPU can be used: %s", error)
        return ()


class _DriverError(Exception):
    def __init__(self, problem: str, code: int | None = None) -> None:
        super().__init__(problem)
        self.code = code


def _read(library: ctypes.CDLL, toolkit: str) -> tuple[Gpu, ...]:
    def call(function: str, *arguments: object) -> None:
        entry = getattr(library, function, None)
        if entry is None:
            raise _DriverError(f"the driver is too old to have {function}")
        code = entry(*arguments)
        if code:
            raise _DriverError(f"{function} returned error {code}", code)

    def number(function: str, *arguments: object) -> int:
        found = ctypes.c_int()
        call(function, ctypes.byref(found), *arguments)
        return found.value

    call("cuInit", 0)
    supported = number("cuDriverGetVersion")
    if supported // 1000 < int(toolkit.partition(".")[0]):
        version = f"{supported // 1000}.{supported % 1000 // 10}"
        _log.warning(
            "no GPU can be used: torch was built for CUDA %s, and the NVIDIA driver supports up to %s",
            toolkit,
            version,
        )
        return ()
    found = []
    for index in range(number("cuDeviceGetCount")):
        device = number("cuDeviceGet", index)
        name = ctypes.create_string_buffer(256)
        call("cuDeviceGetName", name, len(name), device)
        memory = ctypes.c_size_t()
        call("cuDeviceTotalMem_v2", ctypes.byref(memory), device)
        capability = DeviceCapability(
            number("cuDeviceGetAttribute", _MAJOR, device), number("cuDeviceGetAttribute", _MINOR, device)
        )
        found.append(Gpu(name.value.decode("utf-8", "replace"), capability, memory.value))
    return tuple(found)
