"""Platforms: device families, their devices, and the classes and defaults of engines on these devices.

`docs/platforms.md` lists the families and explains how a distribution adds another one. Importing this
package does not import torch; looking for a device does.
"""

from __future__ import annotations

from switchrail.platforms.accelerator import Accelerator
from switchrail.platforms.builtin import KINDS, detect
from switchrail.platforms.choice import PlatformChoice
from switchrail.platforms.cpu import CpuHardware, CpuPlatform, CpuServing
from switchrail.platforms.cuda import CudaHardware, CudaPlatform, CudaServing
from switchrail.platforms.described import described
from switchrail.platforms.hardware import Hardware
from switchrail.platforms.identity import CpuArchitecture, DeviceCapability, Identity
from switchrail.platforms.operations import OPERATIONS, Operation
from switchrail.platforms.platform import Platform
from switchrail.platforms.serving import Serving

__all__ = [
    "KINDS",
    "OPERATIONS",
    "Accelerator",
    "CpuArchitecture",
    "CpuHardware",
    "CpuPlatform",
    "CpuServing",
    "CudaHardware",
    "CudaPlatform",
    "CudaServing",
    "DeviceCapability",
    "Hardware",
    "Identity",
    "Operation",
    "Platform",
    "PlatformChoice",
    "Serving",
    "described",
    "detect",
]
