"""Every holder of a function sees its hooks, whether it got the function before or after hooking."""

import collections
import contextlib
import contextvars
import copy
import dataclasses
import enum
import functools
import operator
import pickle
import threading
import types
import weakref

import pytest


def from_import(module):
    namespace = {}
    exec("from hook_targets import f", namespace)
    return lambda: namespace["f"](1)


def module_attribute(module):
    return lambda: module.f(1)


def class_attribute(module):
    holder = type("Holder", (), {"f": module.f, "__add__": lambda self, other: None})
    return lambda: holder.f(1)


def staticmethod_alias(module):
    holder = type("Holder", (), {"f": staticmethod(module.f)})
    return lambda: holder().f(1)


def instance_attribute(module):
    holder = types.SimpleNamespace(f=module.f)
    return lambda: holder.f(1)


def dict_registry(module):
    registry = {"f": module.f}
    return lambda: registry["f"](1)


def list_registry(module):
    registry = [module.f]
    return lambda: registry[0](1)


def partial(module):
    return functools.partial(module.f, 1)


def default_argument(module):
    def call(f=module.f):
        return f(1)

    return call


def closure(module):
    f = module.f
    return lambda: f(1)


def bound_method(module):
    return functools.partial(module.C().m, 1)


def caller_of_the_method(module):
    return module.C().n


def inherited_method(module):
    return functools.partial(module.D().m, 1)


def partialmethod(module):
    holder = type("Holder", (), {"f": functools.partialmethod(module.C.m, 1)})
    return holder().f


def wrapper(module):
    @functools.wraps(module.f)
    def wrapped(*args):
        return module.f(*args)

    return functools.partial(wrapped, 1)


def cache(module):
    cached = functools.lru_cache(maxsize=0)(module.f)
    return functools.partial(cached, 1)


def single_dispatch(module):
    return functools.partial(functools.singledispatch(module.f), 1)


def weak_reference(module):
    reference = weakref.ref(module.f)
    return lambda: reference()(1)


def map_object(module):
    return lambda: next(map(module.f, [1]))


def method_caller(module):
    instance = module.C()
    return lambda: operator.methodcaller("m", 1)(instance)


def registered_implementation(module):
    general = functools.singledispatch(lambda a: "general")
    general.register(int, module.f)
    return functools.partial(general, 1)


def weak_set(module):
    held = weakref.WeakSet([module.f])
    return lambda: next(iter(held))(1)


def property_getter(module):
    holder = type("Holder", (), {"__add__": lambda self, b: 1 + b, "f": property(module.f)})
    return lambda: holder().f


def named_tuple(module):
    held = collections.namedtuple("Held", "f")(module.f)
    return lambda: held.f(1)


def dataclass_default(module):
    @dataclasses.dataclass
    class Held:
        f: object = module.f

    held = Held()
    return lambda: held.f(1)


def enumeration(module):
    members = enum.Enum("Members", {"F": functools.partial(module.f, 1)} | {"G": (module.f,)})
    return lambda: members.G.value[0](1)


def thread_target(module):
    results = []

    def collect(function):
        results.append(function(1))

    thread = threading.Thread(target=collect, args=(module.f,))

    def call():
        nonlocal thread
        thread.start()
        thread.join()
        thread = threading.Thread(target=collect, args=(module.f,))
        return results.pop()

    return call


def suspended_generator(module):
    def calling(f):
        while True:
            yield f(1)

    made = calling(module.f)
    return lambda: next(made)


def context_variable(module):
    held = contextvars.ContextVar("held", default=module.f)
    return lambda: held.get()(1)


def bound_by_hand(module):
    return types.MethodType(module.f, 1)


def keyword_default(module):
    def call(*, f=module.f):
        return f(1)

    return call


def tuple_item(module):
    held = (module.f,)
    return lambda: held[0](1)


def frozen_set(module):
    held = frozenset([module.f])
    return lambda: next(iter(held))(1)


def exit_callback(module):
    results = []
    stack = contextlib.ExitStack()
    stack.callback(lambda f: results.append(f(1)), module.f)

    def call():
        with stack.pop_all() as now:
            stack.callback(lambda f: results.append(f(1)), module.f)
            assert now
        return results.pop()

    return call


def copied(module):
    held = copy.deepcopy({"f": module.f})
    return lambda: held["f"](1)


def unpickled(module):
    module.f.__module__ = "hook_targets"
    held = pickle.loads(pickle.dumps(module.f))
    return lambda: held(1)


def single_dispatch_method(module):
    class Holder:
        @functools.singledispatchmethod
        def f(self, a):
            return "general"

        f.register(int, staticmethod(module.f))

    return functools.partial(Holder().f, 1)


def super_call(module):
    class Child(module.C):
        def m(self, a, b=2):
            return super().m(a, b)

    return functools.partial(Child().m, 1)


HOLDERS = [
    from_import,
    module_attribute,
    class_attribute,
    staticmethod_alias,
    instance_attribute,
    dict_registry,
    list_registry,
    partial,
    default_argument,
    closure,
    bound_method,
    caller_of_the_method,
    inherited_method,
    partialmethod,
    wrapper,
    cache,
    single_dispatch,
    weak_reference,
    map_object,
    method_caller,
    registered_implementation,
    weak_set,
    property_getter,
    named_tuple,
    dataclass_default,
    enumeration,
    thread_target,
    suspended_generator,
    context_variable,
    bound_by_hand,
    keyword_default,
    tuple_item,
    frozen_set,
    exit_callback,
    copied,
    unpickled,
    single_dispatch_method,
    super_call,
]
"""Each entry makes a holder of `module.f` or `module.C.m`, and returns a function that calls it."""


def test_the_holders_are_many_and_different():
    assert len({holder.__name__ for holder in HOLDERS}) == len(HOLDERS) >= 19


@pytest.mark.parametrize("taken", ["before", "after"])
@pytest.mark.parametrize("holder", HOLDERS, ids=lambda holder: holder.__name__)
def test_holder_sees_the_hook(hooks, module, holder, taken):
    held = holder(module) if taken == "before" else None
    for target in (module.f, module.C.m):
        hooks.add(target, lambda result, *args: result * 100, "after")
    held = held or holder(module)
    assert held() == 300
    hooks.clear()
    assert held() == 3


def test_closures_share_nothing_but_their_code(hooks, module):
    hooked, other = module.counter(10), module.counter(20)
    hooks.add(hooked, lambda result, by: -result, "after")
    assert [hooked(), hooked(5), other()] == [-11, -16, 21]
    hooks.clear()
    assert [hooked(), other()] == [17, 22]
