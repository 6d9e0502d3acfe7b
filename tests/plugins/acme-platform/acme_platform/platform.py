"""Acme's platform: a hardware part, a serving part, and their combination."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from switchrail import Platform
from switchrail.platforms import DeviceCapability, Hardware, Serving, detect
from switchrail.pools import FreeList, KVPool, StatePool

from acme_platform import BACKENDS, VARIABLE
from acme_platform.memory import AcmeAllocator, AcmeKVPool, AcmeStatePool
from acme_platform.operations import rms_norm


class AcmeHardware(Hardware):
    """A device of the family. All but its kind, name and capability comes from the real device's platform."""

    kind = "oot:acme"

    def __init__(self, device: str | None = None) -> None:
        behind = detect(device or os.environ.get(VARIABLE, "cpu"))
        super().__init__(behind.device)
        self._behind = behind.hardware

    @classmethod
    def devices(cls) -> tuple[str, ...]:
        return type(detect(os.environ.get(VARIABLE, "cpu")).hardware).devices()

    def name(self) -> str:
        return f"Acme A1 ({self._behind.name()})"

    def capability(self) -> DeviceCapability:
        return DeviceCapability(4, 2)

    def total_memory(self) -> int:
        return self._behind.total_memory()

    def current_memory_usage(self) -> int:
        return self._behind.current_memory_usage()

    def get_device(self) -> str:
        return self._behind.get_device()

    def set_device(self, device: str) -> None:
        self._behind.set_device(device)

    def synchronize(self) -> None:
        self._behind.synchronize()

    def empty_cache(self) -> None:
        self._behind.empty_cache()

    def distributed_backend(self) -> str:
        return self._behind.distributed_backend()

    def seed(self, seed: int) -> None:
        self._behind.seed(seed)

    def pin_memory_available(self) -> bool:
        return self._behind.pin_memory_available()

    def supported_dtypes(self) -> tuple[str, ...]:
        return self._behind.supported_dtypes()


class AcmeServing(Serving):
    """Defaults, memory pools and operations of engines on Acme's devices."""

    def initialize(self) -> None:
        self.register_oot_forward("rms_norm", rms_norm)

    def engine_defaults(self) -> Mapping[str, Any]:
        return {"page_size": 32, "memory_fraction": 0.1}

    def default_backend(self, op: str, phase: str) -> str | None:
        return "acme_ops" if op in BACKENDS else None

    def after_weights_loaded(self, model: Any) -> None:
        for weight in model.parameters():  # the family requires contiguous weights
            weight.data = weight.data.contiguous()

    def kv_pool_class(self, kind: str) -> type[KVPool[Any]]:
        return AcmeKVPool if kind == "mha" else super().kv_pool_class(kind)

    def state_pool_class(self) -> type[StatePool]:
        return AcmeStatePool

    def paged_allocator_class(self) -> type[FreeList]:
        return AcmeAllocator

    def dispatch_key(self) -> str:
        return "cpu"  # operations without a function of Acme's use `forward_cpu`, if they have it


class AcmePlatform(Platform):
    """The platform with both parts."""

    hardware_class = AcmeHardware
    serving_class = AcmeServing
