"""Functions for operations, registered with a runtime."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest
import switchrail
from switchrail.errors import ArgumentError, BackendImportError, RegistrationError, TransactionClosedError
from switchrail.platforms import CpuHardware, CpuPlatform, CpuServing, DeviceCapability, Platform
from switchrail.platforms.operations import RMSNorm, SiluAndMul
from switchrail.registration import DeviceSupport


def rms_norm(x: Any, weight: Any, *, eps: float, weight_offset: float) -> Any:
    return x


def other(x: Any, weight: Any, *, eps: float, weight_offset: float) -> Any:
    return x


def on(capability: tuple[int, int] | None = None, serving: type[CpuServing] = CpuServing) -> Platform:
    """A platform of the kind oot:acme, without functions for operations."""

    class Hardware(CpuHardware):
        kind = "oot:acme"

        def capability(self) -> DeviceCapability | None:
            return None if capability is None else DeviceCapability(*capability)

    return type("Made", (CpuPlatform,), {"hardware_class": Hardware, "serving_class": serving})()


def test_a_registered_function_serves_if_the_platform_has_none() -> None:
    runtime = switchrail.Runtime()
    platform = on()
    assert runtime.forward_of(RMSNorm, platform) is None
    runtime.operation("rms_norm", rms_norm, devices=("oot:acme",))
    assert runtime.forward_of(RMSNorm, platform) is rms_norm
    assert runtime.forward_of(RMSNorm, CpuPlatform()) is None
    assert switchrail.Runtime().forward_of(RMSNorm, platform) is None
    platform.serving.register_oot_forward("rms_norm", other)
    assert runtime.forward_of(RMSNorm, platform) is other
    runtime.operation("silu_and_mul", lambda gate, up: up)
    assert runtime.forward_of(SiluAndMul, CpuPlatform()) is SiluAndMul.forward_cpu


def test_a_function_may_require_a_capability() -> None:
    runtime = switchrail.Runtime()
    runtime.operation("rms_norm", rms_norm, devices=[DeviceSupport("oot:acme", (8, 0), (9, 0))])
    found = [runtime.forward_of(RMSNorm, on(one)) for one in (None, (7, 5), (8, 0), (8, 9), (9, 0), (9, 1))]
    assert found == [None, None, rms_norm, rms_norm, rms_norm, None]


def test_a_path_is_imported_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = switchrail.Runtime()
    runtime.operation("rms_norm", "acme_functions:rms_norm", devices=("oot:acme",))
    with pytest.raises(
        BackendImportError, match="'rms_norm' can't be imported from 'acme_functions:rms_norm'"
    ):
        runtime.forward_of(RMSNorm, on())
    module: Any = types.ModuleType("acme_functions")
    monkeypatch.setitem(sys.modules, "acme_functions", module)
    module.rms_norm = lambda x: x
    with pytest.raises(RegistrationError, match="can't serve operation 'rms_norm': it has parameters"):
        runtime.forward_of(RMSNorm, on())
    module.rms_norm = rms_norm
    assert runtime.forward_of(RMSNorm, on()) is rms_norm


def test_a_transaction_brings_all_or_nothing() -> None:
    runtime = switchrail.Runtime()

    def fail() -> None:
        with runtime.transaction() as registry:
            registry.operation("rms_norm", rms_norm, devices=("oot:acme",))
            raise OSError("no")

    def bring_two() -> None:
        with runtime.transaction() as registry:
            registry.operation("silu_and_mul", lambda gate, up: up, devices=("oot:acme",))
            registry.operation("rms_norm", other, devices=("oot:acme", "cuda"))

    with pytest.raises(OSError, match="no"):
        fail()
    assert runtime.forward_of(RMSNorm, on()) is None
    with runtime.transaction() as registry:
        registry.operation("rms_norm", rms_norm, devices=("oot:acme",))
        assert runtime.forward_of(RMSNorm, on()) is None
    assert runtime.forward_of(RMSNorm, on()) is rms_norm
    with pytest.raises(TransactionClosedError):
        registry.operation("rms_norm", other)
    with pytest.raises(RegistrationError, match="register a function for operation 'rms_norm'"):
        bring_two()
    assert runtime.forward_of(SiluAndMul, on()) is None
    runtime.operation("rms_norm", other, devices=("cuda",))


def test_invalid_registrations() -> None:
    runtime = switchrail.Runtime()
    with pytest.raises(RegistrationError, match="no operation 'rmsnorm'; nearest: rms_norm"):
        runtime.operation("rmsnorm", rms_norm)
    with pytest.raises(RegistrationError, match="can't serve operation 'rotary': it has parameters"):
        runtime.operation("rotary", rms_norm)
    with pytest.raises(ArgumentError, match="target"):
        runtime.operation("rotary", 3)  # type: ignore[arg-type]
