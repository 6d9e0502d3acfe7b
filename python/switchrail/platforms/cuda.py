"""NVIDIA GPUs and AMD GPUs. torch drives both through `torch.cuda`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from switchrail.platforms.accelerator import Accelerator
from switchrail.platforms.build import built_for
from switchrail.platforms.driver import Gpu, gpus
from switchrail.platforms.identity import DeviceCapability
from switchrail.platforms.platform import Platform
from switchrail.platforms.serving import Serving

if TYPE_CHECKING:
    from switchrail.platforms.graph import Graph


class _Gpu(Accelerator):
    """A GPU that torch drives through `torch.cuda`."""

    torch_type = "cuda"
    process_group = "nccl"

    def supported_dtypes(self) -> tuple[str, ...]:
        """float32 and float16, and bfloat16 from capability 8.0 on."""
        capability = self.capability()
        assert capability is not None
        return ("bfloat16", "float16", "float32") if capability >= (8, 0) else ("float16", "float32")

    def support_cuda_graph(self) -> bool:
        """True."""
        return True

    def support_piecewise_cuda_graph(self) -> bool:
        """True."""
        return True


class CudaHardware(_Gpu):
    """An NVIDIA GPU. Name, capability and total memory come from the driver, without importing torch."""

    kind = "cuda"

    @classmethod
    def devices(cls) -> tuple[str, ...]:
        """The devices `cuda:0`, `cuda:1` and so on; none if torch is missing or was built without CUDA."""
        return tuple(f"cuda:{index}" for index in range(len(cls._gpus())))

    @classmethod
    def _gpus(cls) -> tuple[Gpu, ...]:
        toolkit = built_for("cuda")
        return () if toolkit is None else gpus(toolkit)

    @classmethod
    def _current(cls) -> str:
        return super()._current() if "torch" in sys.modules else "cuda:0"

    def name(self) -> str:
        """The name that the driver reports."""
        return self._gpus()[self.index].name

    def capability(self) -> DeviceCapability | None:
        """The capability that the driver reports."""
        return self._gpus()[self.index].capability

    def total_memory(self) -> int:
        """The memory that the driver reports, in bytes."""
        return self._gpus()[self.index].total_memory


class RocmHardware(_Gpu):
    """An AMD GPU. torch calls its device type `cuda` too."""

    kind = "rocm"

    @classmethod
    def _is_present(cls) -> bool:
        return built_for("hip") is not None and super()._is_present()

    def capability(self) -> DeviceCapability | None:
        """The capability that torch reports."""
        properties = self._module().get_device_properties(self.index)
        return DeviceCapability(properties.major, properties.minor)


class _GpuServing(Serving):
    """The serving part of GPUs that torch drives through `torch.cuda`. Engines on them capture steps."""

    def graph_class(self) -> type[Graph]:
        """The CUDA graphs of torch."""
        from switchrail.platforms.cuda_graph import CudaGraph

        return CudaGraph


_LARGE: Final = 70 * 2**30
"""A GPU with at least this many bytes of memory is large. GPUs sold as 80 GB have less than 80 GiB."""


class CudaServing(_GpuServing):
    """The serving part of NVIDIA GPUs."""

    def engine_defaults(self) -> Mapping[str, Any]:
        """Pages of 64 tokens, steps of 8,192 rows, pauses between prompt steps; 256 sequences on large GPUs.

        Kernels read a page of 64 tokens at once: on an H200, prefill took a quarter longer with pages of 16
        (docs/tune.md). Steps of 8,192 rows keep the device busy while the host launches the next step. A step
        with one prompt takes three times as long as a decode of 100 sequences, so prompts that arrive one by
        one wait to run together. 256 sequences were measured on GPUs of 80 GB and more; their states may not
        fit on smaller GPUs.
        """
        sizes = {"page_size": 64, "max_tokens_per_step": 8192, "prompt_pause": 1.0}
        memory = self.hardware.total_memory()
        return sizes if memory is None or memory < _LARGE else {**sizes, "max_sequences": 256}

    def compiles(self, kind: str, *, fused: bool) -> bool:
        """True unless a function of the platform computes the layer: compiling makes such a layer slower."""
        return not fused


class CudaPlatform(Platform):
    """NVIDIA GPUs."""

    hardware_class = CudaHardware
    serving_class = CudaServing


class RocmPlatform(Platform):
    """AMD GPUs."""

    hardware_class = RocmHardware
    serving_class = _GpuServing
