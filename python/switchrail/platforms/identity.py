"""The identity of a platform as plain data. It can be pickled and compared without the device."""

from __future__ import annotations

import platform as host
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from switchrail.errors import CapabilityError

OUT_OF_TREE: Final = "oot:"
"""Prefix of the kind of a plugin's device family: `oot:NAME`."""

UNSPECIFIED: Final = "unspecified"
"""The kind of a platform whose device class (a subclass of `Hardware`) sets no kind."""


class DeviceCapability(NamedTuple):
    """A compute capability; ordered by version.

    >>> DeviceCapability(9, 0) >= DeviceCapability(8, 9)
    True
    >>> print(DeviceCapability(9, 0))
    9.0
    """

    major: int
    minor: int

    def as_version_str(self) -> str:
        """The version as a string, such as `9.0`."""
        return f"{self.major}.{self.minor}"

    def to_int(self) -> int:
        """The version as an integer, such as 90.

        Raises:
            CapabilityError: The minor number has more than one digit, so the integer would be ambiguous.
        """
        if not 0 <= self.minor <= 9:
            raise CapabilityError(
                f"capability {self} can't be written as an integer: its minor version is {self.minor}; "
                "valid: 0 to 9",
                found=tuple(self),
                valid=tuple(range(10)),
            )
        return self.major * 10 + self.minor

    def __str__(self) -> str:
        return self.as_version_str()


class CpuArchitecture(str, Enum):
    """The architecture of a processor."""

    X86 = "x86"
    ARM = "arm"
    RISCV = "riscv"
    POWER = "power"
    S390 = "s390"
    UNSPECIFIED = "unspecified"

    @classmethod
    def of(cls, machine: str) -> CpuArchitecture:
        """The architecture that the operating system calls `machine`, such as `x86_64` or `aarch64`."""
        name = machine.lower()
        for start, found in _MACHINES:
            if name.startswith(start):
                return found
        return cls.UNSPECIFIED

    @classmethod
    def of_host(cls) -> CpuArchitecture:
        """The architecture of this machine."""
        return cls.of(host.machine())


_MACHINES: Final = (
    ("x86", CpuArchitecture.X86),
    ("amd64", CpuArchitecture.X86),
    ("i386", CpuArchitecture.X86),
    ("i686", CpuArchitecture.X86),
    ("arm", CpuArchitecture.ARM),
    ("aarch64", CpuArchitecture.ARM),
    ("riscv", CpuArchitecture.RISCV),
    ("ppc", CpuArchitecture.POWER),
    ("s390", CpuArchitecture.S390),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A platform as plain data.

    Attributes:
        kind: The family: one of `switchrail.platforms.KINDS`, `oot:NAME`, or `unspecified`.
        name: The vendor's name for the device.
        device: torch's name of the device, such as `cuda:0`.
        capability: The device's compute capability; None if the family has none.
        total_memory: The device's memory in bytes; None if unknown.
        cpu_architecture: The architecture of the host's processor.
        support_cuda_graph: Whether a whole step can be captured and replayed.
        support_piecewise_cuda_graph: Whether a step can be captured and replayed in pieces, with eager op
            calls between them.
    """

    kind: str
    name: str
    device: str
    capability: DeviceCapability | None
    total_memory: int | None
    cpu_architecture: CpuArchitecture
    support_cuda_graph: bool
    support_piecewise_cuda_graph: bool
