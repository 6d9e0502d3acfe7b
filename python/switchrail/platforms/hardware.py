"""The device part of a platform: one device and its operations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import ClassVar

from switchrail.errors import NotProvidedError, PlatformError
from switchrail.platforms.identity import UNSPECIFIED, DeviceCapability


class Hardware:
    """One device of a family. Families derive from it and implement the methods that their devices support.

    A method that is not implemented raises NotProvidedError, a NotImplementedError that names platform and
    method. `name`, `total_memory` and `current_memory_usage` are mandatory. The engine and `Identity` use all
    methods except `distributed_backend`, which is for users who create a process group.

    Attributes:
        kind: The family: one of `switchrail.platforms.KINDS`, or `oot:NAME` for a plugin's family.
        device: torch's name of the device, such as `cuda:0`.
    """

    kind: ClassVar[str] = UNSPECIFIED

    def __init__(self, device: str | None = None) -> None:
        """Stores the device; does not open it.

        Args:
            device: torch's name of the device. None means the current device, or `cpu` if `get_device` is not
                implemented.
        """
        if device is None:
            is_told = type(self).get_device is not Hardware.get_device
            device = self.get_device() if is_told else "cpu"
        self.device = device

    @classmethod
    def devices(cls) -> tuple[str, ...]:
        """The names in torch of this family's devices on this machine, in order.

        For a plugin's family it is only called if a user selects a device by number, as in `acme:1`.
        """
        return ()

    def name(self) -> str:
        """The vendor's name of the device."""
        raise self._not_provided("name")

    def capability(self) -> DeviceCapability | None:
        """Its compute capability; None if the family has none."""
        return None

    def total_memory(self) -> int | None:
        """Its memory in bytes; None if unknown, never 0."""
        raise self._not_provided("total_memory")

    def current_memory_usage(self) -> int | None:
        """Bytes in use by this and other processes; None if unknown."""
        raise self._not_provided("current_memory_usage")

    def get_device(self) -> str:
        """The name in torch of the device on which this thread launches its work."""
        raise self._not_provided("get_device")

    def set_device(self, device: str) -> None:
        """Makes `device` the one on which this thread launches its work."""
        raise self._not_provided("set_device")

    @contextmanager
    def active(self) -> Iterator[None]:
        """Makes this device the current one in the block."""
        before = self.get_device()
        if before == self.device:
            yield
            return
        self.set_device(self.device)
        try:
            yield
        finally:
            self.set_device(before)

    def own_stream(self) -> Callable[[], AbstractContextManager[object]]:
        """Makes a stream for one engine, which keeps its steps in order in any threads.

        Returns:
            A function that returns a context manager. The context manager launches work on that stream, after
            the work on the thread's current stream, which then waits for the new work. It does nothing on
            devices without streams.
        """
        return nullcontext

    def synchronize(self) -> None:
        """Waits until the device has finished all launched work."""
        raise self._not_provided("synchronize")

    def empty_cache(self) -> None:
        """Returns the memory that torch caches to the device."""
        raise self._not_provided("empty_cache")

    def keeps_freed_memory(self) -> bool:
        """Whether freed memory still counts as in use until `empty_cache`.

        If so, the maximum memory of steps can be measured afterwards, and a trial determines the engine's
        pool sizes.
        """
        return False

    def distributed_backend(self) -> str:
        """The backend of `torch.distributed` for tensors on such devices, such as `nccl`."""
        raise self._not_provided("distributed_backend")

    def seed(self, seed: int) -> None:
        """Seeds torch's random number generators on the host and on the device."""
        raise self._not_provided("seed")

    def pin_memory_available(self) -> bool:
        """Whether the device can copy from pinned host memory asynchronously."""
        return False

    def supported_dtypes(self) -> tuple[str, ...]:
        """The dtypes of activations that it supports, by name."""
        raise self._not_provided("supported_dtypes")

    def support_cuda_graph(self) -> bool:
        """Whether a whole step can be captured and replayed. If not, the engine never captures."""
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
    """Checks that a device exists.

    Raises:
        PlatformError: It does not exist.
    """
    if device not in there:
        raise PlatformError(
            f"there is no device {device!r} here; valid: {', '.join(there) or 'none of this family'}",
            found=device,
            valid=tuple(there),
        )


__all__ = ["Hardware", "check_device"]
