"""Stand-in: the kinds and capabilities of devices."""

from enum import Enum
from typing import NamedTuple


class PlatformEnum(Enum):
    OOT = 1


class DeviceCapability(NamedTuple):
    major: int
    minor: int
