"""Hooks on objects without Python code: a stand-in takes the object's place in all changeable references."""

import asyncio
import collections
import copy
import functools
import gc
import inspect
import math
import pickle
import types
import weakref

import pytest
from switchrail import garbage
from switchrail.errors import HookError
from switchrail.hooks import Hooks

from tests.hooks.modules import imported

SOURCE = '''
import functools, math

class Kernel:
    """Launched as Triton's are."""
    def __init__(self, name):
        self.name, self.launches = name, []
    def __getitem__(self, grid):
        return lambda *args, **kwargs: self.run(*args, grid=grid, **kwargs)
    def run(self, *args, grid, **kwargs):
        self.launches.append((grid, args, kwargs))
        return sum(args)
    def __call__(self, *args, **kwargs):
        raise RuntimeError("Cannot call @jit outside of the scope of a kernel")

kernel = Kernel("k")

class Adder:
    __slots__ = ("by",)
    def __init__(self, by): self.by = by
    def __call__(self, x): return x + self.by

adder = Adder(5)

@functools.lru_cache
def cached(x, y=1):
    "Cached."
    return [x, y]

@functools.singledispatch
def single(x): return "object"
single.register(int, lambda x: "int")

class Holder:
    @functools.lru_cache
    def method(self, x): return [x]
'''


@pytest.fixture
def objects():
    with imported("hook_objects", SOURCE) as module:
        yield module


def test_a_kernel_is_launched_through_hooks(hooks, objects):
    original = objects.kernel
    seen = []
    hooks.add("hook_objects.kernel", lambda *args, **kwargs: seen.append((args, kwargs)))
    hooks.add("hook_objects.kernel", lambda *args, **kwargs: ((args[0] + 1, *args[1:]), kwargs))
    hooks.add(
        "hook_objects.kernel", lambda original, *args, **kwargs: original(*args, **kwargs) * 10, "around"
    )
    hooks.add(
        "hook_objects.kernel", lambda original, *args, **kwargs: original(*args, **kwargs) + 1, "around"
    )
    hooks.add("hook_objects.kernel", lambda result, *args, **kwargs: -result, "after")
    assert objects.kernel[(4, 1)](1, 2, BLOCK=8) == -50
    assert seen == [((1, 2), {"BLOCK": 8})]
    assert original.launches == [((4, 1), (2, 2), {"BLOCK": 8})]
    assert isinstance(objects.kernel, objects.Kernel)
    assert (objects.kernel.name, objects.kernel.launches) == ("k", original.launches)
    objects.kernel.name = "other"
    assert original.name == "other"
    with pytest.raises(RuntimeError, match="Cannot call"):
        objects.kernel(1)
    hooks.clear()
    assert objects.kernel is original
    assert objects.kernel[1](1, 2) == 3


def test_replace_of_a_kernel(hooks, objects):
    hooks.add(objects.kernel, lambda *args, **kwargs: "instead", "replace")
    hooks.add(objects.kernel, lambda original, *args, **kwargs: [original(*args)], "around")
    assert objects.kernel[1](1) == ["instead"]


def test_lru_cache_keeps_its_attributes(hooks, objects):
    original = objects.cached
    hooks.add("hook_objects.cached", lambda result, x, y=1: [*result, "hooked"], "after")
    assert objects.cached(1) == objects.cached(1) == [1, 1, "hooked"]
    assert objects.cached.cache_info().hits == 1
    assert objects.cached.__wrapped__ is original.__wrapped__
    assert (objects.cached.__name__, objects.cached.__doc__) == ("cached", "Cached.")
    objects.cached.cache_clear()
    assert original.cache_info().misses == 0
    hooks.clear()
    assert objects.cached is original
    assert objects.cached(1) == [1, 1]


def test_lru_cache_as_a_method(hooks, objects):
    original = vars(objects.Holder)["method"]
    hooks.add("hook_objects.Holder.method", lambda result, self, x: [*result, "hooked"], "after")
    assert objects.Holder().method(1) == [1, "hooked"]
    hooks.clear()
    assert vars(objects.Holder)["method"] is original


def test_singledispatch_keeps_its_attributes(hooks, objects):
    hooks.add("hook_objects.single", lambda result, *args, **kw: [result], "after")
    assert [objects.single(1), objects.single("")] == [["int"], ["object"]]
    objects.single.register(str, lambda x: "str")
    assert objects.single("") == ["str"]
    assert objects.single.dispatch(int)(1) == "int"


def test_c_functions(hooks, objects):
    gc.unfreeze()  # the search must find holders of `math.sqrt` that existed before the test
    other = types.SimpleNamespace(root=math.sqrt)
    original = math.sqrt
    hooks.add("math.sqrt", lambda x: ((x + 1,), {}))
    assert (math.sqrt(8), other.root(8), objects.math.sqrt(8)) == (3, 3, 3)
    assert pickle.loads(pickle.dumps(math.sqrt)) is math.sqrt
    assert isinstance(math.sqrt, types.BuiltinFunctionType)
    assert math.sqrt == original
    assert hash(math.sqrt) == hash(original)
    with pytest.raises(TypeError):
        math.sqrt()
    hooks.clear()
    assert math.sqrt is other.root is original


def test_holders_that_are_older_than_an_engine(hooks, objects, whole_heap):
    """An engine hides objects from garbage collection, but the search for holders still finds them."""
    other, original = types.SimpleNamespace(root=math.sqrt), math.sqrt
    garbage.freeze()
    try:
        hooks.add("math.sqrt", lambda x: ((x + 1,), {}))
        assert (math.sqrt(8), other.root(8)) == (3, 3)
        hooks.clear()
        assert math.sqrt is other.root is original
        assert gc.get_freeze_count()
    finally:
        garbage.thaw()


def test_hooks_that_do_not_fit_the_known_parameters(hooks, objects):
    with pytest.raises(HookError, match="too many positional"):
        hooks.add("math.sqrt", lambda: None)
    with pytest.raises(HookError, match="too many positional"):
        hooks.add(objects.adder, lambda x: None, "around")


def slots_holder(thing):
    holder = type("S", (), {"__slots__": ("it",)})()
    holder.it = thing
    return lambda: holder.it


def class_holder(thing):
    cls = type("C", (), {"it": thing})
    return lambda: cls.it


def instance_holder(thing):
    holder = type("C", (), {})()
    holder.it = thing
    return lambda: holder.it


def closure_holder(thing):
    return lambda: thing


def defaults_holder(thing):
    def get(it=thing):
        return it

    return get


def keyword_defaults_holder(thing):
    def get(*, it=thing):
        return it

    return get


def partial_holder(thing):
    held = functools.partial(thing, 1)
    return lambda: held.func


def partial_argument_holder(thing):
    return functools.partial(lambda it: it, thing)


def partial_keyword_holder(thing):
    return functools.partial(lambda it: it, it=thing)


def sequence_holder(make):
    def holder(thing):
        held = make([thing])
        return lambda: next(iter(held))

    holder.__name__ = make.__name__
    return holder


def dict_holder(make):
    def holder(thing):
        held = make({"it": thing})
        return lambda: held["it"]

    holder.__name__ = make.__name__
    return holder


HOLDERS = [
    slots_holder,
    class_holder,
    instance_holder,
    closure_holder,
    defaults_holder,
    keyword_defaults_holder,
    partial_holder,
    partial_argument_holder,
    partial_keyword_holder,
    sequence_holder(list),
    sequence_holder(set),
    sequence_holder(collections.deque),
    dict_holder(dict),
    dict_holder(collections.OrderedDict),
    dict_holder(types.MappingProxyType),
]


@pytest.mark.parametrize("taken", ["before", "after"])
@pytest.mark.parametrize("holder", HOLDERS, ids=lambda holder: holder.__name__)
def test_every_holder_gets_the_stand_in(hooks, objects, holder, taken):
    held = holder(objects.adder) if taken == "before" else None
    hooks.add("hook_objects.adder", lambda result, x: result * 100, "after")
    held = held or holder(objects.adder)
    assert held()(1) == 600
    hooks.clear()
    assert held() is objects.adder
    assert objects.adder(1) == 6


UNREACHED = {
    "tuple": lambda thing: (thing,),
    "frozenset": lambda thing: frozenset([thing]),
    "method": lambda thing: types.MethodType(thing, 1),
    "operator": lambda thing: map(thing, [1]),
}


@pytest.mark.parametrize("kind", UNREACHED)
def test_holders_that_cannot_be_updated_are_reported(hooks, objects, caplog, kind):
    held = UNREACHED[kind](objects.adder)
    hooks.add("hook_objects.adder", lambda result, x: result * 100, "after")
    assert f"{type(held).__qualname__} refers to the unhooked object" in caplog.text
    assert objects.adder(1) == 600


def test_objects_that_cannot_be_replaced_are_refused(hooks, objects):
    for target in ("builtins.str.upper", "builtins.dict.fromkeys", object.__new__, str.upper):
        with pytest.raises(HookError, match="valid: the same method of a subclass"):
            hooks.add(target, lambda self, *args: None)
    assert hooks.list() == ()
    assert "a".upper() == "A"
    held = (objects.Adder(1),)
    with pytest.raises(HookError, match=r"no object that refers to it .* found: a builtins.tuple"):
        hooks.add(held[0], lambda x: None)


def test_two_hooks_on_one_object_are_added_and_removed(hooks, objects):
    original = objects.adder
    first = hooks.add("hook_objects.adder", lambda result, x: result * 10, "after")
    second = hooks.add(objects.adder, lambda result, x: result + 1, "after")
    assert objects.adder(1) == 70
    hooks.remove(first)
    assert objects.adder(1) == 7
    assert hooks.list("hook_objects.adder") == hooks.list(original) == (second,)
    hooks.remove(second)
    assert objects.adder is original


def test_two_runtimes(hooks, objects):
    original, other = objects.adder, Hooks()
    other.add(objects.adder, lambda result, x: result * 2, "after")
    hooks.add(objects.adder, lambda result, x: result + 1, "after")
    assert objects.adder(1) == 14
    other.clear()
    assert objects.adder(1) == 7
    hooks.clear()
    assert objects.adder is original


def test_a_stand_in_looks_like_its_object(hooks, objects):
    original = objects.kernel
    hooks.add("hook_objects.kernel", lambda *args, **kwargs: None)
    assert repr(objects.kernel) == repr(original)
    assert vars(objects.kernel) is vars(original)
    assert dir(objects.kernel) == dir(original)
    assert objects.kernel == original
    assert copy.copy(objects.kernel).name == "k"
    objects.kernel.extra = 1
    del objects.kernel.extra
    assert not hasattr(original, "extra")
    assert weakref.ref(objects.kernel)() is objects.kernel


class Waiting:
    async def __call__(self, x, y=1):
        return [x, y]


class Generating:
    def __call__(self, x, y=1):
        got = yield x
        yield got
        return y


class Streaming:
    async def __call__(self, x, y=1):
        got = yield x
        yield got


def awaited(made):
    return asyncio.run(made)


def sent(made):
    return [next(made), made.send("sent")]


def streamed(made):
    async def use():
        return [await made.__anext__(), await made.asend("sent")]

    return asyncio.run(use())


@pytest.mark.parametrize(
    ("make", "use", "expected"),
    [
        (Waiting, awaited, [1, 1]),
        (lambda: functools.partial(Waiting().__call__, y=2), awaited, [1, 2]),
        (Generating, sent, [1, "sent"]),
        (Streaming, streamed, [1, "sent"]),
    ],
    ids=["coroutine", "partial", "generator", "async generator"],
)
def test_objects_whose_calls_suspend(hooks, objects, make, use, expected):
    objects.made = make()
    assert use(objects.made(1)) == expected
    seen = []
    hooks.add("hook_objects.made", lambda x, y=1: seen.append(x))
    hooks.add("hook_objects.made", lambda original, *args, **kwargs: original(*args, **kwargs), "around")
    hooks.add("hook_objects.made", lambda result, x, y=1: seen.append(result), "after")
    assert use(objects.made(1)) == expected
    assert seen[0] == 1
    if use is awaited:
        assert seen[1] == expected

        async def doubled(original, *args, **kwargs):
            return 2 * await original(*args, **kwargs)

        async def last(result, *args, **kwargs):
            return [*result, "last"]

        hooks.add(objects.made, doubled, "around")
        hooks.add(objects.made, last, "after", priority=1)
        assert use(objects.made(1)) == [*expected * 2, "last"]


def test_inherited_objects_that_do_not_bind(hooks, objects):
    class Base:
        adder = objects.Adder(1)
        launch = objects.Kernel("inherited")
        root = math.sqrt
        Inner = objects.Adder

    class Sub(Base):
        pass

    objects.Sub, objects.Base = Sub, Base
    for name in ("adder", "launch", "root"):
        hooks.add(f"hook_objects.Sub.{name}", lambda result, *args, **kwargs: (result, "hooked"), "after")
    assert (Sub.adder(1), Sub().adder(1), Base.adder(1), Base().adder(1)) == (
        (2, "hooked"),
        (2, "hooked"),
        2,
        2,
    )
    assert (Sub.launch[1](2), Base.launch[1](2)) == ((2, "hooked"), 2)
    assert isinstance(Sub.launch, objects.Kernel)
    assert (Sub().root(4), Base().root(4)) == ((2, "hooked"), 2)
    with pytest.raises(HookError, match="the target is a class"):
        hooks.add("hook_objects.Sub.Inner", lambda *args: None)
    hooks.clear()
    assert {*vars(Sub)}.isdisjoint(["adder", "launch", "root"])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("number", "is of type int; valid: something that can be called, or a property"),
        ("slot", "is of type member_descriptor; valid"),
        ("__dict__", "is of type getset_descriptor; valid"),
        ("no_getter", "is a property without a getter; valid: its fset"),
        ("part", "is of type partialmethod; valid: its func"),
    ],
)
@pytest.mark.parametrize("owner", ["Base", "Sub"])
def test_attributes_that_cannot_be_hooked(hooks, objects, owner, name, message):
    class Slotted:
        __slots__ = ("__dict__", "slot")

    class Base(Slotted):
        number = 3
        no_getter = property(None, lambda self, value: None)
        part = functools.partialmethod(lambda self, x: [x], 1)

    class Sub(Base):
        pass

    objects.Base, objects.Sub = Base, Sub
    if (owner, name) == ("Sub", "part"):
        hooks.add("hook_objects.Sub.part", lambda result, *args, **kw: [*result, "hooked"], "after")
        assert (Sub().part(), Base().part()) == ([1, "hooked"], [1])
        return
    with pytest.raises(HookError, match=message):
        hooks.add(f"hook_objects.{owner}.{name}", lambda *args: None)


def test_callables_that_compare_in_odd_ways(hooks, objects):
    class Odd:
        def __eq__(self, other):
            return []

        __hash__ = object.__hash__

        def __call__(self, *args, **kwargs):
            return None

    odd = Odd()
    hooks.add("hook_objects.adder", odd)
    hooks.add("hook_objects.adder", Odd())
    with pytest.raises(HookError, match="already has this hook"):
        hooks.add("hook_objects.adder", odd)
    hooks.add("hook_objects.adder", odd.__call__)
    with pytest.raises(HookError, match="already has this hook"):
        hooks.add("hook_objects.adder", odd.__call__)


def test_subclasses_of_the_descriptors(hooks, objects):
    namespace = {
        "static": type("S", (staticmethod,), {})(lambda: [1]),
        "cls": type("C", (classmethod,), {})(lambda cls: [2]),
        "prop": type("P", (property,), {})(lambda self: [3]),
        "cached": type("K", (functools.cached_property,), {})(lambda self: [4]),
    }
    objects.Base = type("Base", (), dict(namespace))
    for name in ("cached",):
        vars(objects.Base)[name].__set_name__(objects.Base, name)
    objects.Sub = type("Sub", (objects.Base,), {})
    for owner in (objects.Base, objects.Sub):
        before = dict(vars(owner))
        for name in namespace:
            hooks.add(f"hook_objects.{owner.__name__}.{name}", lambda result, *args: [*result, "h"], "after")
        made = owner()
        assert [made.static(), made.cls(), made.prop, made.cached] == [[i, "h"] for i in (1, 2, 3, 4)]
        hooks.clear()
        assert dict(vars(owner)) == before


class Rich:
    """A class with special methods of many kinds."""

    __hash__ = None

    def __call__(self, x: int, *, y: str = "") -> list[int]:
        return [x]

    def __add__(self, other):
        return ("add", other)

    def __radd__(self, other):
        return ("radd", other)

    def __lt__(self, other):
        return "lt"

    def __int__(self):
        return 5

    def __str__(self):
        return "text"

    def __format__(self, spec):
        return f"formatted {spec}"

    def __reversed__(self):
        return "reversed"

    def __await__(self):
        yield from ()
        return "awaited"

    def __deepcopy__(self, memo):
        return "copied"

    async def __aenter__(self):
        return "entered"

    async def __aexit__(self, *args):
        return None


async def entering(it):
    async with it as entered:
        return entered, await it


SPECIAL = {
    "add": lambda it: (it + 1, 1 + it),
    "compare": lambda it: (it < 1, it == it, it != it),
    "convert": lambda it: (int(it), str(it), f"{it:spec}"),
    "reversed": reversed,
    "await": lambda it: asyncio.run(entering(it)),
    "copy": copy.deepcopy,
    "signature": inspect.signature,
    "documentation": inspect.getdoc,
    "callable": callable,
    "class": lambda it: it.__class__,
}


@pytest.mark.parametrize("name", SPECIAL)
def test_special_methods_are_the_objects(hooks, objects, name):
    objects.rich = Rich()
    expected = SPECIAL[name](objects.rich)
    hooks.add("hook_objects.rich", lambda result, x, *, y="": [*result, "hooked"], "after")
    assert SPECIAL[name](objects.rich) == expected
    assert objects.rich(1) == [1, "hooked"]
    with pytest.raises(TypeError, match="unhashable"):
        hash(objects.rich)
    with pytest.raises(TypeError):
        len(objects.rich)


def test_methods_of_one_instance(hooks, objects):
    with pytest.raises(HookError, match=r"of one instance; valid: 'hook_objects\.Kernel\.run'"):
        hooks.add("hook_objects.kernel.run", lambda *args, **kwargs: None)
    objects.launch = objects.kernel.run
    hooks.add("hook_objects.launch", lambda result, *args, **kwargs: -result, "after")
    assert objects.launch(1, 2, grid=1) == -3
    assert objects.kernel.run(1, 2, grid=1) == 3


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_failed_change_is_undone(hooks, objects, error):
    class Refusing(type):
        def __setattr__(cls, name, value):
            raise error

    original = objects.adder
    held = [original], {"adder": original}, Refusing("Holder", (), {"adder": original}), [original]
    with pytest.raises(error):
        hooks.add("hook_objects.adder", lambda x: None)
    for found in (objects.adder, held[0][0], held[1]["adder"], held[2].adder, held[3][0]):
        assert found is original
    assert hooks.list() == ()


def test_a_class_that_refuses_the_stand_in_is_reported(hooks, objects, caplog):
    class Refusing(type):
        def __setattr__(cls, name, value):
            raise AttributeError("no")

    holder = Refusing("Holder", (), {"adder": objects.adder})
    hooks.add("hook_objects.adder", lambda result, x: 0, "after")
    assert "a builtins.dict refers to the unhooked object" in caplog.text
    assert (objects.adder(1), holder.adder(1)) == (0, 6)


def test_an_owner_whose_repr_fails_is_described(hooks, objects):
    class Unprintable:
        def __repr__(self):
            raise ValueError("no text")

    objects.pair = collections.namedtuple("Pair", "cached other")(objects.cached, Unprintable())
    with pytest.raises(HookError, match="attribute of a Pair, whose repr raised ValueError"):
        hooks.add("hook_objects.pair.cached", lambda *args: None)
