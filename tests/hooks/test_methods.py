"""Hooks on methods of every kind, on the defining class and on one that inherits them."""

import functools

import pytest
from switchrail.errors import HookError
from switchrail.hooks import chain

from tests.hooks.modules import imported

SOURCE = """
import functools

class Base:
    def method(self, x=1): return ["base", x]
    def __call__(self, x): return ["call", x]
    def variadic(*args): return ["variadic", *args[1:]]
    @classmethod
    def of(cls, x=1): return [cls.__name__, x]
    @staticmethod
    def static(x=1): return ["static", x]
    @property
    def prop(self):
        "Documented."
        return ["prop"]
    @prop.setter
    def prop(self, value): self.got = value
    @functools.cached_property
    def cached(self):
        self.computed = getattr(self, "computed", 0) + 1
        return ["cached"]
    async def waits(self): return ["waits"]
    def __init_subclass__(cls): cls.made = ["made"]

class Middle(Base): pass
class Leaf(Middle): pass
class Other(Base):
    def method(self, x=1): return ["other", *super().method(x)]
class Diamond(Middle, Other): pass
"""


@pytest.fixture
def classes():
    with imported("hook_classes", SOURCE) as module:
        yield module


def mark(result, *args, **kwargs):
    return [*result, "hooked"]


USES = {
    "method": lambda cls: cls().method(),
    "__call__": lambda cls: cls()(1),
    "variadic": lambda cls: cls().variadic(1),
    "of": lambda cls: cls.of(),
    "static": lambda cls: cls().static(),
    "prop": lambda cls: cls().prop,
    "cached": lambda cls: cls().cached,
}


@pytest.mark.parametrize("name", USES)
def test_on_the_class_itself(hooks, classes, name):
    use, before = USES[name], dict(vars(classes.Base))
    plain = use(classes.Base)
    hooks.add(f"hook_classes.Base.{name}", mark, "after")
    assert use(classes.Base) == [*plain, "hooked"]
    assert use(classes.Leaf)[-1] == "hooked"
    hooks.clear()
    assert use(classes.Base) == plain
    assert dict(vars(classes.Base)) == before


@pytest.mark.parametrize("name", USES)
def test_inherited_leaves_the_base_alone(hooks, classes, name):
    use = USES[name]
    plain = {cls: use(cls) for cls in (classes.Base, classes.Middle, classes.Leaf, classes.Other)}
    base, middle = dict(vars(classes.Base)), dict(vars(classes.Middle))
    kind = type(vars(classes.Base)[name])
    first = hooks.add(f"hook_classes.Middle.{name}", mark, "after")
    hooks.add(
        f"hook_classes.Middle.{name}", lambda original, *args, **kwargs: original(*args, **kwargs), "around"
    )
    assert type(vars(classes.Middle)[name]) is kind
    assert use(classes.Base) == plain[classes.Base]
    assert use(classes.Other) == plain[classes.Other]
    assert use(classes.Middle) == [*plain[classes.Middle], "hooked"]
    assert use(classes.Leaf) == [*plain[classes.Leaf], "hooked"]
    hooks.remove(first)
    assert use(classes.Middle) == plain[classes.Middle]
    hooks.clear()
    assert dict(vars(classes.Base)) == base
    assert dict(vars(classes.Middle)) == middle
    assert chain.added() == {}


def test_two_prepared_together_share_the_function(hooks, classes):
    pair = [
        hooks.prepare("hook_classes.Middle.method", fn, "after") for fn in (mark, lambda r, *a: [*r, "too"])
    ]
    hooks.commit(pair)
    assert classes.Middle().method() == ["base", 1, "too", "hooked"]
    hooks.remove(*pair)
    assert "method" not in vars(classes.Middle)


def test_a_hook_on_the_base_and_one_on_the_subclass(hooks, classes):
    hooks.add("hook_classes.Middle.method", lambda r, *a: [*r, "middle"], "after")
    hooks.add("hook_classes.Base.method", lambda r, *a: [*r, "hooked base"], "after")
    assert classes.Middle().method() == ["base", 1, "hooked base", "middle"]
    assert classes.Base().method() == ["base", 1, "hooked base"]


def test_the_next_class_is_found_in_each_call(hooks, classes):
    hooks.add("hook_classes.Middle.method", mark, "after")
    assert classes.Diamond().method() == ["other", "base", 1, "hooked"]


def test_signatures_of_inherited(hooks, classes):
    import asyncio
    import inspect

    signature = inspect.signature(classes.Middle.method)
    hooks.add("hook_classes.Middle.method", mark, "after")
    assert inspect.signature(classes.Middle.method) == signature
    with pytest.raises(TypeError, match="takes from 1 to 2 positional"):
        classes.Middle().method(1, 2)
    hooks.add("hook_classes.Middle.waits", mark, "after")
    assert inspect.iscoroutinefunction(classes.Middle.waits)
    assert asyncio.run(classes.Leaf().waits()) == ["waits", "hooked"]
    assert asyncio.run(classes.Base().waits()) == ["waits"]


def test_properties_keep_setter_and_documentation(hooks, classes):
    hooks.add("hook_classes.Middle.prop", mark, "after")
    instance = classes.Middle()
    instance.prop = 5
    assert (instance.got, instance.prop) == (5, ["prop", "hooked"])
    assert classes.Middle.prop.__doc__ == "Documented."
    hooks.add("hook_classes.Base.prop.fset", lambda self, value: ((self, value + 1), {}))
    instance.prop = 5
    assert instance.got == 6


def test_cached_once(hooks, classes):
    calls = []
    hooks.add("hook_classes.Middle.cached", lambda self: calls.append(self))
    hooks.add("hook_classes.Middle.cached", mark, "after")
    instance = classes.Middle()
    assert instance.cached is instance.cached
    assert (instance.cached, calls, instance.computed) == (["cached", "hooked"], [instance], 1)


def test_class_methods_as_objects(hooks, classes):
    hooks.add(classes.Middle.of, mark, "after")
    assert classes.Leaf.of(2) == ["Leaf", 2, "hooked"]
    assert classes.Base.of(2) == ["Base", 2]
    hooks.add(classes.Base.of, lambda cls, x: ((cls, x + 1), {}))
    assert classes.Leaf.of(2) == ["Leaf", 3, "hooked"]


def test_special_methods_that_python_inherits_from_c(hooks, classes):
    hooks.add("hook_classes.Middle.__repr__", lambda original, self: "shown", "around")
    assert repr(classes.Leaf()) == "shown"
    assert repr(classes.Base()).startswith("<hook_classes.Base")

    class Mapping(dict):
        pass

    classes.Mapping = Mapping
    hooks.add("hook_classes.Mapping.get", lambda result, *args: (result, "hooked"), "after")
    assert Mapping(a=1).get("a") == (1, "hooked")
    assert {"a": 1}.get("a") == 1


def test_inherited_init_subclass(hooks, classes):
    hooks.add(
        "hook_classes.Middle.__init_subclass__",
        lambda original, cls: [original(cls), cls.made.append(1)],
        "around",
    )
    assert type("New", (classes.Middle,), {}).made == ["made", 1]
    assert type("New", (classes.Base,), {}).made == ["made"]


def test_partialmethods_see_the_hook(hooks, classes):
    classes.Leaf.fixed = functools.partialmethod(classes.Base.method, 7)
    hooks.add("hook_classes.Base.method", mark, "after")
    assert classes.Leaf().fixed() == ["base", 7, "hooked"]


async def waits(*args, **kwargs):
    return None


def generates(*args, **kwargs):
    yield


@pytest.mark.parametrize("fn", [lambda: None, waits, generates], ids=["parameters", "coroutine", "generator"])
@pytest.mark.parametrize("kind", ["before", "after", "around", "replace"])
@pytest.mark.parametrize("owner", ["Base", "Middle"])
@pytest.mark.parametrize("name", [name for name in USES if name != "variadic"])
def test_impossible_hooks_are_refused_at_registration(hooks, classes, name, owner, kind, fn):
    before = dict(vars(getattr(classes, owner)))
    with pytest.raises(HookError, match=r"it can't be called as|function; valid for this kind and target"):
        hooks.add(f"hook_classes.{owner}.{name}", fn, kind)
    assert dict(vars(getattr(classes, owner))) == before
    assert chain.added() == {}


def test_a_setter_is_hooked_on_the_class_that_has_it(hooks, classes):
    with pytest.raises(
        HookError, match="part of a property that Middle inherits; valid: 'prop' of the class"
    ):
        hooks.add("hook_classes.Middle.prop.fset", lambda self, value: None)


@pytest.mark.parametrize(
    "target", ["builtins.list.append", "builtins.bool.bit_length", "functools.partial.__new__"]
)
def test_methods_of_classes_in_c_are_refused(hooks, target):
    with pytest.raises(
        HookError, match="a class implemented in C, which can't be changed; valid: the same method of a"
    ):
        hooks.add(target, lambda *args, **kwargs: None)
    assert chain.added() == {}
