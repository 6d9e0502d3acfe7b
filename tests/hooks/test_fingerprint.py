"""Hooks in a runtime's fingerprint."""

import importlib
import sys

import pytest
from switchrail import Runtime


def nothing(*args, **kwargs):
    return None


def other(*args, **kwargs):
    return None


@pytest.fixture
def runtimes():
    made = [Runtime(), Runtime()]
    yield made
    for runtime in made:
        runtime.hooks.clear()


@pytest.fixture
def late(tmp_path, monkeypatch):
    (tmp_path / "late_print.py").write_text("def f(x): return x\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield "late_print.f"
    sys.modules.pop("late_print", None)


def test_a_waiting_hook_counts_like_a_running_one(runtimes, late):
    first, second = runtimes
    plain = first.fingerprint()
    hook = first.hooks.add(late, nothing)
    waiting = first.fingerprint()
    assert waiting != plain
    importlib.import_module("late_print")
    second.hooks.add(late, nothing)
    assert second.hooks.list() != ()
    assert first.fingerprint() == second.fingerprint() == waiting
    first.hooks.disable(hook)
    assert first.fingerprint() == plain


def test_the_order_of_running_counts_and_not_that_of_adding(runtimes, module):
    first, second = runtimes
    for runtime, fns in ((first, (nothing, other)), (second, (other, nothing))):
        for fn in fns:
            runtime.hooks.add("hook_targets.f", fn, source=fn.__name__)
            runtime.hooks.add("hook_targets.C.m", fn, source=fn.__name__)
    assert first.fingerprint() == second.fingerprint()
    second.hooks.clear()
    for target in ("hook_targets.C.m", "hook_targets.f"):
        second.hooks.add(target, nothing, source="nothing")
        second.hooks.add(target, other, source="other", priority=1)
    assert first.fingerprint() != second.fingerprint()


def test_each_part_of_a_hook_changes_the_fingerprint(runtimes, module):
    first, _ = runtimes
    seen = {first.fingerprint()}
    for options in (
        {},
        {"kind": "after"},
        {"source": "acme"},
        {"fn": other},
        {"target": "hook_targets.C.m"},
        {"target": "hook_targets.missing"},
    ):
        hook = first.hooks.add(**{"target": "hook_targets.f", "fn": nothing, **options})
        seen.add(first.fingerprint())
        first.hooks.remove(hook)
    assert len(seen) == 7
