"""Families that no test has run on hardware: the interfaces are those that their packages document."""

from __future__ import annotations

import platform as host
import sys
from typing import Any, ClassVar, Final

from switchrail.platforms.accelerator import Accelerator, import_package, is_importable
from switchrail.platforms.build import built_for
from switchrail.platforms.cpu import CpuHardware
from switchrail.platforms.hardware import Hardware, check_device
from switchrail.platforms.identity import DeviceCapability
from switchrail.platforms.platform import Platform

_ON_MACOS: Final = sys.platform == "darwin"


class XpuHardware(Accelerator):
    """An Intel GPU."""

    kind = "xpu"
    torch_type = "xpu"
    process_group = "xccl"

    @classmethod
    def _is_present(cls) -> bool:
        return built_for("xpu") is not None and super()._is_present()


class MusaHardware(Accelerator):
    """A Moore Threads GPU, through torch_musa."""

    kind = "musa"
    torch_type = "musa"
    package = "torch_musa"
    process_group = "mccl"

    def capability(self) -> DeviceCapability | None:
        """As torch_musa has it."""
        return DeviceCapability(*self._module().get_device_capability(self.index))

    def support_cuda_graph(self) -> bool:
        """It does."""
        return True


class NpuHardware(Accelerator):
    """A Huawei Ascend, through torch_npu."""

    kind = "npu"
    torch_type = "npu"
    package = "torch_npu"
    process_group = "hccl"


class MpsHardware(Accelerator):
    """The GPU of an Apple processor: one, which shares the host's memory."""

    kind = "mps"
    torch_type = "mps"
    process_group = "gloo"

    @classmethod
    def _is_present(cls) -> bool:
        if not (_ON_MACOS and is_importable("torch")):
            return False
        import torch

        return torch.backends.mps.is_available()

    def name(self) -> str:
        """As the operating system names the processor."""
        return host.processor() or host.machine()

    def total_memory(self) -> int:
        """What the operating system recommends to use at most, or else the host's memory."""
        return int(self._module().recommended_max_memory()) or CpuHardware().total_memory()

    def current_memory_usage(self) -> int:
        """What this process has taken; that of others is not known."""
        return int(self._module().driver_allocated_memory())

    @classmethod
    def _current(cls) -> str:
        return "mps:0"

    def set_device(self, device: str) -> None:
        """Leaves it as it is.

        Raises:
            PlatformError: It is another device.
        """
        MpsHardware(device)

    def synchronize(self) -> None:
        """Waits for the device's streams."""
        self._module().synchronize()

    def pin_memory_available(self) -> bool:
        """There is nothing to pin: the memory is the host's."""
        return False


class TpuHardware(Hardware):
    """A Google TPU, through torch_xla, which calls its devices `xla`."""

    kind = "tpu"
    package: ClassVar[str] = "torch_xla"

    def __init__(self, device: str | None = None) -> None:
        there = self.devices()
        if device is None or device == "xla":
            device = there[0] if there else "xla"
        check_device(device, there)
        super().__init__(device)

    @classmethod
    def devices(cls) -> tuple[str, ...]:
        """`xla:0` and so on, where torch_xla runs on TPUs and not on what it has in their place.

        Raises:
            PlatformError: torch_xla is installed and can't be imported.
        """
        if not is_importable(cls.package):
            return ()
        runtime = cls._xla("runtime")
        if runtime.device_type() != "TPU":
            return ()
        return tuple(f"xla:{index}" for index in range(runtime.addressable_device_count()))

    @classmethod
    def _xla(cls, name: str) -> Any:
        return import_package(f"{cls.package}.{name}", cls.kind)

    def name(self) -> str:
        """`TPU`: torch_xla does not tell the generation of one."""
        return str(self._xla("runtime").device_type())

    def total_memory(self) -> int | None:
        """As torch_xla has it."""
        return int(self._memory().get("bytes_limit", 0)) or None

    def current_memory_usage(self) -> int | None:
        """As torch_xla has it."""
        return self._memory().get("bytes_used")

    def _memory(self) -> dict[str, int]:
        found: dict[str, int] = self._xla("core.xla_model").get_memory_info(self.device)
        return found

    def get_device(self) -> str:
        """As torch_xla has it."""
        return str(self._xla("core.xla_model").xla_device())

    def synchronize(self) -> None:
        """Waits for the device's work."""
        self._xla("core.xla_model").wait_device_ops([self.device])

    def distributed_backend(self) -> str:
        """`xla`."""
        return "xla"

    def seed(self, seed: int) -> None:
        """Seeds torch, and the device."""
        import torch

        torch.manual_seed(seed)
        self._xla("core.xla_model").set_rng_state(seed, self.device)

    def supported_dtypes(self) -> tuple[str, ...]:
        """bfloat16 and float32."""
        return ("bfloat16", "float32")


class XpuPlatform(Platform):
    """Intel GPUs."""

    hardware_class = XpuHardware


class MusaPlatform(Platform):
    """Moore Threads GPUs."""

    hardware_class = MusaHardware


class NpuPlatform(Platform):
    """Huawei Ascend."""

    hardware_class = NpuHardware


class MpsPlatform(Platform):
    """Apple GPUs."""

    hardware_class = MpsHardware


class TpuPlatform(Platform):
    """Google TPUs."""

    hardware_class = TpuHardware


__all__ = [
    "MpsHardware",
    "MpsPlatform",
    "MusaHardware",
    "MusaPlatform",
    "NpuHardware",
    "NpuPlatform",
    "TpuHardware",
    "TpuPlatform",
    "XpuHardware",
    "XpuPlatform",
]
