"""`explain` lists a target's hooks in running order, and says why others don't run."""

import json
import sys

import pytest
from switchrail.errors import HookError
from switchrail.hooks import Hooks


def named(name):
    def hook(*args, **kwargs):
        return None

    hook.__name__ = hook.__qualname__ = name
    hook.__module__ = "acme"
    return hook


def rows(explanation):
    return [(step.hook.kind, step.hook.fn.__name__, step.state) for step in explanation.steps]


def test_hooks_are_listed_in_running_order(hooks, module):
    trace = []
    for i, kind in enumerate(["after", "around", "before", "replace"] * 2):
        fn = named(f"{kind} {i}")

        def traced(*args, fn=fn, kind=kind, **kwargs):
            trace.append(fn.__name__)
            return args[0](*args[1:]) if kind == "around" else None

        traced.__name__ = fn.__name__
        hooks.add("hook_targets.f", traced, kind, priority=i)
    module.f(1)
    explanation = hooks.explain("hook_targets.f")
    assert explanation.target == "hook_targets.f"
    assert [step.hook.fn.__name__ for step in explanation.steps if step.state == "runs"] == trace
    assert rows(explanation)[-1] == ("replace", "replace 3", "ignored")
    assert explanation.steps[-1].reason.endswith("replaces the target first")
    assert hooks.explain(module.f) == explanation
    assert hooks.explain_all() == (explanation,)


def test_disabled_hooks_and_hooks_of_others(hooks, module):
    other = Hooks()
    off = hooks.add(module.f, named("off"))
    other.add(module.f, named("theirs"), "after", source="acme", plugin="rope", version="2.0", priority=3)
    hooks.disable(off)
    assert rows(hooks.explain(module.f)) == [("after", "theirs", "runs"), ("before", "off", "disabled")]
    document = json.loads(json.dumps(hooks.explain(module.f).to_dict()))
    assert document["hooks"][0] == {
        "kind": "after",
        "hook": "acme.theirs",
        "distribution": "acme",
        "version": "2.0",
        "plugin": "rope",
        "priority": 3,
        "before": [],
        "after": [],
        "state": "runs",
        "reason": None,
    }
    other.clear()


def test_waiting_hooks(hooks, module, tmp_path, monkeypatch):
    (tmp_path / "late_explained.py").write_text("def f(): pass")
    monkeypatch.syspath_prepend(tmp_path)
    hooks.add("late_explained.f", named("b"), source="b")
    hooks.disable(hooks.add("late_explained.f", named("c")))
    hooks.add("late_explained.f", named("a"), source="a")
    hooks.add("hook_targets.ff", named("missing"))
    explanation = hooks.explain("late_explained.f")
    assert rows(explanation) == [
        ("before", "b", "waiting"),
        ("before", "a", "waiting"),
        ("before", "c", "disabled"),
    ]
    assert explanation.steps[0].reason == "its module is not imported"
    assert explanation.bypassed() == ()
    (step,) = hooks.explain("hook_targets.ff").steps
    assert (step.state, "nearest: f" in step.reason) == ("waiting", True)
    assert [each.target for each in hooks.explain_all()] == ["hook_targets.ff", "late_explained.f"]
    assert hooks.explain("json.tool.main").steps == ()


def test_a_hook_that_does_not_fit_its_imported_target(hooks, module, tmp_path, monkeypatch):
    (tmp_path / "late_unfit.py").write_text("def f(x): pass")
    monkeypatch.syspath_prepend(tmp_path)
    hooks.add("late_unfit.f", lambda: None)
    hooks.add("late_unfit.f", named("fits"))
    import late_unfit  # noqa: F401

    explanation = hooks.explain("late_unfit.f")
    assert [step.state for step in explanation.steps] == ["runs", "waiting"]
    assert "can't be called as fn(x)" in explanation.steps[1].reason
    del sys.modules["late_unfit"]


def test_a_target_without_hooks_and_a_missing_target(hooks, module):
    assert hooks.explain("hook_targets.f").steps == ()
    with pytest.raises(HookError, match="nearest: f"):
        hooks.explain("hook_targets.ff")
    with pytest.raises(HookError, match="not a dotted path"):
        hooks.explain("hook_targets")


def test_code_swapped_by_somebody_else(hooks, module):
    hooks.add(module.f, named("first"))
    module.f.__code__ = (lambda a, b=2: "theirs").__code__
    (step,) = hooks.explain(module.f).steps
    assert (step.state, step.reason) == ("ignored", "other code has changed the target's code")


def test_objects_of_one_class_are_told_apart(hooks, module):
    class Adder:
        def __call__(self, x):
            return x + 1

    module.one, module.two = Adder(), Adder()
    hooks.add("hook_targets.one", named("first"))
    hooks.add("hook_targets.two", named("second"))
    assert [each.target for each in hooks.explain_all()] == ["hook_targets.one", "hook_targets.two"]
    assert rows(hooks.explain("hook_targets.two")) == [("before", "second", "runs")]
