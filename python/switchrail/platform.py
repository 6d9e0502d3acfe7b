"""The device that a model runs on. torch is imported with the first detection."""

from __future__ import annotations

import os
import platform as host
from dataclasses import dataclass
from typing import TYPE_CHECKING

from switchrail.errors import PlatformError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Platform:
    """One device.

    Attributes:
        kind: Its family, `cpu` or `cuda`.
        name: What its maker calls it.
        device: What torch calls it, such as `cuda:0`.
        capability: Its compute capability as (major, minor), where the family has one.
        total_memory: Its memory in bytes.
    """

    kind: str
    name: str
    device: str
    capability: tuple[int, int] | None
    total_memory: int

    @classmethod
    def detect(cls, device: str | torch.device | None = None) -> Platform:
        """The platform of a torch device; without one, the first CUDA device if there is any, else the CPU.

        Raises:
            PlatformError: The device is of another family, or is not there.
        """
        import torch

        cuda = torch.version.cuda is not None and torch.cuda.is_available()
        if device is None:
            device = "cuda" if cuda else "cpu"
        try:
            found = torch.device(device)
        except (RuntimeError, TypeError) as error:
            raise _unavailable(device, cuda) from error
        if found.type == "cpu":
            return cls("cpu", host.processor() or host.machine(), "cpu", None, _host_memory())
        if found.type != "cuda" or not cuda:
            raise _unavailable(device, cuda)
        index = torch.cuda.current_device() if found.index is None else found.index
        if index >= torch.cuda.device_count():
            raise _unavailable(device, cuda)
        properties = torch.cuda.get_device_properties(index)
        capability = (properties.major, properties.minor)
        return cls("cuda", properties.name, f"cuda:{index}", capability, properties.total_memory)


def _host_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _unavailable(device: object, cuda: bool) -> PlatformError:
    import torch

    valid = ("cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count() if cuda else 0)))
    return PlatformError(
        f"there is no device {str(device)!r} here; valid: {', '.join(valid)}", found=str(device), valid=valid
    )
