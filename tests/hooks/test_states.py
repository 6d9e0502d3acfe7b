"""Hooks added by decorators, disabled hooks, and the option `strict`."""

import pytest
from switchrail.errors import HookError
from switchrail.hooks import Hooks


def test_decorator(hooks, module):
    @hooks.add("hook_targets.f", kind="after", priority=3)
    def doubled(result, a, b):
        return result * 2

    assert doubled(4, 1, 2) == 8
    assert module.f(1) == 6
    (hook,) = hooks.list(module.f)
    assert (hook.fn, hook.kind, hook.priority, hook.target_name) == (doubled, "after", 3, "hook_targets.f")


def test_disable_and_enable(hooks, module):
    code = module.f.__code__
    plus = hooks.add(module.f, lambda result, a, b: result + 1, "after")
    times = hooks.add(module.f, lambda result, a, b: result * 2, "after", priority=1)
    hooks.disable(plus)
    assert module.f(1) == 6
    assert (hooks.list(module.f), hooks.disabled()) == ((times,), (plus,))
    hooks.disable(plus, times)
    assert module.f(1) == 3
    assert module.f.__code__ is code
    hooks.enable(plus)
    assert module.f(1) == 4
    hooks.remove(plus)
    assert module.f.__code__ is code
    hooks.enable(times, plus)
    assert module.f(1) == 6
    assert hooks.disabled() == ()


def test_disabled_hooks_of_others_and_unknown_ones(hooks, module):
    hook = hooks.add(module.f, lambda result, a, b: result + 1, "after")
    Hooks().disable(hook)
    hooks.disable(hooks.prepare(module.f, lambda a, b: None))
    assert module.f(1) == 4
    assert hooks.disabled() == ()


def test_a_disabled_hook_on_an_inherited_method(hooks, module):
    hook = hooks.add("hook_targets.D.m", lambda result, self, a, b: result * 2, "after")
    hooks.disable(hook)
    assert "m" not in vars(module.D)
    hooks.enable(hook)
    assert (module.D().m(1), module.C().m(1)) == (6, 3)


def test_a_disabled_replace_lets_the_next_one_run(hooks, module):
    first = hooks.add(module.f, lambda a, b: "first", "replace", priority=1)
    hooks.add(module.f, lambda a, b: "second", "replace")
    assert module.f(1) == "first"
    hooks.disable(first)
    assert module.f(1) == "second"


def test_strict_refuses_a_second_replace(module):
    strict = Hooks(strict=True)
    try:
        strict.add(module.f, lambda a, b: "first", "replace")
        with pytest.raises(HookError, match="replaced more than once"):
            strict.add(module.f, lambda a, b: "second", "replace", priority=1)
        assert module.f(1) == "first"
        strict.add(module.f, lambda a, b: None)
        assert len(strict.list()) == 2
    finally:
        strict.clear()


def test_a_hooks_text_and_errors_name_its_author(hooks, module):
    hook = hooks.add(
        module.f, lambda result, a, b: None, "after", source="acme-ops", plugin="acme", version="1.2"
    )
    assert (hook.source, hook.plugin, hook.version) == ("acme-ops", "acme", "1.2")
    assert repr(hook).endswith("<lambda> of 'acme-ops' 1.2, plugin 'acme', on hook_targets.f>")
    with pytest.raises(HookError, match=r"of 'acme-ops' 1\.2, plugin 'acme', on hook_targets\.f: it can't"):
        hooks.prepare(module.f, lambda: None, source="acme-ops", plugin="acme", version="1.2")


def test_a_single_call_can_be_strict(hooks, module, caplog):
    with pytest.raises(HookError, match="nearest: f"):
        hooks.prepare("hook_targets.ff", lambda: None, strict=True)
    first = hooks.prepare(module.f, lambda a, b: "first", "replace")
    second = hooks.prepare(module.f, lambda a, b: "second", "replace", priority=1)
    with pytest.raises(HookError, match="replaced more than once"):
        hooks.commit([first, second], strict=True)
    assert hooks.list() == ()
    hooks.commit([first, second])
    assert module.f(1) == "second"
    strict = Hooks(strict=True)
    waiting = strict.add("hook_targets.ff", lambda: None, strict=False)
    assert strict.waiting() == (waiting,)
    assert "waits for its target" in caplog.text
    strict.clear()

    @hooks.add("hook_targets.f", kind="after", strict=True)
    def decorated(result, a, b):
        return result

    with pytest.raises(HookError, match="nearest: f"):
        hooks.add("hook_targets.ff", strict=True)(decorated)
