"""Stand-ins for packages and torch modules that add device families to torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

MODULE = """
import types
from types import SimpleNamespace

import torch

state = SimpleNamespace(current=0, log=[])


def family(name, **more):
    module = types.ModuleType(f"torch.{name}")

    def set_device(device):
        state.current = int(str(device).rpartition(":")[2])

    for key, value in {
        "is_available": lambda: True,
        "device_count": lambda: 2,
        "current_device": lambda: state.current,
        "set_device": set_device,
        "get_device_name": lambda index: f"Stand-in {index}",
        "get_device_properties": lambda index: SimpleNamespace(total_memory=1 << 33),
        "get_device_capability": lambda index: (3, 1),
        "mem_get_info": lambda index: (3 << 30, 1 << 33),
        "synchronize": lambda *device: state.log.append(("synchronize", *device)),
        "empty_cache": lambda: state.log.append(("empty_cache",)),
        "manual_seed": lambda seed: state.log.append(("seed", seed)),
        "manual_seed_all": lambda seed: state.log.append(("seed", seed)),
        "_is_in_bad_fork": lambda: False,
        **more,
    }.items():
        setattr(module, key, value)
    return module
"""

PACKAGES = {
    "torch_musa": MODULE + "\ntorch.musa = family('musa')\n",
    "torch_npu": MODULE + "\ntorch.npu = family('npu')\n",
}

XLA_RUNTIME = """
kind = "TPU"


def device_type():
    return kind


def addressable_device_count():
    return 4
"""

XLA_MODEL = """
log = []


def get_memory_info(device):
    return {"bytes_limit": 16 << 30, "bytes_used": 1 << 30}


def xla_device():
    return "xla:0"


def wait_device_ops(devices):
    log.append(("synchronize", *devices))


def set_rng_state(seed, device):
    log.append(("seed", seed, device))
"""


def install(folder: Path, package: str) -> None:
    """Write a stand-in package to a folder that is on `sys.path`."""
    if package == "torch_xla":
        (folder / package / "core").mkdir(parents=True)
        for name, code in {
            "__init__": "",
            "runtime": XLA_RUNTIME,
            "core/__init__": "",
            "core/xla_model": XLA_MODEL,
        }.items():
            (folder / package / f"{name}.py").write_text(code)
    else:
        (folder / f"{package}.py").write_text(PACKAGES[package])


def in_torch(name: str) -> tuple[Any, Any]:
    """A stand-in for torch's module of a family, and its state: the current device and the recorded calls."""
    space: dict[str, Any] = {}
    exec(MODULE, space)
    return space["family"](name), space["state"]


def mps() -> tuple[Any, Any]:
    """A stand-in for `torch.mps`, and its state, which has the recorded calls."""
    module, state = in_torch("mps")
    del module.current_device, module.set_device, module.mem_get_info, module.get_device_properties
    module.device_count = lambda: 1
    module.recommended_max_memory = lambda: 1 << 33
    module.driver_allocated_memory = lambda: 5 << 30
    return module, state
