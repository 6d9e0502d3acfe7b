"""The host's processor."""

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
    """The processor, and its memory."""

    kind = "cpu"

    def __init__(self, device: str | None = None) -> None:
        if device not in (None, "cpu:0"):
            check_device(device, self.devices())
        super().__init__("cpu")

    @classmethod
    def devices(cls) -> tuple[str, ...]:
        """The one that is always there."""
        return ("cpu",)

    def name(self) -> str:
        """As the operating system names the processor, or else its instruction set."""
        return host.processor() or host.machine()

    def total_memory(self) -> int:
        """The host's memory."""
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    def current_memory_usage(self) -> int:
        """What would not be given to a program that asked for it; files kept in memory would.

        Where the operating system doesn't tell, the most that this process has had.
        """
        available = _available()
        return self.total_memory() - available if available is not None else _largest_so_far()

    def get_device(self) -> str:
        """`cpu`."""
        return self.device

    def set_device(self, device: str) -> None:
        """Leaves it at `cpu`.

        Raises:
            PlatformError: It is another device.
        """
        CpuHardware(device)

    def synchronize(self) -> None:
        """Returns: torch's calls return when their work is done."""

    def empty_cache(self) -> None:
        """Returns: torch keeps no memory of the host's for later."""

    def distributed_backend(self) -> str:
        """`gloo`."""
        return "gloo"

    def seed(self, seed: int) -> None:
        """Seeds torch."""
        import torch

        torch.manual_seed(seed)

    def supported_dtypes(self) -> tuple[str, ...]:
        """All three; float32 is the fastest on most processors."""
        return ("float32", "float16", "bfloat16")


class CpuServing(Serving):
    """The built-in parts."""

    def engine_defaults(self) -> Mapping[str, Any]:
        """A quarter of the memory: a host has other work to do."""
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


__all__ = ["CpuHardware", "CpuPlatform", "CpuServing"]
