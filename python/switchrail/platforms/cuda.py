"""NVIDIA GPUs, and AMD GPUs, which torch drives through the same module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from switchrail.platforms.accelerator import Accelerator
from switchrail.platforms.identity import DeviceCapability
from switchrail.platforms.platform import Platform
from switchrail.platforms.serving import Serving


class CudaHardware(Accelerator):
    """An NVIDIA GPU.

    Attributes:
        hip: Whether it is driven by a torch that was built for AMD's GPUs.
    """

    kind = "cuda"
    torch_type = "cuda"
    process_group = "nccl"
    hip: ClassVar[bool] = False

    @classmethod
    def _is_present(cls) -> bool:
        return super()._is_present() and _is_built_for_hip() == cls.hip

    def capability(self) -> DeviceCapability | None:
        """As torch has it."""
        properties = self._module().get_device_properties(self.index)
        return DeviceCapability(properties.major, properties.minor)

    def supported_dtypes(self) -> tuple[str, ...]:
        """bfloat16 from capability 8.0 on."""
        capability = self.capability()
        assert capability is not None
        return ("bfloat16", "float16", "float32") if capability >= (8, 0) else ("float16", "float32")

    def support_cuda_graph(self) -> bool:
        """It does."""
        return True

    def support_piecewise_cuda_graph(self) -> bool:
        """It does."""
        return True


class RocmHardware(CudaHardware):
    """An AMD GPU; torch calls it `cuda` too."""

    kind = "rocm"
    hip = True


class CudaServing(Serving):
    """The built-in parts."""

    def engine_defaults(self) -> Mapping[str, Any]:
        """Pages of 64 tokens, which kernels read at once: with pages of 16 prefill takes a quarter longer."""
        return {"page_size": 64}


class CudaPlatform(Platform):
    """NVIDIA GPUs."""

    hardware_class = CudaHardware
    serving_class = CudaServing


class RocmPlatform(Platform):
    """AMD GPUs."""

    hardware_class = RocmHardware


def _is_built_for_hip() -> bool:
    import torch

    return torch.version.hip is not None


__all__ = ["CudaHardware", "CudaPlatform", "CudaServing", "RocmHardware", "RocmPlatform"]
