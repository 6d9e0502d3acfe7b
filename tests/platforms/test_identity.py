"""Kinds and compute capabilities of platforms, and the errors of methods that a platform doesn't provide."""

from __future__ import annotations

import inspect
import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from switchrail.errors import CapabilityError, NotProvidedError, SwitchrailError
from switchrail.platforms import KINDS, CpuArchitecture, DeviceCapability, Hardware, Platform, Serving

numbers = st.integers(0, 200)


def platform_of(kind_: str) -> Platform:
    class Made(Hardware):
        kind = kind_

    class MadePlatform(Platform):
        hardware_class = Made

    return MadePlatform()


QUESTIONS = {f"is_{kind}": (kind,) for kind in KINDS} | {
    "is_out_of_tree": ("oot:acme",),
    "is_unspecified": ("unspecified",),
    "is_cuda_alike": ("cuda", "rocm", "musa"),
}


@pytest.mark.parametrize("kind", [*KINDS, "oot:acme", "unspecified"])
def test_each_kind_answers_to_its_own_name(kind: str) -> None:
    platform = platform_of(kind)
    asked = {name for name in dir(Platform) if name.startswith("is_")}
    assert asked == set(QUESTIONS)
    assert {name: getattr(platform, name)() for name in asked} == {
        name: kind in kinds for name, kinds in QUESTIONS.items()
    }


@given(numbers, numbers, numbers, numbers)
def test_capabilities_compare_as_versions_do(a: int, b: int, c: int, d: int) -> None:
    one, other = DeviceCapability(a, b), DeviceCapability(c, d)
    assert (one < other, one == other) == ((a, b) < (c, d), (a, b) == (c, d))


@given(numbers, st.integers(-3, 30))
def test_capabilities_as_text_and_number(major: int, minor: int) -> None:
    capability = DeviceCapability(major, minor)
    assert capability.as_version_str() == str(capability) == f"{capability}" == f"{major}.{minor}"
    if 0 <= minor <= 9:
        assert capability.to_int() == int(f"{major}{minor}")
    else:
        with pytest.raises(CapabilityError, match=rf"its minor version is {minor}; valid: 0 to 9"):
            capability.to_int()


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        ("x86_64", CpuArchitecture.X86),
        ("AMD64", CpuArchitecture.X86),
        ("arm64", CpuArchitecture.ARM),
        ("aarch64", CpuArchitecture.ARM),
        ("riscv64", CpuArchitecture.RISCV),
        ("ppc64le", CpuArchitecture.POWER),
        ("s390x", CpuArchitecture.S390),
        ("", CpuArchitecture.UNSPECIFIED),
        ("loongarch64", CpuArchitecture.UNSPECIFIED),
    ],
)
def test_architectures(machine: str, expected: CpuArchitecture) -> None:
    assert CpuArchitecture.of(machine) is expected


ARGUMENTS: dict[str, tuple[Any, ...]] = {"set_device": ("acme:0",), "seed": (1,)}
OPTIONAL = {
    "capability",
    "pin_memory_available",
    "support_cuda_graph",
    "support_piecewise_cuda_graph",
    "devices",
    "active",
    "own_stream",
    "keeps_freed_memory",
}


@pytest.mark.parametrize(
    "method",
    sorted(
        name
        for name, _ in inspect.getmembers(Hardware, callable)
        if not name.startswith("_") and name not in OPTIONAL
    ),
)
def test_an_error_of_a_missing_method_names_platform_and_method(method: str) -> None:
    hardware = platform_of("oot:acme").hardware
    with pytest.raises(
        NotImplementedError, match=rf"platform 'oot:acme' .*Made\) does not provide '{method}'"
    ) as caught:
        getattr(hardware, method)(*ARGUMENTS.get(method, ()))
    assert isinstance(caught.value, NotProvidedError)
    assert isinstance(caught.value, SwitchrailError)
    assert caught.value.fields == {"platform": "oot:acme", "method": method}


def test_without_a_device_the_current_one_is_taken() -> None:
    class Made(Hardware):
        def get_device(self) -> str:
            return "acme:1"

    assert (Made().device, Made("acme:0").device, Hardware().device) == ("acme:1", "acme:0", "cpu")


def test_the_parts_share_no_base() -> None:
    bases = [set(cls.__mro__) - {object} for cls in (Hardware, Serving, Platform)]
    assert all(one.isdisjoint(other) for one, other in itertools.combinations(bases, 2))
