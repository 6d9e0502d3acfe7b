"""Two threads that change hooks, with a thread switch at one line after another of the first thread."""

import importlib
import importlib.util
import sys
import types
from functools import partial

import pytest
from switchrail.hooks import Hooks, chain, imports

from tests.hooks.conftest import CLASS, SOURCE
from tests.interleaving import every_interleaving

MORE = f"""
import functools

class Adder:
    def __call__(self, a, b=2):
        return a + b

{CLASS.replace("class C", "class Other")}
class E(C):
    @functools.cached_property
    def p(self):
        return 3

class F(E):
    pass

class G(D):
    pass

adder = Adder()
held = [adder]
"""

CODE = compile(SOURCE + MORE, "hook_targets.py", "exec")

USES = {
    "hook_targets.f": lambda module: module.f(1),
    "hook_targets.C.m": lambda module: module.C().m(1),
    "hook_targets.D.m": lambda module: module.D().m(1),
    "hook_targets.G.m": lambda module: module.G().m(1),
    "hook_targets.F.p": lambda module: module.F().p,
    "hook_targets.adder": lambda module: module.adder(1),
    "hook_targets.C": lambda module: module.C().n(),
}


@pytest.fixture(autouse=True)
def quiet(caplog):
    caplog.set_level("CRITICAL")


@pytest.fixture(autouse=True)
def no_modules():
    yield
    for name in ("hook_targets", "late_interleaved"):
        sys.modules.pop(name, None)


def fresh():
    module = types.ModuleType("hook_targets")
    sys.modules[module.__name__] = module
    exec(CODE, vars(module))
    return module


def plus(result, *args):
    return result + 10


def add(target, hooks, module):
    """Add a hook and call its target; the hook must run."""
    if target == "hook_targets.C":
        hooks.add(target, type("Better", (module.C,), {}), "replace", source=f"{id(hooks)}")
        assert module.C().n() % 10 == 3
    else:
        hooks.add(target, plus, "after")
        assert USES[target](module) >= 13


def steps(hooks, target):
    """Check that `explain` reports the target's hooks as running, or as preceded by another replacement."""
    found = hooks.explain(target).steps
    assert all(step.state == "runs" or "replaces the target first" in step.reason for step in found)
    assert all(each.steps for each in hooks.explain_all())


PAIRS = {
    "one function": ("hook_targets.f", "hook_targets.f"),
    "a method, its class": ("hook_targets.C.m", "hook_targets.C"),
    "one class": ("hook_targets.C", "hook_targets.C"),
    "an inherited method, its class": ("hook_targets.D.m", "hook_targets.C"),
    "one inherited method": ("hook_targets.D.m", "hook_targets.D.m"),
    "inherited twice": ("hook_targets.G.m", "hook_targets.D.m"),
    "one inherited property": ("hook_targets.F.p", "hook_targets.F.p"),
    "one object": ("hook_targets.adder", "hook_targets.adder"),
}


@pytest.mark.parametrize("what", ["add", "remove", "explain"])
@pytest.mark.parametrize(("target", "other"), PAIRS.values(), ids=PAIRS)
def test_adding_while_another_thread_uses_hooks(target, other, what):
    """While one thread adds a hook, another adds, removes or reads hooks of the same or a nearby target."""

    def make():
        module, mine, theirs = fresh(), Hooks(), Hooks()
        if what == "remove":
            add(other, theirs, module)
        change = {
            "add": partial(add, other, theirs, module),
            "remove": theirs.clear,
            "explain": partial(steps, theirs, other),
        }[what]

        def check():
            try:
                assert (len(mine.list()), len(theirs.list())) == (1, what == "add")
                assert len(mine.list(target)) == 1
                if target != "hook_targets.C":  # the inherited hook runs as well
                    both = what == "add" and other in (target, "hook_targets.D.m")
                    assert USES[target](module) == (23 if both else 13)
            finally:
                mine.clear()
                theirs.clear()
            assert chain.added() == {}
            assert [use(module) for use in USES.values()] == [3] * len(USES)
            assert type(module.adder) is module.Adder is type(module.held[0])
            assert "m" not in {**vars(module.D), **vars(module.G)}
            assert "p" not in vars(module.F)

        return partial(add, target, mine, module), change, check

    alike = what == "add" and target == other
    assert every_interleaving(make, ["hooks"], alike=alike) > 100


def test_adding_to_a_subclasss_own_function_while_it_is_removed():
    """A hook added to the function that another hook put on a subclass is a hook on the inherited method."""

    def make():
        module, mine, theirs = fresh(), Hooks(), Hooks()
        add("hook_targets.D.m", theirs, module)
        read = module.D.m

        def check():
            assert module.D().m(1) == 13
            mine.clear()
            assert "m" not in vars(module.D)

        return lambda: mine.add(read, plus, "after"), theirs.clear, check

    assert every_interleaving(make, ["hooks"]) > 100


HOLDERS = {
    "module": lambda module, i: setattr(module, f"more_{i}", module.held[0]),
    "list": lambda module, i: module.held.insert(0, i),
    "shorter": lambda module, i: module.held.pop() if i else None,
}


@pytest.mark.parametrize("use", HOLDERS.values(), ids=HOLDERS)
def test_a_holder_that_changes_meanwhile(use):
    def make():
        module, mine = fresh(), Hooks()
        module.held += [module.adder, 1]

        def use_both():
            use(module, 1)
            use(module, 2)

        def check():
            mine.clear()
            assert not [value for value in vars(module).values() if "StandIn" in type(value).__name__]
            assert not [value for value in module.held if "StandIn" in type(value).__name__]

        return partial(add, "hook_targets.adder", mine, module), use_both, check

    assert every_interleaving(make, ["hooks"]) > 100


@pytest.mark.parametrize("first", ["import", "location", "hand"])
@pytest.mark.parametrize("second", ["add", "remove", "explain", "retry"])
def test_loading_a_module_while_another_thread_uses_hooks(tmp_path, monkeypatch, first, second):
    """A hook on a module that is being loaded runs after both threads have ended and hooks were retried."""
    path = tmp_path / "late_interleaved.py"
    path.write_text("def f(x=1): return x\n")
    monkeypatch.syspath_prepend(tmp_path)

    def load():
        if first == "import":
            importlib.import_module("late_interleaved")
            return
        if first == "location":
            spec = importlib.util.spec_from_file_location("late_interleaved", path)
            module = sys.modules["late_interleaved"] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return
        module = types.ModuleType("late_interleaved")
        exec(path.read_text(), vars(module))
        sys.modules["late_interleaved"] = module

    def make():
        sys.modules.pop("late_interleaved", None)
        imports._watched.discard("late_interleaved")
        hooks, others = Hooks(), Hooks()
        if second != "add":
            hooks.add("late_interleaved.f", plus, "after")

        def look():
            (step,) = hooks.explain("late_interleaved.f").steps
            assert step.state == "runs" or step.reason in (
                "its module is not imported",
                "its module is being imported",
                "the target 'late_interleaved.f' does not exist: 'f' was not found",
            )

        change = {
            "add": lambda: hooks.add("late_interleaved.f", plus, "after"),
            "remove": hooks.clear,
            "explain": look,
            "retry": others.retry,
        }[second]

        def check():
            # Only `retry` finds a module that was not imported by name, or whose import began before `add`.
            if first != "import" or second == "add":
                hooks.retry()
            module = sys.modules["late_interleaved"]
            assert module.f(1) == (1 if second == "remove" else 11)
            assert hooks.waiting() == ()
            hooks.clear()
            assert module.f(1) == 1

        return load, change, check

    assert every_interleaving(make, ["hooks"]) > 20
