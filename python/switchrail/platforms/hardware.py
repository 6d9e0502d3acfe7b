"""The device part of a platform: one device and the operations on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import ClassVar

from switchrail.errors import NotProvidedError, PlatformError
from switchrail.platforms.identity import UNSPECIFIED, DeviceCapability


class Hardware:
    """One device. Each family derives a class and implements the methods that its devices support.

    A method that has no default and is not implemented raises a NotProvidedError (a NotImplementedError) that
    names the platform and the method. `name`, `total_memory` and `current_memory_usage` are mandatory. An
    engine also needs `get_device`, `set_device`, `supported_dtypes` and `empty_cache`, `synchronize` if it
    sizes its pools by the free memory, and `seed` if it is created with a seed. `distributed_backend` is only
    for code that creates a process group.

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
        """The torch names of this family's devices on this machine, in order.

        For a plugin's family, this method is called only if a user selects a device by number, as in
        `acme:1`.
        """
        return ()

    def name(self) -> str:
        """The vendor's name for the device."""
        raise self._not_provided("name")

    def capability(self) -> DeviceCapability | None:
        """The device's compute capability; None if the family has none."""
        return None

    def total_memory(self) -> int | None:
        """The device's memory in bytes; None if unknown, never 0."""
        raise self._not_provided("total_memory")

    def current_memory_usage(self) -> int | None:
        """Bytes in use by this and other processes; None if unknown."""
        raise self._not_provided("current_memory_usage")

    def get_device(self) -> str:
        """The torch name of the device on which the current thread launches its work."""
        raise self._not_provided("get_device")

    def set_device(self, device: str) -> None:
        """Makes the current thread launch its work on `device`."""
        raise self._not_provided("set_device")

    @contextmanager
    def active(self) -> Iterator[None]:
        """In the block, the current thread launches its work on this device."""
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
        """Creates a stream for one engine. The stream keeps steps in order even if several threads run them.

        Returns:
            A function that returns a context manager. In its block, work is launched on the new stream, after
            the earlier work on the thread's current stream; the current stream then waits for the new work.
            On devices without streams, the context manager does nothing.
        """
        return nullcontext

    def synchronize(self) -> None:
        """Waits until the device has finished all launched work."""
        raise self._not_provided("synchronize")

    def empty_cache(self) -> None:
        """Gives the memory that torch's allocator caches back to the device."""
        raise self._not_provided("empty_cache")

    def keeps_freed_memory(self) -> bool:
        """Whether freed memory still counts as in use until `empty_cache`.

        If True, the peak memory of a trial step can be measured after the step, and the engine sizes its
        pools by this measurement.
        """
        return False

    def distributed_backend(self) -> str:
        """The backend of `torch.distributed` for this family's devices, such as `nccl`."""
        raise self._not_provided("distributed_backend")

    def seed(self, seed: int) -> None:
        """Seeds torch's random number generators on the host and on the device."""
        raise self._not_provided("seed")

    def pin_memory_available(self) -> bool:
        """Whether the device can copy from pinned host memory asynchronously."""
        return False

    def supported_dtypes(self) -> tuple[str, ...]:
        """The names of the activation dtypes that the device supports."""
        raise self._not_provided("supported_dtypes")

    def support_cuda_graph(self) -> bool:
        """Whether a whole step can be captured and replayed. If not, the engine never captures."""
        return False

    def support_piecewise_cuda_graph(self) -> bool:
        """Whether a step can be captured and replayed in pieces, with eager op calls between them."""
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
        PlatformError: There is no such device.
    """
    if device not in there:
        raise PlatformError(
            f"there is no device {device!r} here; valid: "
            f"{', '.join(there) or 'none, as no device of this family is present'}",
            found=device,
            valid=tuple(there),
        )
