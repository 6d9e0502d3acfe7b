from __future__ import annotations

import textwrap
from collections.abc import Iterator

import pytest
import switchrail
from switchrail import Platform
from switchrail.current import swap_current
from switchrail.testing import isolated


class MadeUp(Platform):
    kind = "oot:made-up"


@pytest.fixture(autouse=True)
def _process_without_runtime() -> Iterator[None]:
    """The test begins without a default runtime; afterwards, the earlier one is put back."""
    before = swap_current(None)
    yield
    swap_current(before)


def test_registry_hooks_and_platform_are_restored() -> None:
    outer = switchrail.current_runtime()
    before = outer.backends(), outer.hooks.list(), outer.platform, textwrap.dedent.__code__
    with isolated() as runtime:
        assert switchrail.current_runtime() is runtime is not outer
        switchrail.register("acme", "acme:Acme", op="gated_delta")
        runtime.register("torch", "acme:Acme", op="gated_delta", override=True)
        runtime.use_platform(MadeUp("made-up:7"))
        runtime.hooks.add("textwrap.dedent", lambda text: ((text.upper(),), {}), "before")
        assert textwrap.dedent("  a") == "A"
        with isolated() as inner:
            assert switchrail.current_runtime() is inner
            assert [backend.name for backend in inner.backends("gated_delta")] == ["reference", "torch"]
        assert switchrail.current_runtime() is runtime
        assert runtime.platform.device == "made-up:7"
    assert switchrail.current_runtime() is outer
    assert (outer.backends(), outer.hooks.list(), outer.platform, textwrap.dedent.__code__) == before
    assert textwrap.dedent("  a") == "a"


def test_everything_is_restored_when_the_block_raises() -> None:
    outer = switchrail.current_runtime()

    def fail() -> None:
        with isolated() as runtime:
            runtime.hooks.add("textwrap.dedent", lambda text: ((text.upper(),), {}), "before")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert switchrail.current_runtime() is outer
    assert textwrap.dedent("  a") == "a"


def test_a_runtime_of_ones_own_is_not_the_default_one() -> None:
    own = switchrail.Runtime()
    own.register("mine", "acme:Acme", op="gated_delta")
    assert "mine" not in {backend.name for backend in switchrail.current_runtime().backends()}
