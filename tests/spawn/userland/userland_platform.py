"""A user's platform, on the host."""

from switchrail.platforms import CpuHardware, CpuPlatform


class MineHardware(CpuHardware):
    kind = "oot:mine"


class Mine(CpuPlatform):
    hardware_class = MineHardware
