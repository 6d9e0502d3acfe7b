"""The host's processor as a platform."""

from __future__ import annotations

import os
import platform as host
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from switchrail.platforms.hardware import Hardware, check_device
from switchrail.platforms.platform import Platform
from switchrail.platforms.serving import Serving

_MEMINFO: Final = Path("/proc/meminfo")


class CpuHardware(Hardware):
    """The host's processor and memory."""

    kind = "cpu"

    def __init__(self, device: str | None = None) -> None:
        if device not in (None, "cpu:0"):
            check_device(device, self.devices())
        super().__init__("cpu")

    @classmethod
    def devices(cls) -> tuple[str, ...]:
        """`cpu`, which always exists."""
        return ("cpu",)

    def name(self) -> str:
        """The processor's name from the operating system, or else its instruction set."""
        return host.processor() or host.machine()

    def total_memory(self) -> int:
        """The host's memory in bytes."""
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    def current_memory_usage(self) -> int:
        """The host's memory minus the memory available to new programs, in bytes.

        On Linux, memory that caches files counts as available. If the operating system does not report the
        available memory, the result is the peak memory of this process.
        """
        available = _available()
        return self.total_memory() - available if available is not None else _largest_so_far()

    def get_device(self) -> str:
        """`cpu`."""
        return self.device

    def set_device(self, device: str) -> None:
        """Accepts `cpu` and `cpu:0`, which mean the same.

        Raises:
            PlatformError: The device is neither.
        """
        CpuHardware(device)

    def synchronize(self) -> None:
        """Does nothing: torch's calls are synchronous on the CPU."""

    def empty_cache(self) -> None:
        """Does nothing: torch's CPU allocator caches nothing."""

    def distributed_backend(self) -> str:
        """`gloo`."""
        return "gloo"

    def seed(self, seed: int) -> None:
        """Seeds torch."""
        import torch

        torch.manual_seed(seed)

    def supported_dtypes(self) -> tuple[str, ...]:
        """float32, float16 and bfloat16. float32 is the fastest on most processors."""
        return ("float32", "float16", "bfloat16")


class CpuServing(Serving):
    """The serving part of the CPU platform: default options of engines."""

    def engine_defaults(self) -> Mapping[str, Any]:
        """A quarter of the memory for the pools, because the host also runs other programs."""
        return {"memory_fraction": 0.25}


class CpuPlatform(Platform):
    """The host's processor."""

    hardware_class = CpuHardware
    serving_class = CpuServing


def _available() -> int | None:
    if _MEMINFO.exists():  # Linux
        for line in _MEMINFO.read_text("ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    if "SC_AVPHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    return None


def _largest_so_far() -> int:
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
