"""Switchrail's platform with SGLang's interface. Imports no module of SGLang that needs a platform."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.platforms.device_mixin import DeviceCapability, PlatformEnum
from sglang.srt.platforms.interface import SRTPlatform

from switchrail.bridges.sglang.names import OURS
from switchrail.current import current_runtime
from switchrail.errors import PlatformError


class SwitchrailPlatform(SRTPlatform):  # type: ignore[misc]
    """The platform of this process's runtime. Its default backends are Switchrail's."""

    _enum = PlatformEnum.OOT

    def __init__(self) -> None:
        """Reads the platform of the current runtime."""
        platform = current_runtime().platform
        self._hardware = platform.hardware
        self.device_name = platform.kind.removeprefix("oot:")
        self.device_type = platform.device.split(":")[0]

    def apply_server_args_defaults(self, server_args: Any) -> None:
        """Replaces `triton`, SGLang's default backend for linear attention, by `OURS`.

        It does so even if the user chose `triton`: the choice looks the same as the default.
        """
        if server_args.linear_attn_backend == "triton":
            server_args.linear_attn_backend = OURS

    def get_default_attention_backend(self) -> str:
        """`OURS`, which lets Switchrail choose. On CPUs, SGLang uses its own default instead."""
        return OURS

    def support_mamba_cache_extra_buffer(self) -> bool:
        """True: SGLang's prefix cache can keep states from within a prompt."""
        return True

    def get_device_total_memory(self, device_id: int = 0) -> int:
        """The device's memory in bytes."""
        return _known(self._hardware.total_memory(), "total memory")

    def get_current_memory_usage(self, device: object = None) -> float:
        """The device's memory in use, in bytes."""
        return float(_known(self._hardware.current_memory_usage(), "memory in use"))

    def get_available_memory(self, device_id: int = 0) -> tuple[int, int]:
        """The device's free memory and all of its memory, in bytes."""
        total = self.get_device_total_memory(device_id)
        return total - int(self.get_current_memory_usage()), total

    def is_pin_memory_available(self, device: object = None) -> bool:
        """Whether the device can copy from pinned host memory."""
        return self._hardware.pin_memory_available()

    def get_device(self, device_id: int = 0) -> torch.device:
        """The torch device with this number."""
        name = self.device_type
        return torch.device(name if name == "cpu" else f"{name}:{device_id}")

    def set_device(self, device: torch.device) -> None:
        """Sets torch's current device."""
        self._hardware.set_device(str(device))

    def get_device_name(self, device_id: int = 0) -> str:
        """The vendor's name for the device."""
        return self._hardware.name()

    def get_device_capability(self, device_id: int = 0) -> Any:
        """The compute capability; None if this family of devices has none."""
        found = self._hardware.capability()
        return None if found is None else DeviceCapability(*found)

    def empty_cache(self) -> None:
        """Returns cached memory to the device."""
        self._hardware.empty_cache()

    def synchronize(self) -> None:
        """Waits for the device."""
        self._hardware.synchronize()

    def get_torch_distributed_backend_str(self) -> str:
        """The name of the backend for `torch.distributed`."""
        return self._hardware.distributed_backend()


def _known(number: int | None, what: str) -> int:
    if number is None:
        raise PlatformError(f"SGLang asks for the device's {what} in bytes, which the platform can't report")
    return number
