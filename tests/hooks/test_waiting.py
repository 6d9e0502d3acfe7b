"""Waiting hooks: their targets are loaded from a path, inserted by hand or created later, or don't fit."""

import importlib
import importlib.util
import sys
import threading
import types

import pytest
from switchrail import Runtime
from switchrail.errors import HookError
from switchrail.hooks import Hooks

CODE = "def f(x=1): return x\nclass Model:\n    def forward(self): return 1\n"


def double(result, *args):
    return result * 2


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith(("late", "remote_models")):
            del sys.modules[name]


@pytest.fixture
def in_front():
    """Returns a function that inserts a finder in front of all others, including Switchrail's."""

    class Front:
        @staticmethod
        def find_spec(name, path=None, target=None):
            return importlib.machinery.PathFinder.find_spec(name, path, target)

    yield lambda: sys.meta_path.insert(0, Front)
    sys.meta_path.remove(Front)


def by_location(name, path):
    """Load a module from a file path, as transformers loads code from a checkpoint."""
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def by_hand(name, path):
    module = types.ModuleType(name)
    exec(path.read_text(), vars(module))
    sys.modules[name] = module
    return module


TRIES = {
    "retry": lambda hooks, hook: hooks.retry(),
    "list": lambda hooks, hook: hooks.list(),
    "explain": lambda hooks, hook: hooks.explain(hook.path),
    "explain all": lambda hooks, hook: hooks.explain_all(),
    "enable": lambda hooks, hook: hooks.enable(hook),
    "add": lambda hooks, hook: hooks.add("json.dumps", lambda result, *args, **kwargs: None, "after"),
    "add of others": lambda hooks, hook: Hooks().add("late_other.f", double, "after"),
}


@pytest.mark.parametrize("load", [by_location, by_hand])
@pytest.mark.parametrize("retry", TRIES.values(), ids=TRIES)
def test_a_module_that_no_finder_sees_is_hooked_later(hooks, folder, load, retry):
    (folder / "late.py").write_text(CODE)
    hook = hooks.add("late_loaded.Model.forward", double, "after")
    assert hooks.retry() == (hook,)
    module = load("late_loaded", folder / "late.py")
    retry(hooks, hook)
    assert module.Model().forward() == 2
    assert hooks.waiting() == ()
    (step,) = hooks.explain("late_loaded.Model.forward").steps
    assert step.state == "runs"
    assert hooks.retry() == ()


@pytest.mark.parametrize(
    "name", ["remote_models.org.3f2a-1b.modeling", "remote_models.0f31c2", "late-model", "late_model"]
)
def test_names_that_are_no_identifiers(hooks, folder, name):
    """A module's name need not be an identifier, and its parent packages need not exist, as in
    transformers."""
    (folder / "modeling.py").write_text(CODE)
    waiting = hooks.add(f"{name}.Model.forward", double, "after")
    assert hooks.waiting() == (waiting,)
    module = by_location(name, folder / "modeling.py")
    assert hooks.retry() == ()
    assert module.Model().forward() == 2
    hooks.add(f"{name}.f", double, "after")
    assert module.f() == 2


@pytest.mark.parametrize(
    "target", ["late.mod:f.g", "late.f()", "late..f", "late.C<x>.m", "late.3f", ".late.f", "a b.f"]
)
def test_invalid_paths(hooks, target):
    with pytest.raises(HookError, match="not a dotted path"):
        hooks.add(target, double, "after")


def test_a_finder_before_ours(hooks, folder, in_front):
    (folder / "late_front.py").write_text(CODE)
    hooks.add("late_front.f", double, "after")
    in_front()
    module = importlib.import_module("late_front")
    assert module.f() == 1
    assert hooks.retry() == ()
    assert module.f() == 2


def test_our_finder_moves_to_the_front_again(hooks, folder, in_front):
    (folder / "late_front.py").write_text(CODE)
    hooks.add("late_front.f", double, "after")
    in_front()
    hooks.add("late_front.Model.forward", double, "after")
    ours = [finder for finder in sys.meta_path if type(finder).__module__ == "switchrail.hooks.imports"]
    assert len(ours) == 1
    module = importlib.import_module("late_front")
    assert (module.f(), module.Model().forward()) == (2, 2)


def test_an_attribute_that_comes_later(hooks, module, caplog):
    hook = hooks.add("hook_targets.late", double, "after")
    caplog.clear()
    for _ in range(3):
        assert hooks.retry() == (hook,)
    assert not caplog.records
    module.late = lambda: 3
    assert hooks.list("hook_targets.late") == (hook,)
    assert module.late() == 6


def test_a_strict_hook_waits_without_an_error(folder):
    """A strict hook that waits raises an error only at the import of its own module."""
    (folder / "late.py").write_text("def f(x=1): return x")
    strict, other = Hooks(strict=True), Hooks()
    hook = strict.add("late.f", lambda result: None, "after")
    by_location("late", folder / "late.py")
    other.add("json.dumps", lambda result, *args, **kwargs: None, "after")
    assert strict.retry() == (hook,)
    assert "can't be called as fn(result, x)" in strict.explain("late.f").steps[0].reason
    strict.clear()
    other.clear()


def test_a_hook_that_does_not_fit_is_reported_once(hooks, folder, caplog):
    (folder / "late.py").write_text(CODE)
    hook = hooks.add("late_loaded.f", lambda result: None, "after")
    caplog.clear()
    by_location("late_loaded", folder / "late.py")
    for _ in range(3):
        assert hooks.retry() == (hook,)
    (record,) = caplog.records
    assert "is not in force: after hook" in record.message


def reason(hooks, target):
    (step,) = hooks.explain(target).steps
    assert step.state == "waiting"
    (same,) = [step for each in hooks.explain_all() for step in each.steps if each.target == target]
    assert same.reason == step.reason
    return step.reason


def test_the_reason_for_which_a_hook_waits(hooks, module, folder):
    (folder / "late_reason.py").write_text(CODE)
    (folder / "late_package").mkdir()
    (folder / "late_package" / "__init__.py").write_text("")
    (folder / "late_package" / "sub.py").write_text(CODE)
    for target in ("late_reason.f", "late_package.sub.f", "late_nowhere.f", "hook_targets.late"):
        hooks.add(target, lambda result: None, "after")
    assert reason(hooks, "late_reason.f") == "its module is not imported"
    assert reason(hooks, "late_package.sub.f") == "its module is not imported"
    assert "no module 'late_nowhere' is imported or installed" in reason(hooks, "late_nowhere.f")
    assert "'late' was not found" in reason(hooks, "hook_targets.late")
    importlib.import_module("late_package.sub")
    assert "can't be called as fn(result, x)" in reason(hooks, "late_package.sub.f")
    by_location("late_nowhere", folder / "late_reason.py")
    assert "can't be called as fn(result, x)" in reason(hooks, "late_nowhere.f")
    module.late = 3
    assert "is of type int; valid: something that can be called" in reason(hooks, "hook_targets.late")


def test_the_reason_within_an_import(hooks, folder):
    (folder / "late_asks.py").write_text(
        "from switchrail.hooks import Hooks\n"
        "hooks = Hooks()\n"
        "hooks.add('late_asks.f', lambda result, x: result * 2, 'after')\n"
        "(step,) = hooks.explain('late_asks.f').steps\n"
        f"{CODE}"
    )
    module = importlib.import_module("late_asks")
    assert module.step.reason == "its module is being imported"
    assert module.f() == 2
    assert type(module.__spec__) is importlib.machinery.ModuleSpec
    module.hooks.clear()


def test_a_module_that_changes_its_name_during_its_import(hooks, module):
    target = f"{module.__name__}.later"
    name, module.__name__ = module.__name__, "renamed"
    try:
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        module.__spec__._initializing = True
        hooks.add(target, lambda *_: None)
        (step,) = hooks.explain(target).steps
        assert (step.state, step.reason) == ("waiting", "its module is being imported")
        module.__spec__._initializing = False
        module.later = lambda: "hello"
        assert hooks.retry() == ()
    finally:
        module.__name__ = name


@pytest.mark.parametrize("fails", [False, True])
def test_added_while_another_thread_imports_the_module(hooks, folder, fails):
    """A hook that is added while another thread imports its target's module runs once the import succeeds."""
    (folder / "late_slow.py").write_text(
        "import threading\nentered, go = late_events\nentered.set()\nassert go.wait(60)\n"
        + CODE
        + ("1 / 0" if fails else "")
    )
    entered, go, results = threading.Event(), threading.Event(), []
    import builtins

    builtins.late_events = entered, go

    def load():
        try:
            results.append(importlib.import_module("late_slow").f())
        except ZeroDivisionError as error:
            results.append(error)

    thread = threading.Thread(target=load)
    thread.start()
    assert entered.wait(60)
    hook = hooks.add("late_slow.f", double, "after")
    assert hooks.waiting() == (hook,)
    go.set()
    thread.join()
    del builtins.late_events
    if fails:
        assert isinstance(results[0], ZeroDivisionError)
        assert hooks.waiting() == (hook,)
    else:
        assert results == [2]
        assert hooks.list() == (hook,)


def test_many_waiting_hooks_cost_little(hooks, monkeypatch):
    """`add` does not search `sys.path` again for the modules of the hooks that wait."""
    searched = []
    for i in range(50):
        hooks.add(f"late_many_{i}.f", double, "after")
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: searched.append(name) or find_spec(name))
    importlib.import_module("json")
    hooks.add("json.dumps", lambda result, *args, **kwargs: None, "after")
    assert [name for name in searched if name.startswith("late_many")] == []


class Meta(type):
    @property
    def __signature__(cls):
        raise RuntimeError("asked")


class Unasked(metaclass=Meta):
    pass


class Fits:
    def __init__(self, x=1):
        self.x = x


WRONG = {
    "before": (Fits, "before", "is a class, whose calls create instances; valid: replace"),
    "after": (Fits, "after", "is a class, whose calls create instances; valid: replace"),
    "around": (Fits, "around", "is a class, whose calls create instances; valid: replace"),
    "signature": (Unasked, "replace", "reading the hook's signature raised RuntimeError"),
}


@pytest.mark.parametrize(
    "target", ["late_class.f", "late_class.Model", "hook_targets.none", "hook_targets.f"]
)
@pytest.mark.parametrize("case", WRONG)
def test_a_class_that_can_never_be_a_hook_is_refused_at_once(hooks, module, folder, case, target):
    (folder / "late_class.py").write_text(CODE)
    fn, kind, message = WRONG[case]
    runtime = Runtime()
    for add in (hooks.add, runtime.hook, runtime.hooks.add):
        with pytest.raises(HookError, match=message) as caught:
            add(target, fn, kind)
        assert caught.value.target == target
    assert hooks.waiting() == ()


@pytest.mark.parametrize(
    ("target", "fn", "message"),
    [
        ("late_class.f", Fits, None),
        ("late_class.f", Exception, None),
        ("late_class.Model", Exception, "its bases are"),
        ("late_class.Model", Fits, None),
        (
            "late_class.Model.forward",
            type("NoArguments", (), {"__init__": lambda self: None}),
            "can't be called",
        ),
        ("late_class.Model", lambda: None, "the hook a function; valid: a class"),
        ("late_class.missing", Fits, "'missing' was not found"),
    ],
)
@pytest.mark.parametrize("strict", [False, True])
def test_a_class_for_a_target_that_comes_later(folder, caplog, strict, target, fn, message):
    """If a class doesn't fit a target that is imported later, a strict import raises, and others log it."""
    (folder / "late_class.py").write_text(CODE)
    hooks = Hooks(strict=strict)
    hook = hooks.add(target, fn, "replace")
    if strict and message is not None:
        with pytest.raises(HookError, match=message):
            importlib.import_module("late_class")
    else:
        importlib.import_module("late_class")
        assert (hook in hooks.waiting()) == (message is not None)
        assert ("is not in force in late_class" in caplog.text) == (message is not None)
    hooks.clear()


def test_a_class_that_refuses_attributes_of_hooks(hooks, module):
    class Refusing(type):
        def __setattr__(cls, name, value):
            raise TypeError("sealed")

    module.Sealed = Refusing("Sealed", (module.C,), {})
    with pytest.raises(HookError, match="Sealed can't be changed: sealed"):
        hooks.add("hook_targets.Sealed.m", double, "after")
    assert hooks.list() == ()
