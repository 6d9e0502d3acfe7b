"""A platform: an object that holds a device part and a serving part."""

from __future__ import annotations

from typing import Any, ClassVar

from switchrail.forks import SingleFlight
from switchrail.platforms.hardware import Hardware
from switchrail.platforms.identity import (
    OUT_OF_TREE,
    UNSPECIFIED,
    CpuArchitecture,
    DeviceCapability,
    Identity,
)
from switchrail.platforms.serving import Serving

_initializing = SingleFlight()


class Platform:
    """One device, with the classes and defaults of engines on it.

    The two parts are attributes, not base classes. So a vendor can combine the device part of one family with
    the serving part of another by naming both classes. The serving part refers to the device part, but not
    the reverse.

    ```
    class AcmePlatform(Platform):
        hardware_class = AcmeHardware
        serving_class = AcmeServing
    ```

    `Platform` itself sets neither class. It is the platform of kind `unspecified`, which supports nothing.

    Attributes:
        hardware: The device part.
        serving: The serving part.
    """

    hardware_class: ClassVar[type[Hardware]] = Hardware
    serving_class: ClassVar[type[Serving]] = Serving

    def __init__(self, device: str | None = None) -> None:
        """Creates both parts.

        Args:
            device: torch's name of the device; None means the family's current device.

        Raises:
            PlatformError: There is no such device.
        """
        self.hardware = self.hardware_class(device)
        self.serving = self.serving_class(self.hardware)
        self._initialized = False

    @property
    def kind(self) -> str:
        """The device family: one of `KINDS`, `oot:NAME`, or `unspecified`."""
        return self.hardware.kind

    @property
    def name(self) -> str:
        """The vendor's name for the device."""
        return self.hardware.name()

    @property
    def device(self) -> str:
        """The name of the device in torch, such as `cuda:0`."""
        return self.hardware.device

    @property
    def capability(self) -> DeviceCapability | None:
        """The device's compute capability; None if the family has none."""
        return self.hardware.capability()

    @property
    def identity(self) -> Identity:
        """The platform as plain data."""
        hardware = self.hardware
        return Identity(
            kind=hardware.kind,
            name=hardware.name(),
            device=hardware.device,
            capability=hardware.capability(),
            total_memory=hardware.total_memory(),
            cpu_architecture=CpuArchitecture.of_host(),
            support_cuda_graph=hardware.support_cuda_graph(),
            support_piecewise_cuda_graph=hardware.support_piecewise_cuda_graph(),
        )

    def initialize(self) -> None:
        """Lets the serving part prepare the process, once. After a failure the next call tries again."""
        _initializing.run(self._initialize)

    def _initialize(self) -> None:
        if not self._initialized:
            self.serving.initialize()
            self._initialized = True

    def is_cuda(self) -> bool:
        """Whether the device is an NVIDIA GPU."""
        return self.kind == "cuda"

    def is_rocm(self) -> bool:
        """Whether the device is an AMD GPU."""
        return self.kind == "rocm"

    def is_cpu(self) -> bool:
        """Whether the device is the host's processor."""
        return self.kind == "cpu"

    def is_xpu(self) -> bool:
        """Whether the device is an Intel GPU."""
        return self.kind == "xpu"

    def is_musa(self) -> bool:
        """Whether the device is a Moore Threads GPU."""
        return self.kind == "musa"

    def is_npu(self) -> bool:
        """Whether the device is a Huawei Ascend NPU."""
        return self.kind == "npu"

    def is_tpu(self) -> bool:
        """Whether the device is a Google TPU."""
        return self.kind == "tpu"

    def is_mps(self) -> bool:
        """Whether the device is an Apple GPU."""
        return self.kind == "mps"

    def is_out_of_tree(self) -> bool:
        """Whether the device family comes from a plugin."""
        return self.kind.startswith(OUT_OF_TREE)

    def is_unspecified(self) -> bool:
        """Whether the class of the device part sets no kind."""
        return self.kind == UNSPECIFIED

    def is_cuda_alike(self) -> bool:
        """Whether the device is programmed through CUDA or an interface modelled on it (ROCm, MUSA)."""
        return self.kind in ("cuda", "rocm", "musa")

    def __eq__(self, other: object) -> bool:
        """Whether `other` has the same class and the same device."""
        return isinstance(other, Platform) and (type(self), self.device) == (type(other), other.device)

    def __hash__(self) -> int:
        return hash((type(self), self.device))

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        """Pickles class and device. Unpickling creates a new platform for the device of that name."""
        return type(self), (self.device,)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.kind} on {self.device}>"
