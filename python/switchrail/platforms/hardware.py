"""The device part of a platform: one device and its operations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar

from switchrail.errors import NotProvidedError, PlatformError
from switchrail.platforms.identity import UNSPECIFIED, DeviceCapability


class Hardware:
    """One device of a family. A family derives from it and provides the methods that its devices support.

    A missing method raises NotProvidedError, a NotImplementedError that names platform and method.
    `name`, `total_memory` and `current_memory_usage` are mandatory. The engine, or the identity that it
    shows, asks for everything but `distributed_backend`, which is for those who start a process group.

    Attributes:
        kind: The family: one of `switchrail.platforms.KINDS`, or `oot:NAME` for one that a plugin brings.
        device: Torch's name of the device, such as `cuda:0`.
    """

    kind: ClassVar[str] = UNSPECIFIED

    def __init__(self, device: str | None = None) -> None:
        """Takes a device; opens nothing.

        Args:
            device: What torch calls it; None: the one that is current, `cpu` where `get_device` is not
                provided.
        """
        if device is None:
            is_told = type(self).get_device is not Hardware.get_device
            device = self.get_device() if is_told else "cpu"
        self.device = device

    @classmethod
    def devices(cls) -> tuple[str, ...]:
        """Torch's names of this family's devices on this machine, in order.

        A plugin's are looked at only where a user names one of them by its number, as in `acme:1`.
        """
        return ()

    def name(self) -> str:
        """The vendor's name of the device."""
        raise self._not_provided("name")

    def capability(self) -> DeviceCapability | None:
        """Its compute capability; None where the family has no such number."""
        return None

    def total_memory(self) -> int | None:
        """Its memory in bytes; None where nobody tells, never 0."""
        raise self._not_provided("total_memory")

    def current_memory_usage(self) -> int | None:
        """Bytes of it that are in use, by this process and others; None where nobody tells."""
        raise self._not_provided("current_memory_usage")

    def get_device(self) -> str:
        """Torch's name of the device on which this thread launches its work."""
        raise self._not_provided("get_device")

    def set_device(self, device: str) -> None:
        """Makes another device of the family the one on which this thread launches its work."""
        raise self._not_provided("set_device")

    @contextmanager
    def active(self) -> Iterator[None]:
        """Launches the work of the block on this device, wherever its tensors are."""
        before = self.get_device()
        if before == self.device:
            yield
            return
        self.set_device(self.device)
        try:
            yield
        finally:
            self.set_device(before)

    def synchronize(self) -> None:
        """Waits until the device has done all that was launched."""
        raise self._not_provided("synchronize")

    def empty_cache(self) -> None:
        """Gives memory that torch keeps for later back to the device."""
        raise self._not_provided("empty_cache")

    def distributed_backend(self) -> str:
        """The backend of `torch.distributed` for tensors on such devices, such as `nccl`."""
        raise self._not_provided("distributed_backend")

    def seed(self, seed: int) -> None:
        """Starts the random numbers of torch anew, on the host and on the device."""
        raise self._not_provided("seed")

    def pin_memory_available(self) -> bool:
        """Whether the device copies from pinned host memory without the host waiting for it."""
        return False

    def supported_dtypes(self) -> tuple[str, ...]:
        """The dtypes of activations that it computes in, by name."""
        raise self._not_provided("supported_dtypes")

    def support_cuda_graph(self) -> bool:
        """Whether a whole step can be captured and replayed; the engine never captures where not."""
        return False

    def support_piecewise_cuda_graph(self) -> bool:
        """Whether the parts of a step between its attention calls can be captured and replayed."""
        return False

    def _not_provided(self, method: str) -> NotProvidedError:
        return NotProvidedError(
            f"platform {self.kind!r} ({type(self).__module__}.{type(self).__qualname__}) does not provide "
            f"{method!r}",
            platform=self.kind,
            method=method,
        )


def check_device(device: str, there: Sequence[str]) -> None:
    """Checks that a device is one of those that are there.

    Raises:
        PlatformError: It is none.
    """
    if device not in there:
        raise PlatformError(
            f"there is no device {device!r} here; valid: {', '.join(there) or 'none of this family'}",
            found=device,
            valid=tuple(there),
        )


__all__ = ["Hardware", "check_device"]
