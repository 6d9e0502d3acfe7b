"""Stand-in: what a device is called."""

from enum import Enum
from typing import NamedTuple


class PlatformEnum(Enum):
    OOT = 1


class DeviceCapability(NamedTuple):
    major: int
    minor: int
