"""Device families that were never tested on hardware; the code follows their packages' documentation."""

from __future__ import annotations

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
        """The capability that torch_musa reports."""
        return DeviceCapability(*self._module().get_device_capability(self.index))

    def support_cuda_graph(self) -> bool:
        """True."""
        return True


class NpuHardware(Accelerator):
    """A Huawei Ascend NPU, through torch_npu."""

    kind = "npu"
    torch_type = "npu"
    package = "torch_npu"
    process_group = "hccl"


class MpsHardware(Accelerator):
    """The GPU of an Apple processor: a single one, which shares the host's memory."""

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
        """The processor's name from the operating system, or else its instruction set."""
        return CpuHardware().name()

    def total_memory(self) -> int:
        """The most memory that the operating system recommends using, in bytes.

        If it recommends none, the host's total memory.
        """
        return int(self._module().recommended_max_memory()) or CpuHardware().total_memory()

    def current_memory_usage(self) -> int:
        """Memory in bytes that this process has allocated. The usage of other processes is unknown."""
        return int(self._module().driver_allocated_memory())

    @classmethod
    def _current(cls) -> str:
        return "mps:0"

    def set_device(self, device: str) -> None:
        """Accepts the current device only.

        Raises:
            PlatformError: The device is not the current one.
        """
        MpsHardware(device)

    def synchronize(self) -> None:
        """Waits for all streams of the device."""
        self._module().synchronize()

    def pin_memory_available(self) -> bool:
        """False: the device uses the host's memory, so there is nothing to pin."""
        return False


class TpuHardware(Hardware):
    """A Google TPU, through torch_xla, which calls its device type `xla`."""

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
        """The devices `xla:0`, `xla:1` and so on; none if torch_xla runs on a substitute such as the CPU.

        Raises:
            PlatformError: torch_xla is installed but can't be imported.
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
        """`TPU`: torch_xla does not report the generation."""
        return str(self._xla("runtime").device_type())

    def total_memory(self) -> int | None:
        """The memory that torch_xla reports, in bytes."""
        return int(self._memory().get("bytes_limit", 0)) or None

    def current_memory_usage(self) -> int | None:
        """The memory in use that torch_xla reports, in bytes."""
        return self._memory().get("bytes_used")

    def _memory(self) -> dict[str, int]:
        found: dict[str, int] = self._xla("core.xla_model").get_memory_info(self.device)
        return found

    def get_device(self) -> str:
        """torch_xla's current device."""
        return str(self._xla("core.xla_model").xla_device())

    def synchronize(self) -> None:
        """Waits until the device has finished its work."""
        self._xla("core.xla_model").wait_device_ops([self.device])

    def distributed_backend(self) -> str:
        """`xla`."""
        return "xla"

    def seed(self, seed: int) -> None:
        """Seeds torch and the device."""
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
    """Huawei Ascend NPUs."""

    hardware_class = NpuHardware


class MpsPlatform(Platform):
    """Apple GPUs."""

    hardware_class = MpsHardware


class TpuPlatform(Platform):
    """Google TPUs."""

    hardware_class = TpuHardware
