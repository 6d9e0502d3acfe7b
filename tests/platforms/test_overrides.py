"""Plugins' classes are checked against their base classes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from switchrail import Engine, Platform, Runtime
from switchrail.errors import BackendImportError, PlatformError, PlatformPluginError, RegistrationError
from switchrail.ops import GatedDeltaBackend
from switchrail.ops.backend import Backend
from switchrail.overrides import check_overrides
from switchrail.platforms import (
    KINDS,
    OPERATIONS,
    Accelerator,
    CpuHardware,
    CpuPlatform,
    CpuServing,
    CudaHardware,
    Hardware,
    Serving,
)
from switchrail.platforms.builtin import platform_class
from switchrail.platforms.operations import RMSNorm
from switchrail.pools import FreeList, LatentPool, MultiHeadPool, StatePool

from .conftest import CHECKPOINT


def nothing(self: Any) -> Any: ...


MISSPELT = [
    (CpuServing, "engine_default", "engine_defaults"),
    (CpuServing, "enginedefaults", "engine_defaults"),
    (CpuServing, "defualt_backend", "default_backend"),
    (CpuServing, "get_default_backend", "default_backend"),
    (CpuServing, "kv_pool_cls", "kv_pool_class"),
    (CpuServing, "getStatePoolClass", "state_pool_class"),
    (CpuServing, "initialise", "initialize"),
    (CpuServing, "dispatchKey", "dispatch_key"),
    (CpuHardware, "synchronise", "synchronize"),
    (CpuHardware, "is_pin_memory_available", "pin_memory_available"),
    (CpuHardware, "total_memry", "total_memory"),
    (CpuHardware, "supports_cuda_graph", "support_cuda_graph"),
    (CpuHardware, "nmae", "name"),
    (CudaHardware, "indx", "index"),
    (CpuPlatform, "initialise", "initialize"),
    (MultiHeadPool, "alocate", "allocate"),
    (MultiHeadPool, "page_byte", "page_bytes"),
    (StatePool, "tensor", "tensors"),
    (FreeList, "tak", "take"),
    (GatedDeltaBackend, "comit", "commit"),
    (GatedDeltaBackend, "plann", "plan"),
]


def base_of(cls: type) -> type:
    bases = (Hardware, Serving, Platform, MultiHeadPool, StatePool, FreeList, Backend)
    return next(base for base in bases if issubclass(cls, base))


def problems_of(cls: type, **members: Any) -> list[str]:
    made = type("Acme", (cls,), members)
    return [problem.text for problem in check_overrides(made, base_of(cls))]


@pytest.mark.parametrize(("cls", "name", "meant"), MISSPELT)
def test_a_misspelt_override_is_found(cls: type, name: str, meant: str) -> None:
    made = type("Acme", (cls,), {name: nothing})
    (problem,) = check_overrides(made, base_of(cls))
    assert problem.nearest[0] == meant
    assert problem.text.startswith(f"Acme.{name} overrides nothing; nearest: {meant}")
    # If the similar method is overridden too, the new name is probably a helper's.
    assert inspect.getattr_static(cls, meant) is not None
    both = type("Acme", (cls,), {name: nothing, meant: inspect.getattr_static(cls, meant)})
    assert check_overrides(both, base_of(cls)) == []


def test_a_misspelt_value_is_found() -> None:
    class Acme(Accelerator):
        torch_typ: ClassVar[str] = "acme"
        knid = "oot:acme"

    class AcmePlatform(CpuPlatform):
        hardware_cls = Acme

    assert [problem.nearest for problem in check_overrides(Acme, Hardware)] == [("torch_type",), ("kind",)]
    assert [problem.nearest for problem in check_overrides(AcmePlatform, Platform)] == [("hardware_class",)]


@pytest.mark.parametrize(
    ("cls", "name"),
    [
        (CpuHardware, "clock_rate"),
        (CpuHardware, "device_index"),
        (CpuHardware, "driver_version"),
        (CpuHardware, "_nmae"),
        (CpuHardware, "memory"),
        (CpuServing, "pool"),
        (CpuServing, "warm_up"),
        (CpuServing, "_engine_default"),
        (MultiHeadPool, "written"),
        (MultiHeadPool, "arena"),
        (GatedDeltaBackend, "launch"),
        (GatedDeltaBackend, "plan_prefill"),
        (GatedDeltaBackend, "workspace"),
    ],
)
def test_a_method_of_its_own_is_taken(cls: type, name: str) -> None:
    assert problems_of(cls, **{name: nothing}) == []


def test_values_are_not_treated_as_methods() -> None:
    assert problems_of(GatedDeltaBackend, plans={}, commits=0) == []


def test_methods_of_other_bases_are_not_checked() -> None:
    class Made(torch.nn.Module, GatedDeltaBackend):
        run = lambda self, *arguments: None  # noqa: E731

    assert check_overrides(Made, Backend) == []

    class Mixin:
        def plann(self) -> None: ...

        def plan(self) -> None: ...

    mixed = type("Mixed", (Mixin, GatedDeltaBackend), {})
    (problem,) = check_overrides(mixed, Backend)  # `Mixin.plan` overrides the backend's, so it is checked
    assert problem.text.startswith("Mixed.plan has parameters ()")


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


@contextmanager
def active(self: Any) -> Iterator[None]:
    yield


WRONG = [
    (
        CpuServing,
        "default_backend",
        lambda self, op: None,
        "it lacks phase; expected (op, phase)",
    ),
    (CpuServing, "default_backend", lambda: None, "has no parameters, not even one for the instance"),
    (CpuServing, "kv_pool_class", lambda self, kind, size: None, "missing a required argument: 'size'"),
    (CpuServing, "kv_pool_class", MultiHeadPool, "expected a method"),
    (CpuServing, "engine_defaults", {"page_size": 32}, "is {'page_size': 32}, expected a method"),
    (CpuServing, "engine_defaults", property(lambda self: {}), "expected a method"),
    (CpuServing, "__init__", lambda self: None, "it lacks hardware; expected (hardware)"),
    (CpuHardware, "devices", lambda self: (), "is a method of instances, expected a classmethod"),
    (CpuHardware, "kind", lambda self: "oot:acme", "is a method, expected a value"),
    (CpuHardware, "__init__", lambda self, device, *, index: None, "'index'"),
    (CpuPlatform, "kind", lambda self: "oot:acme", "is a method, expected a property"),
    (MultiHeadPool, "allocate", lambda self, shape, dtype: None, "expected (shape, dtype, device)"),
    (MultiHeadPool, "write", lambda self, layer: None, "it lacks rows, values"),
    (MultiHeadPool, "page_bytes", classmethod(lambda cls, shapes: 1), "expected (shapes, page_size, dtype)"),
    (StatePool, "__init__", lambda self, shapes: None, "unexpected keyword argument"),
    (FreeList, "give", lambda self: None, "expected (numbers)"),
    (GatedDeltaBackend, "run", lambda self, call, plan: None, "it lacks batch"),
    (GatedDeltaBackend, "commit", lambda self, call: None, "expected (call, batch, plan, record, accepted)"),
    (GatedDeltaBackend, "plan", lambda self, phase: None, "expected (phase, batch, bounds=None)"),
    (GatedDeltaBackend, "plan", lambda self, phase, batch: None, "expected (phase, batch, bounds=None)"),
    (GatedDeltaBackend, "refresh", lambda self, plan: None, "expected (plan, batch)"),
]


@pytest.mark.parametrize(("cls", "name", "member", "words"), WRONG)
def test_an_override_that_can_not_be_called_is_found(cls: type, name: str, member: Any, words: str) -> None:
    (text,) = problems_of(cls, **{name: member})
    assert text.startswith(f"Acme.{name} ")
    assert words in text


@pytest.mark.parametrize(
    ("cls", "name", "member"),
    [
        (CpuServing, "default_backend", lambda self, *args: None),
        (CpuServing, "default_backend", lambda self, operation, when: None),
        (CpuServing, "default_backend", lambda self, op, phase, strict=False: None),
        (CpuServing, "default_backend", staticmethod(lambda op, phase: None)),
        (CpuServing, "default_backend", classmethod(lambda cls, op, phase: None)),
        (CpuServing, "default_backend", functools.partialmethod(lambda self, a, op, phase: None, 1)),
        (CpuServing, "default_backend", decorated(lambda self: None)),
        (CpuHardware, "devices", staticmethod(lambda: ())),
        (CpuHardware, "active", active),
        (CpuHardware, "kind", property(lambda self: "oot:acme")),
        (CpuPlatform, "kind", "oot:acme"),
        (CpuPlatform, "name", functools.cached_property(lambda self: "Acme")),
        (MultiHeadPool, "write", lambda self, layer, rows, k, v: None),
        (FreeList, "__init__", lambda self, numbers: None),
        (GatedDeltaBackend, "run", lambda self, *arguments: None),
        (GatedDeltaBackend, "run", lambda self, call, batch, plan, stream=None: None),
        (GatedDeltaBackend, "__init__", lambda self, config: None),
    ],
)
def test_compatible_overrides_are_accepted(cls: type, name: str, member: Any) -> None:
    assert problems_of(cls, **{name: member}) == []


def test_our_own_classes_fit() -> None:
    platforms = [platform_class(kind) for kind in KINDS]
    pools = [MultiHeadPool, LatentPool, StatePool, FreeList]
    parts = [*(one.hardware_class for one in platforms), *(one.serving_class for one in platforms)]
    for cls in [*platforms, *parts, *pools]:
        # Members of a class are checked only if its module is outside of Switchrail, such as `acme`.
        own = {name: value for name, value in vars(cls).items() if name != "__dict__"}
        copy = type(cls.__name__, (cls,), {**own, "__module__": "acme"})
        assert check_overrides(copy, cls.__mro__[-2]) == []
        assert check_overrides(type("Misfit", (copy,), {"__init__": 5}), cls.__mro__[-2])


def test_every_backend_fits(runtime: Runtime) -> None:
    backends = runtime.backends()
    runtime.load()
    assert len(runtime.backends()) > len(backends), "the kernels distribution brings some"
    for backend in runtime.backends():
        if backend.path.startswith("switchrail"):
            module, _, name = backend.path.partition(":")
            try:
                cls = getattr(__import__(module, fromlist=[name]), name)
            except ImportError:
                continue
            assert check_overrides(cls, Backend) == []


# --- where classes are checked

PLUGIN = """
from switchrail import Platform
from switchrail.platforms import CpuHardware, CpuServing


class Hardware(CpuHardware):
    kind = "oot:acme"


class Serving(CpuServing):
    def engine_default(self):
        return {"page_size": 32}

    def default_backend(self, op):
        return None


class Acme(Platform):
    hardware_class, serving_class = Hardware, Serving


def activate():
    return "acme:Acme"
"""

WORDS = (
    r"acme:Acme doesn't fit its base: Serving.engine_default overrides nothing; nearest: engine_defaults.*"
    r"Serving.default_backend has parameters \(op\)"
)


def test_a_platform_plugin_is_refused_whole(runtime: Runtime, install: Callable[..., Path]) -> None:
    install("acme", PLUGIN)
    with pytest.raises(PlatformPluginError, match=WORDS):
        runtime.platform  # noqa: B018
    assert [plugin.state for plugin in runtime.plugins if plugin.name == "acme"] == ["failed"]
    with pytest.raises(PlatformError, match=WORDS) as caught:
        runtime.use_platform("acme:Acme:cpu")
    assert caught.value.nearest == ("engine_defaults",)
    assert len(caught.value.problems) == 2


def test_a_platform_object_is_refused_too(runtime: Runtime) -> None:
    class Own(CpuHardware):
        def sede(self, seed: int) -> None: ...

    class OwnPlatform(CpuPlatform):
        def __init__(self, device: str | None = None) -> None:
            super().__init__(device)
            self.hardware = Own(device)

    for take in (runtime.use_platform, runtime.find_platform, lambda one: Engine(CHECKPOINT, device=one)):
        with pytest.raises(PlatformError, match=r"Own.sede overrides nothing; nearest: seed") as caught:
            take(OwnPlatform())
        assert caught.value.nearest == ("seed",)


class Mixed(CpuPlatform):
    hardware_class = CpuServing  # type: ignore[assignment]


def test_a_part_of_another_class(runtime: Runtime) -> None:
    with pytest.raises(PlatformError, match=r"hardware_class is .*CpuServing.*derived from .*Hardware"):
        runtime.find_platform(f"{__name__}:Mixed")


def test_a_serving_method_on_the_platform_is_refused(runtime: Runtime) -> None:
    """The error for a serving method on the platform's class says that it belongs to the serving part."""
    own = type("Own", (CpuPlatform,), {"engine_defaults": lambda self: {"page_size": 32}})
    with pytest.raises(PlatformError, match=r"Own\.engine_defaults belongs to the serving part"):
        runtime.use_platform(own())


@pytest.mark.parametrize("kind", [None, 5, ["cpu"], "", "oot:", "acme"])
def test_an_invalid_kind(kind: Any, runtime: Runtime) -> None:
    hardware = type("Own", (CpuHardware,), {"kind": kind})
    platform = type("OwnPlatform", (CpuPlatform,), {"hardware_class": hardware})()
    with pytest.raises(PlatformError, match=r"OwnPlatform is of kind .*; valid: cuda, .*oot:NAME"):
        runtime.use_platform(platform)


@pytest.mark.parametrize(
    ("method", "base", "name", "meant"),
    [
        ("kv_pool_class", MultiHeadPool, "alocate", "allocate"),
        ("state_pool_class", StatePool, "allocat", "allocate"),
        ("paged_allocator_class", FreeList, "giv", "give"),
    ],
)
def test_a_pool_with_a_misspelt_override(
    method: str, base: type, name: str, meant: str, runtime: Runtime
) -> None:
    pool = type("Own", (base,), {name: nothing})
    serving = type("OwnServing", (CpuServing,), {method: lambda self, *kind: pool})
    platform = type("OwnPlatform", (CpuPlatform,), {"serving_class": serving})()
    with pytest.raises(
        PlatformError, match=rf"for {method}\(.*Own.{name} overrides nothing; nearest: {meant}"
    ):
        Engine(CHECKPOINT, runtime=runtime, device=platform)


def test_functions_for_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    serving = CpuPlatform().serving
    with pytest.raises(
        RegistrationError,
        match=r"can't serve operation 'rms_norm': it has parameters \(x, weight, eps\): .*weight_offset.*"
        r"expected \(x, weight, \*, eps, weight_offset\)",
    ):
        serving.register_oot_forward("rms_norm", lambda x, weight, eps: x)
    assert serving.forward_of(RMSNorm) is None
    monkeypatch.setattr(RMSNorm, "forward_cpu", lambda x: x, raising=False)
    with pytest.raises(PlatformError, match=r"RMSNorm.forward_cpu can't serve 'rms_norm': it has parameters"):
        serving.forward_of(RMSNorm)
    for operation in OPERATIONS.values():
        serving.register_oot_forward(operation.name, operation.forward)


def test_a_backend_with_a_misspelt_override_is_refused_at_registration(runtime: Runtime) -> None:
    def any_call(self: Any, *tensors: Any, **arguments: Any) -> None: ...

    methods = {"run": any_call}
    misspelt = type("Acme", (GatedDeltaBackend,), {**methods, "comit": any_call})
    with pytest.raises(BackendImportError, match=r"Acme.comit overrides nothing; nearest: commit"):
        runtime.register("acme", misspelt, op="gated_delta")
    wrong = type("Acme", (GatedDeltaBackend,), {**methods, "plan": lambda self: None})
    with pytest.raises(
        BackendImportError, match=r"Acme.plan has parameters \(\): .*expected \(phase, batch, bounds=None\)"
    ):
        runtime.register("acme", wrong, op="gated_delta")
    assert "acme" not in [backend.name for backend in runtime.backends("gated_delta")]
    runtime.register("acme", type("Acme", (GatedDeltaBackend,), methods), op="gated_delta")
