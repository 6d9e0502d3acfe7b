"""A platform of a user's, on the host."""

from switchrail.platforms import CpuHardware, CpuPlatform


class MineHardware(CpuHardware):
    kind = "oot:mine"


class Mine(CpuPlatform):
    hardware_class = MineHardware
