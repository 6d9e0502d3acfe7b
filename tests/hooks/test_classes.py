"""Replacing classes in place."""

import contextlib
import functools
import itertools
import pickle
import sys
import threading
import time
import types
from typing import Generic, TypeVar

import pytest
from switchrail.errors import HookError
from switchrail.hooks.classes import namespaces

from tests.hooks.modules import imported

SOURCE = """
import functools

class Target:
    "The original."
    flag = 1
    def __init__(self, x=1): self.x = x
    def m(self, a=1): return ["m", self.x, a]
    def n(self): return ["n"]
    @property
    def prop(self): return ["prop"]
    @classmethod
    def make(cls, x): return cls(x)

class Sub(Target):
    def n(self): return ["sub", *super().n()]

class Slotted:
    __slots__ = ("x",)
    def m(self): return 1
"""


@pytest.fixture
def mod():
    with imported("hook_replaced", SOURCE) as module:
        yield module


def extending(Target):
    class Better(Target):
        extra = 2

        def __init__(self, x=1):
            super().__init__(x * 10)

        def m(self, a=1):
            return ["better", *super().m(a)]

        @property
        def prop(self):
            return ["better", *super().prop]

        @classmethod
        def make(cls, x):
            return super().make(x + 1)

    return Better


class Unrelated:
    def m(self, a=1):
        return ["unrelated", a]


def test_a_class_that_extends_the_target(hooks, mod):
    pickle.dumps(mod.Target())  # sets `__slotnames__` on the class, before its attributes are read
    Target, Sub, before = mod.Target, mod.Sub, dict(vars(mod.Target))
    made, Better = Sub(), extending(mod.Target)
    hooks.add("hook_replaced.Target", Better, "replace")
    assert mod.Target is Target
    assert Target().m(2) == ["better", "m", 10, 2]
    assert (made.m(), made.n(), made.prop) == (["better", "m", 1, 1], ["sub", "n"], ["better", "prop"])
    assert isinstance(made, Target)
    assert (Target.extra, Target.flag, type(Target.make(1)), Target.make(1).x) == (2, 1, Target, 20)
    assert type(pickle.loads(pickle.dumps(Target()))) is Target
    assert Better().m() == ["better", "m", 10, 1]
    assert Sub.__mro__ == (Sub, Target, object)
    hooks.clear()
    assert dict(vars(Target)) == before
    assert (made.m(), Target().x, Better().m()) == (["m", 1, 1], 1, ["better", "m", 10, 1])


def test_a_class_that_does_not_extend_the_target(hooks, mod):
    made = mod.Target()
    hooks.add(mod.Target, Unrelated, "replace")
    assert made.m() == ["unrelated", 1]
    assert not hasattr(made, "n")
    hooks.clear()
    assert (made.m(), made.n()) == (["m", 1, 1], ["n"])


def mark(result, *args):
    return [*result, "hooked"]


@pytest.mark.parametrize("first", ["class", "method"])
@pytest.mark.parametrize("make", [extending, lambda Target: Unrelated], ids=["extending", "unrelated"])
def test_a_method_is_hooked_in_either_order(hooks, mod, first, make):
    by = make(mod.Target)
    expected = [*(["better", "m", 10, 1] if make is extending else ["unrelated", 1]), "hooked"]
    adds = {
        "class": lambda: hooks.add("hook_replaced.Target", by, "replace", source="a"),
        "method": lambda: hooks.add("hook_replaced.Target.m", mark, "after", source="b"),
    }
    one = adds.pop(first)()
    (other,) = [add() for add in adds.values()]
    replaced, method = (one, other) if first == "class" else (other, one)
    assert mod.Target().m() == expected
    assert hooks.list("hook_replaced.Target.m") == (method,)
    explained = ["hook_replaced.Target", "hook_replaced.Target.m"]
    assert [each.target for each in hooks.explain_all()] == explained
    assert hooks.explain("hook_replaced.Target.m").target == explained[1]
    assert hooks.list(mod.Target) == (replaced,)
    hooks.remove(replaced)
    assert mod.Target().m() == ["m", 1, 1, "hooked"]
    hooks.clear()
    assert mod.Target().m() == ["m", 1, 1]
    assert namespaces.replaced == {}


def test_a_further_replace_of_a_method_is_reported(hooks, mod, caplog):
    hooks.add(mod.Target, Unrelated, "replace")
    assert not caplog.records
    hooks.add("hook_replaced.Target.m", lambda self, a: "mine", "replace")
    assert mod.Target().m() == "mine"
    assert "replaces a method of a class that has been replaced" in caplog.text


def test_of_two_replacing_classes_the_first_in_order_applies(hooks, mod, caplog):
    hooks.add(mod.Target, Unrelated, "replace")
    better = hooks.add(mod.Target, extending(mod.Target), "replace", priority=1)
    assert mod.Target().m() == ["better", "m", 10, 1]
    assert "never runs" in caplog.text
    hooks.disable(better)
    assert mod.Target.__new__(mod.Target).m() == ["unrelated", 1]
    hooks.clear()
    assert mod.Target().m() == ["m", 1, 1]


class Meta(type):
    pass


REFUSED = {
    "slots": (lambda T: type("B", (), {"__slots__": ("a",)}), "another memory layout"),
    "fewer": (lambda T: type("B", (T,), {"__slots__": ("a",)}), "another memory layout"),
    "bases": (lambda T: type("B", (dict,), {}), "its bases are"),
    "mixed": (lambda T: type("B", (T, Unrelated), {}), "its bases are"),
    "metaclass": (lambda T: Meta("B", (), {}), "its metaclass is"),
    "function": (lambda T: lambda *args: None, "valid: a class"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_classes(hooks, mod, name):
    make, message = REFUSED[name]
    before = dict(vars(mod.Target))
    with pytest.raises(HookError, match=message):
        hooks.add(mod.Target, make(mod.Target), "replace")
    assert dict(vars(mod.Target)) == before


def test_refused_kinds_and_targets(hooks, mod):
    with pytest.raises(HookError, match="valid: replace, or a hook on one of its methods"):
        hooks.add(mod.Target, lambda original, *args: None, "around")
    with pytest.raises(HookError, match=r"the hook is a class.*valid: replace"):
        hooks.add(mod.Target, Unrelated, "around")
    with pytest.raises(HookError, match="another memory layout"):
        hooks.add(mod.Slotted, Unrelated, "replace")
    with pytest.raises(HookError, match="class implemented in C"):
        hooks.add(int, Unrelated, "replace")


def test_attributes_that_others_set_meanwhile_stay(hooks, mod):
    hooks.add(mod.Target, extending(mod.Target), "replace")
    mod.Target.added = 5
    mod.Target.flag = 7
    del mod.Target.n
    hooks.clear()
    assert (mod.Target.added, mod.Target.flag, hasattr(mod.Target, "n")) == (5, 7, False)
    assert mod.Target().m() == ["m", 1, 1]


def test_an_inherited_method_hooked_before_its_class_is_replaced(hooks, mod):
    names = set(vars(mod.Sub))
    method = hooks.add("hook_replaced.Sub.m", mark, "after")
    better = type("Better", (mod.Sub,), {"n": lambda self: ["better"]})
    replaced = hooks.add(mod.Sub, better, "replace")
    assert (mod.Sub().m(), mod.Sub().n()) == (["m", 1, 1, "hooked"], ["better"])
    hooks.remove(method)
    hooks.remove(replaced)
    assert set(vars(mod.Sub)) == names
    assert (mod.Sub().m(), mod.Sub().n()) == (["m", 1, 1], ["sub", "n"])


def test_a_class_that_refuses_an_attribute_is_put_back(hooks, mod):
    class Guarded(type):
        def __setattr__(cls, name, value):
            if name == "refused":
                raise AttributeError("no")
            super().__setattr__(name, value)

    target = Guarded("T", (), {"m": lambda self: 1})
    before = dict(vars(target))
    by = Guarded("B", (), {"m": lambda self: 2, "refused": 1, "z": 3})
    with pytest.raises(HookError, match=r"test_classes\.T can't be changed: no"):
        hooks.add(target, by, "replace")
    assert dict(vars(target)) == before
    assert hooks.list() == ()


def test_a_class_replaces_one_class_and_is_not_replaced_itself(hooks):
    def of(name):
        return type(name, (), {"m": lambda self: name})

    first, second, by, last = (of(name) for name in ("first", "second", "by", "last"))
    hooks.add(first, by, "replace")
    for target, hook, why in (
        (second, by, r"already replaces \S+first; valid: a separate class for each"),
        (by, last, r"the target replaces \S+first; valid: to replace \S+first"),
        (last, first, r"itself is replaced by \S+by; valid: \S+by"),
    ):
        with pytest.raises(HookError, match=why):
            hooks.add(target, hook, "replace")
    assert [cls().m() for cls in (first, second, by, last)] == ["by", "second", "by", "last"]
    hooks.clear()
    assert hooks.add(second, by, "replace").kind == "replace"
    assert [cls().m() for cls in (first, second, by, last)] == ["first", "by", "by", "last"]


@pytest.mark.parametrize("extends", [True, False])
def test_a_call_that_outlasts_the_replacement_finds_super(hooks, extends):
    class Base:
        def m(self):
            return ["base"]

    class Target(Base):
        def m(self):
            return ["target", *super().m()]

    class By(Target if extends else Base):
        def m(self):
            hooks.clear()
            return ["by", *super().m()]

    target, by = Target(), By()
    for instance in (target, by):
        hooks.add(Target, By, "replace")
        assert instance.m() == (["by", "target", "base"] if extends else ["by", "base"])
        assert hooks.list() == ()
    assert target.m() == ["target", "base"]


def test_methods_find_super_while_others_replace_their_class(hooks):
    class Target:
        def m(self):
            return 1

    class By(Target):
        def m(self):
            return super().m() + 1

    target = Target()

    def look():
        try:
            return target.m()
        except TypeError as error:
            return str(error)

    assert replaced_over_and_over(hooks, Target, By, look) <= {1, 2}


def replaced_over_and_over(hooks, target, by, look):
    """Replace and restore a class repeatedly, and return the values that two threads observe meanwhile."""
    seen, looks, stop = set(), itertools.count(), threading.Event()
    latest = 0

    def keep_looking():
        nonlocal latest
        while not stop.is_set():
            seen.add(look())
            latest = next(looks)

    def until_looked_at():
        start = latest
        while latest < start + 4:  # a thread may have begun its last observation before the change
            time.sleep(0)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    threads = [threading.Thread(target=keep_looking) for _ in range(2)]
    try:
        for thread in threads:
            thread.start()
        for _ in range(12):
            hook = hooks.add(target, by, "replace")
            until_looked_at()
            hooks.remove(hook)
            until_looked_at()
    finally:
        stop.set()
        sys.setswitchinterval(interval)
        for thread in threads:
            thread.join()
    return seen


def test_no_thread_sees_some_names_of_each_class(hooks):
    names = [f"m{i}" for i in range(60)]
    target = type("T", (), {name: lambda self: "old" for name in names} | {"old": 1})
    by = type("B", (), {name: lambda self: "new" for name in names} | {"new": 1})

    def look():
        namespace = vars(target).copy()
        return frozenset([*(namespace[name](None) for name in names), *({"old", "new"} & {*namespace})])

    assert replaced_over_and_over(hooks, target, by, look) == {frozenset(["old"]), frozenset(["new"])}


def test_a_hooked_method_is_hooked_at_every_moment(hooks):
    class Target:
        def m(self):
            return 0

    class By:
        def m(self):
            return 1

    def look():
        return frozenset(instance.m() for _ in range(50))

    hooks.add(Target.m, lambda result, self: result + 10, "after")
    instance = Target()
    seen = replaced_over_and_over(hooks, Target, By, look)
    assert {*itertools.chain(*seen)} == {10, 11}


def test_a_hook_on_a_method_that_the_replacing_class_lacks(hooks, mod, caplog):
    method = hooks.add("hook_replaced.Target.n", mark, "after")
    replaced = hooks.add(mod.Target, Unrelated, "replace")
    assert f"{method!r} never runs: {replaced!r} has no function of this name" in caplog.text
    assert not hasattr(mod.Target, "n")
    (step,) = hooks.explain("hook_replaced.Target.n").steps
    assert (step.hook, step.state) == (method, "ignored")
    assert "replaces the class, and the new class has no such function" in step.reason
    hooks.remove(replaced)
    assert mod.Target().n() == ["n", "hooked"]
    assert [step.state for step in hooks.explain("hook_replaced.Target.n").steps] == ["runs"]


def test_setters_move_too(hooks, mod):
    mod.Target.prop = mod.Target.prop.setter(lambda self, value: setattr(self, "x", value))

    class Better(mod.Target):
        @property
        def prop(self):
            return self.got

        @prop.setter
        def prop(self, value):
            self.got = value

    setter = "hook_replaced.Target.prop.fset"
    hooks.add(setter, lambda self, value: ((self, value + 1), {}))
    hooks.add(mod.Target, Better, "replace")
    instance = mod.Target()
    instance.prop = 5
    assert instance.prop == 6
    hooks.add(mod.Target, type("None", (), {"prop": property(lambda self: 0)}), "replace", priority=1)
    assert [step.state for step in hooks.explain(setter).steps] == ["ignored"]


@pytest.mark.parametrize("first", ["class", "method"])
@pytest.mark.parametrize("defines", [True, False], ids=["defines it", "inherits it"])
def test_an_inherited_method_of_a_replaced_class(hooks, mod, first, defines):
    """The hook is on the function that `Sub.m` finds, while `Sub` is replaced and after it is restored."""
    names = dict(vars(mod.Sub))
    Better = type("Better", (mod.Target,), {"m": lambda self, a=1: ["mine"]} if defines else {"z": 1})
    adds = {
        "class": lambda: hooks.add("hook_replaced.Sub", Better, "replace"),
        "method": lambda: hooks.add("hook_replaced.Sub.m", mark, "after"),
    }
    one = adds.pop(first)()
    (other,) = [add() for add in adds.values()]
    replaced, method = (one, other) if first == "class" else (other, one)
    assert mod.Sub().m() == ([*(["mine"] if defines else ["m", 1, 1]), "hooked"])
    assert mod.Target().m() == ["m", 1, 1]
    assert [step.hook for step in hooks.explain("hook_replaced.Sub.m").steps] == [method]
    hooks.remove(replaced)
    assert mod.Sub().m() == ["m", 1, 1, "hooked"]
    replaced = hooks.add("hook_replaced.Sub", Better, "replace")
    hooks.remove(method)
    assert mod.Sub().m() == (["mine"] if defines else ["m", 1, 1])
    hooks.remove(replaced)
    assert dict(vars(mod.Sub)) == names


def test_super_within_wrappers(hooks, mod):
    def passing(fn):
        @functools.wraps(fn)
        def wrapper(*args, **kwargs):
            return fn(*args, **kwargs)

        return wrapper

    class Better(mod.Target):
        @passing
        @passing
        def m(self, a=1):
            return ["wrapped", *super().m(a)]

        @functools.lru_cache  # noqa: B019
        def n(self):
            def inner(self):
                return super().n()

            return ["cached", *inner(self)]

        @functools.cached_property
        def once(self):
            return [*super().n(), *(lambda self: super().n())(self)]

        @contextlib.contextmanager
        def managed(self):
            yield super().n()

    hooks.add(mod.Target, Better, "replace")
    instance = mod.Target()
    assert (instance.m(), instance.n(), instance.once) == (
        ["wrapped", "m", 1, 1],
        ["cached", "n"],
        ["n", "n"],
    )
    with instance.managed() as found:
        assert found == ["n"]
    assert Better().m() == ["wrapped", "m", 1, 1]


@pytest.mark.parametrize("kept", [True, False])
def test_super_in_a_method_that_is_hooked_already(hooks, mod, kept):
    Better = extending(mod.Target)
    own = hooks.add(Better.m, mark, "after")
    hooks.add(mod.Target, Better, "replace")
    assert mod.Target().m() == ["better", "m", 10, 1, "hooked"]
    if not kept:
        hooks.remove(own)
        assert mod.Target().m() == ["better", "m", 10, 1]
    hooks.clear()
    assert mod.Target().m() == ["m", 1, 1]
    assert Better().m() == ["better", "m", 10, 1]


def test_an_attribute_called_super_is_refused(hooks, mod):
    class Better(mod.Target):
        def m(self, a=1):
            return [super().m(a), self.super]

    with pytest.raises(HookError, match="uses an attribute named super"):
        hooks.add(mod.Target, Better, "replace")

    class Other(mod.Target):
        super = 1

        def m(self, a=1):
            return self.super

    hooks.add(mod.Target, Other, "replace")
    assert mod.Target().m() == 1


def test_mixins_of_the_target(hooks):
    """A replacement with the target's bases finds their methods with `super()`, not the target's."""

    class Base:
        def m(self):
            return ["base"]

    class Mixin:
        def m(self):
            return ["mixin", *super().m()]

    class Target(Mixin, Base):
        def m(self):
            return ["target", *super().m()]

    class Sub(Target):
        def m(self):
            return ["sub", *super().m()]

    class By(Mixin, Base):
        def m(self):
            return ["by", *super().m()]

        @staticmethod
        def explicit(instance):
            return super(By, instance).m()  # noqa: UP008

    hooks.add(Target, By, "replace")
    assert (Target().m(), Sub().m()) == (["by", "mixin", "base"], ["sub", "by", "mixin", "base"])
    assert By().m() == ["by", "mixin", "base"]
    assert Target.explicit(Sub()) == ["mixin", "base"]
    hooks.clear()
    assert Sub().m() == ["sub", "target", "mixin", "base"]


def test_a_new_method_is_refused_if_the_target_inherits_objects(hooks, mod):
    class Better(mod.Target):
        def __new__(cls, *args):
            return super().__new__(cls)

    with pytest.raises(HookError, match="it adds __new__"):
        hooks.add(mod.Target, Better, "replace")
    with pytest.raises(HookError, match=r"inherited from object, .* valid: __init__"):
        hooks.add("hook_replaced.Target.__new__", lambda *args, **kwargs: None)
    mod.WithNew = type("WithNew", (mod.Target,), {"__new__": lambda cls, *args: object.__new__(cls)})
    mod.Inherits = type("Inherits", (mod.WithNew,), {})
    by = type("By", (mod.WithNew,), {"__new__": lambda cls, *args: object.__new__(cls)})
    seen = []
    hooks.add("hook_replaced.Inherits.__new__", lambda cls, *args: seen.append(cls))
    hooks.add(mod.WithNew, by, "replace")
    assert (mod.Inherits(4).x, mod.WithNew(5).x, seen) == (4, 5, [mod.Inherits])
    hooks.clear()
    assert (mod.Inherits(4).x, mod.WithNew(5).x) == (4, 5)


def test_the_target_itself_is_refused(hooks, mod):
    with pytest.raises(HookError, match="the hook is the target itself"):
        hooks.add(mod.Target, mod.Target, "replace")


def test_an_object_without_code_in_a_class_that_is_replaced_meanwhile(hooks, mod):
    mod.Target.cached = functools.lru_cache(lambda self: ["cached"])
    original = vars(mod.Target)["cached"]
    for by, expected in (
        (type("Keeps", (mod.Target,), {}), ["cached", "hooked"]),
        (type("Own", (mod.Target,), {"cached": lambda self: ["own"]}), ["own"]),
    ):
        method = hooks.add("hook_replaced.Target.cached", mark, "after")
        replaced = hooks.add(mod.Target, by, "replace")
        assert mod.Target().cached() == expected
        hooks.remove(method)
        hooks.remove(replaced)
        assert vars(mod.Target)["cached"] is original


KINDS = """
import abc, dataclasses, typing

@dataclasses.dataclass(slots=True)
class Slotted:
    x: int = 1
    def m(self): return [self.x]

class Abstract(abc.ABC):
    x = 1
    @abc.abstractmethod
    def m(self): return ["abstract"]

X = typing.TypeVar("X")
class Generic(typing.Generic[X]):
    x = 1
    def m(self): return ["generic"]

class Error(Exception):
    x = 1
    def m(self): return ["error"]
"""


@pytest.mark.parametrize("name", ["Slotted", "Abstract", "Generic", "Error"])
def test_classes_of_other_kinds(hooks, mod, name):
    exec(KINDS, vars(mod))
    target = getattr(mod, name)
    before = dict(vars(target))

    body = {"m": lambda self: ["better", *target_m(self)]}
    if name == "Slotted":
        body["__slots__"] = ()
    target_m = target.m
    Better = type(target)("Better", (target,), body)
    hooks.add(f"hook_replaced.{name}", Better, "replace")
    made = target()
    assert made.m()[0] == "better"
    hooks.clear()
    assert dict(vars(target)) == before


@pytest.mark.parametrize("subscripted", [False, True])
def test_a_generic_class_keeps_its_parameters(hooks, subscripted):
    T, U = TypeVar("T"), TypeVar("U")
    Pool = types.new_class("Pool", (Generic[T],), exec_body=lambda ns: ns.update(kind=lambda self: "pool"))
    base = Pool[U] if subscripted else Pool
    Paged = types.new_class("Paged", (base,), exec_body=lambda ns: ns.update(kind=lambda self: "paged"))
    before = Pool[int]
    hooks.add(Pool, Paged, "replace")
    assert before().kind() == Pool[str]().kind() == "paged"
    assert Pool.__parameters__ == (T,)
    hooks.clear()
    assert before().kind() == Pool[str]().kind() == "pool"
