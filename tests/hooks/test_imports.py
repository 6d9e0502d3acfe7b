"""Targets that are imported later, or again, and targets that don't exist."""

import importlib
import importlib.util
import inspect
import sys
import threading

import pytest
from switchrail import Runtime
from switchrail.errors import HookError, OrderError
from switchrail.hooks import Hooks

FILES = {
    "__init__.py": "",
    "rope.py": """
import time
time.sleep(0.01)
def get_rope(x=1): return x
class C:
    def m(self): return 1
    class D:
        def m(self): return 2
""",
    "user.py": "from late_package.rope import get_rope\ndef use(): return get_rope()\n",
    "inner/__init__.py": "from late_package.inner.same import same\n",
    "inner/same.py": "def same(): return 1\n",
}


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package that has not been imported yet."""
    folder = tmp_path / "late_package"
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield folder
    for name in [name for name in sys.modules if name.split(".")[0] == "late_package"]:
        del sys.modules[name]


def double(result, *args):
    return result * 2


TARGETS = {
    "late_package.rope.get_rope": lambda module: module.get_rope(),
    "late_package.rope.C.m": lambda module: module.C().m(),
    "late_package.rope.C.D.m": lambda module: module.C.D().m(),
}


@pytest.mark.parametrize("target", TARGETS)
def test_hooked_when_imported(hooks, package, target):
    hook = hooks.add(target, double, "after")
    assert "late_package" not in sys.modules
    assert hooks.waiting() == (hook,)
    assert hooks.list() == ()
    module = importlib.import_module("late_package.rope")
    use = TARGETS[target]
    hooked = use(module)
    assert hooks.waiting() == ()
    assert hooks.list() == hooks.list(target) == (hook,)
    hooks.remove(hook)
    assert hooked == 2 * use(module)


def test_the_module_is_as_without_hooks(hooks, package):
    hooks.add("late_package.rope.get_rope", double, "after")
    module = importlib.import_module("late_package.rope")
    loader = importlib.machinery.SourceFileLoader
    assert type(module.__loader__) is type(module.__spec__.loader) is loader
    assert "def get_rope" in inspect.getsource(module.get_rope)
    assert module.__file__ == str(package / "rope.py")


def test_a_name_bound_by_from_import(hooks, package):
    user = importlib.import_module("late_package.user")
    hooks.add("late_package.rope.get_rope", double, "after")
    assert user.use() == 2


def test_a_name_bound_during_the_import(hooks, package):
    hooks.add("late_package.rope.get_rope", double, "after")
    assert importlib.import_module("late_package.user").use() == 2


def test_a_module_and_a_function_of_one_name(hooks, package):
    hooks.add("late_package.inner.same", double, "after")
    hooks.add("late_package.inner.same.same", lambda result: result + 5, "after")
    inner = importlib.import_module("late_package.inner")
    assert inner.same() == 12
    assert sys.modules["late_package.inner.same"].same is inner.same


def test_reload_keeps_hooks(hooks, package):
    rope = importlib.import_module("late_package.rope")
    old = rope.get_rope
    hook = hooks.add("late_package.rope.get_rope", double, "after")
    added_as_object = hooks.add(rope.C.m, double, "after")
    importlib.reload(rope)
    assert rope.get_rope is not old
    assert [rope.get_rope(), old(), rope.C().m()] == [2, 2, 2]
    assert len(hooks.explain_all()) == 2
    assert hooks.list() == (hook, added_as_object)
    hooks.clear()
    assert [rope.get_rope(), old(), rope.C().m()] == [1, 1, 1]


def test_importing_a_removed_module_again(hooks, package):
    hooks.add("late_package.rope.get_rope", double, "after")
    for _ in range(2):
        assert importlib.import_module("late_package.rope").get_rope() == 2
        del sys.modules["late_package.rope"]


def test_removed_before_the_import(hooks, package):
    hook = hooks.add("late_package.rope.get_rope", double, "after")
    hooks.remove(hook)
    assert importlib.import_module("late_package.rope").get_rope() == 1
    assert hooks.waiting() == ()


def test_disabled_before_the_import(hooks, package):
    hook = hooks.add("late_package.rope.get_rope", double, "after")
    hooks.disable(hook)
    rope = importlib.import_module("late_package.rope")
    assert rope.get_rope() == 1
    hooks.enable(hook)
    assert rope.get_rope() == 2


def test_an_import_that_fails_and_then_works(hooks, package):
    hooks.add("late_package.rope.get_rope", double, "after")
    text = (package / "rope.py").read_text()
    (package / "rope.py").write_text("1 / 0")
    with pytest.raises(ZeroDivisionError):
        importlib.import_module("late_package.rope")
    (package / "rope.py").write_text(text + "# longer")
    importlib.invalidate_caches()
    assert importlib.import_module("late_package.rope").get_rope() == 2


MISSING = {
    "late_packagf.rope.get_rope": "no module 'late_packagf' is imported or installed",
    "late_package.rop.get_rope": "'rop' was not found; nearest: rope",
    "late_package.rope.get_rop": "'get_rop' was not found; nearest: get_rope",
    "late_package.rope.C.n": "'n' was not found",
}


@pytest.mark.parametrize("target", MISSING)
def test_a_missing_target(hooks, package, caplog, target):
    importlib.import_module("late_package.rope")
    hook = hooks.add(target, double, "after")
    assert MISSING[target] in caplog.text
    assert hooks.waiting() == (hook,)
    with pytest.raises(HookError, match=MISSING[target]) as caught:
        Hooks(strict=True).add(target, double, "after")
    assert caught.value.target == target


@pytest.mark.parametrize("target", ["late_package.rope.get_rop", "late_package.rope.get_rope"])
def test_hooks_that_do_not_fit_at_the_import(hooks, package, caplog, target):
    def unfit():
        return None

    strict = Hooks(strict=True)
    strict.add(target, unfit)
    with pytest.raises(HookError, match=r"nearest: get_rope|can't be called as"):
        importlib.import_module("late_package.rope")
    strict.clear()
    hooks.add(target, unfit)
    assert importlib.import_module("late_package.rope").get_rope() == 1
    assert "is not in force in late_package.rope" in caplog.text


def test_many_threads_import_at_once(hooks, package):
    hooks.add("late_package.rope.get_rope", double, "after")
    start, seen = threading.Barrier(8), []

    def load():
        start.wait()
        seen.append(importlib.import_module("late_package.rope").get_rope())

    threads = [threading.Thread(target=load) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [2] * 8


def test_adding_while_another_thread_imports(hooks, package):
    for _ in range(20):
        start = threading.Barrier(2)

        def load(start=start):
            start.wait()
            importlib.import_module("late_package.rope")

        thread = threading.Thread(target=load)
        thread.start()
        start.wait()
        hook = hooks.add("late_package.rope.get_rope", double, "after")
        thread.join()
        assert sys.modules["late_package.rope"].get_rope() == 2
        hooks.remove(hook)
        del sys.modules["late_package.rope"]


def test_reload_hooks_no_other_function_of_the_same_name(hooks, package, caplog):
    with (package / "rope.py").open("a") as file:
        file.write("inner = get_rope\ndef get_rope(x=1): return inner(x) + 10\n")
    rope = importlib.import_module("late_package.rope")
    hooks.add(rope.inner, double, "after")
    assert rope.get_rope() == 12
    importlib.reload(rope)
    assert rope.get_rope() == 11
    assert not caplog.records


def test_a_cycle_of_waiting_hooks(hooks, package):
    first = hooks.add("late_package.rope.get_rope", double, "after", source="a", before=["b"])
    with pytest.raises(OrderError, match="no order is possible"):
        hooks.add("late_package.rope.get_rope", lambda result, x: result, "after", source="b", before=["a"])
    assert hooks.waiting() == (first,)


def test_a_cycle_that_only_the_import_shows(hooks, package, caplog):
    """The import shows that two hooked paths are one function, so the order of their hooks has a cycle.

    The second hook keeps waiting, and the import continues.
    """
    runtime = Runtime()
    with (package / "rope.py").open("a") as file:
        file.write("alias = get_rope\n")
    runtime.hooks.add("late_package.rope.get_rope", double, "after", source="a", before=["b"])
    second = runtime.hooks.add("late_package.rope.alias", lambda r, x: 0, "after", source="b", before=["a"])
    assert importlib.import_module("late_package.rope").get_rope() == 2
    assert "is not in force in late_package.rope: no order is possible" in caplog.text
    assert runtime.hooks.waiting() == (second,)
    (step,) = [step for each in runtime.hooks.explain_all() for step in each.steps if step.hook is second]
    assert step.state == "waiting"
    assert "no order is possible" in step.reason
    assert runtime.fingerprint()
    runtime.hooks.clear()
