"""Python's garbage collector while engines are open."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest
from switchrail import garbage

pytestmark = pytest.mark.usefixtures("whole_heap")


class Cycle:
    def __init__(self) -> None:
        self.own = self


@pytest.fixture
def frozen(whole_heap: None) -> Iterator[None]:
    garbage.freeze()
    yield
    garbage.thaw()
    assert gc.get_freeze_count() <= garbage.OF_PYTHON


def test_garbage_is_freed_before_the_other_objects_are_excluded() -> None:
    dropped = weakref.ref(Cycle())
    garbage.freeze()
    try:
        assert dropped() is None
    finally:
        garbage.thaw()


@pytest.mark.usefixtures("frozen")
def test_later_objects_are_excluded_too_but_no_garbage() -> None:
    kept, dropped = Cycle(), weakref.ref(Cycle())
    garbage.refreeze()
    assert dropped() is None
    assert not any(one is kept for one in gc.get_objects())


def test_nothing_is_excluded_again_without_an_engine() -> None:
    count = gc.get_freeze_count()
    garbage.refreeze()
    assert gc.get_freeze_count() == count


@pytest.mark.usefixtures("frozen")
def test_the_search_for_holders_keeps_no_garbage() -> None:
    dropped = weakref.ref(Cycle())
    garbage.referrers(object())
    assert dropped() is None


@pytest.mark.usefixtures("frozen")
def test_a_closed_engines_garbage_is_freed_while_another_is_open() -> None:
    kept = Cycle()
    dropped = weakref.ref(kept)
    garbage.freeze()
    del kept
    gc.collect()
    assert dropped() is not None
    garbage.thaw()
    assert dropped() is None
    assert gc.get_freeze_count()


def test_objects_that_a_program_excluded_stay_excluded() -> None:
    kept = Cycle()
    gc.freeze()
    try:
        garbage.freeze()
        dropped = weakref.ref(left := Cycle())
        garbage.freeze()
        del left
        garbage.thaw()
        garbage.thaw()
        assert dropped() is None
        assert gc.get_freeze_count()
        dropped = weakref.ref(kept)
        del kept
        gc.collect()
        assert dropped() is not None
    finally:
        gc.unfreeze()
