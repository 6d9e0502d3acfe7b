"""A vendor's Switchrail platform becomes SGLang's platform, with stand-ins for SGLang's classes."""

from importlib import import_module
from types import SimpleNamespace

import pytest
import torch
from switchrail.bridges.sglang import platform as entry
from switchrail.errors import PlatformError
from switchrail.platforms import CpuHardware, DeviceCapability, Platform


class VendorsHardware(CpuHardware):
    kind = "oot:vendor"
    memory = 1000

    def name(self):
        return "Vendor V1"

    def capability(self):
        return DeviceCapability(4, 2)

    def total_memory(self):
        return self.memory

    def current_memory_usage(self):
        return 300


class VendorsPlatform(Platform):
    hardware_class = VendorsHardware


def test_without_a_vendors_platform_sglang_chooses(runtime):
    runtime.use_platform("cpu")
    assert entry.activate() is None


def test_a_vendors_platform_is_sglangs(runtime):
    runtime.use_platform(VendorsPlatform())
    module, _, name = entry.activate().partition(":")
    platform = getattr(import_module(module), name)()
    assert (platform.device_name, platform.device_type) == ("vendor", "cpu")
    assert platform.get_device_name() == "Vendor V1"
    assert platform.get_device_capability() == (4, 2)
    assert platform.get_device() == torch.device("cpu")
    assert platform.get_available_memory() == (700, 1000)
    assert platform.get_torch_distributed_backend_str() == "gloo"
    assert platform.get_default_attention_backend() == "switchrail"
    for chosen, found in (("triton", "switchrail"), ("flashinfer", "flashinfer")):
        arguments = SimpleNamespace(linear_attn_backend=chosen)
        platform.apply_server_args_defaults(arguments)
        assert arguments.linear_attn_backend == found
    platform._hardware.memory = None
    with pytest.raises(PlatformError, match="SGLang asks for the device's total memory in bytes"):
        platform.get_device_total_memory()
