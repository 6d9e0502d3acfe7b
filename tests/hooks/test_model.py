"""Random chains on targets of every kind, compared with a model that interprets hooks one by one."""

import binascii
import functools
import inspect
import sys
import types

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from switchrail.errors import OrderError
from switchrail.hooks import RETURN_NONE, Hooks

SOURCE = """
import binascii, functools

def two(a, b=2): return ["two", a, b]
def positional(a, /, *args, k=3): return ["positional", a, args, k]
def keywords(a=1, *, k, **kw): return ["keywords", a, k, kw]

class Base:
    def __init__(self, x=7): self.x = x
    def method(self, a, b=2): return ["method", self.x, a, b]
    def inherited(self, a, b=2): return ["inherited", self.x, a, b]
    @classmethod
    def of(cls, a, b=2): return ["of", cls.__name__, a, b]
    @staticmethod
    def static(a, b=2): return ["static", a, b]
    @property
    def prop(self): return ["prop", self.x]
    @functools.cached_property
    def cached(self): return ["cached", self.x]

class Sub(Base): pass

async def coroutine(a, b=2): return ["coroutine", a, b]
def generator(a, b=2):
    yield "generator"
    yield from (a, b)
async def stream(a, b=2):
    yield "stream"
    yield a
    yield b

class Adder:
    def __call__(self, a, b=2): return ["adder", a, b]
adder = Adder()
memo = functools.lru_cache(maxsize=1)(lambda a, b=2: ["memo", a, b])
fixed = functools.partial(two, b=8)
crc32 = binascii.crc32
"""

# Target in the module `m` -> expressions that call it.
TARGETS = {
    "two": ["m.two(1)", "m.two(1, 3)", "m.two(b=4, a=5)"],
    "positional": ["m.positional(1)", "m.positional(1, 2, 3, k=4)"],
    "keywords": ["m.keywords(k=2)", "m.keywords(5, k=6, z=7)"],
    "Base.method": ["m.Base().method(1)", "m.Sub(3).method(1, b=5)", "m.Base.method(m.Base(), 1)"],
    "Sub.inherited": ["m.Sub().inherited(1)", "m.Sub(3).inherited(b=1, a=5)"],
    "Base.of": ["m.Base.of(1)", "m.Sub().of(1, b=5)"],
    "Sub.of": ["m.Sub.of(1)", "m.Sub().of(1, b=5)"],
    "Base.static": ["m.Base.static(1)", "m.Sub().static(1, 5)"],
    "Sub.static": ["m.Sub().static(1, 5)"],
    "Base.prop": ["m.Base().prop", "m.Sub(2).prop"],
    "Sub.prop": ["m.Sub(2).prop"],
    "Base.cached": ["m.Base().cached"],
    "Sub.cached": ["m.Sub().cached"],
    "coroutine": ["m.coroutine(1)", "m.coroutine(b=4, a=5)"],
    "generator": ["m.generator(1)", "m.generator(b=4, a=5)"],
    "stream": ["m.stream(1)", "m.stream(b=4, a=5)"],
    "adder": ["m.adder(1)", "m.adder(b=4, a=5)"],
    "memo": ["m.memo(1)", "m.memo(1)", "m.memo(b=4, a=5)"],
    "fixed": ["m.fixed(1)", "m.fixed(1, b=4)"],
    "crc32": ["m.crc32(b'12')", "m.crc32(b'12', 1)"],
}


class Fail(Exception):
    pass


def made():
    """A new module with the targets."""
    module = types.ModuleType("hook_model")
    exec(SOURCE, vars(module))
    return module


def settled(made):
    """The final outcome of a call: a coroutine's result, a generator's items."""
    if inspect.isasyncgen(made):

        async def collect(made=made):
            return [item async for item in made]

        made = collect()
    if inspect.iscoroutine(made):
        try:
            made.send(None)
        except StopIteration as stopped:
            return stopped.value
        raise AssertionError("nothing here waits")
    return list(made) if inspect.isgenerator(made) else made


def shown(value):
    """A form of a value that is equal for corresponding values of two modules."""
    if isinstance(value, (tuple, list)):
        return [shown(item) for item in value]
    if isinstance(value, type):
        return value.__qualname__
    return value if isinstance(value, (int, str, bytes, dict, type(None))) else type(value).__qualname__


def make_hook(trace, name, kind, behaviour, target):
    """A hook that traces its call and then behaves as specified."""

    def shifted(args):
        return tuple(value + 1 if type(value) is int else value for value in args)

    def traced(*values):
        trace.append((name, *map(shown, values)))
        if behaviour == "raise":
            raise Fail(name)

    def result(value):
        """Changes a result as a hook does, in the form that the target's callers expect."""
        if target == "generator":
            return (item for item in (name, *value))
        if target == "stream":

            async def items():
                yield name
                async for item in value:
                    yield item

            return items()
        return [name, value]

    def before(*args, **kwargs):
        traced(args, kwargs)
        return None if behaviour == "leave" else (shifted(args), kwargs)

    def replace(*args, **kwargs):
        traced(args, kwargs)
        return {"generator": items, "stream": stream}.get(target, list)([name])

    def items(values):
        yield from values

    async def stream(values):
        for value in values:
            yield value

    def after(value, *args, **kwargs):
        traced(value, args, kwargs)
        if behaviour == "clear" and target not in ("generator", "stream"):
            return RETURN_NONE
        return None if behaviour == "leave" else result(value)

    def around(original, *args, **kwargs):
        traced(args, kwargs)
        return (
            original(*args, **kwargs) if behaviour == "leave" else result(original(*shifted(args), **kwargs))
        )

    async def waiting_around(original, *args, **kwargs):
        traced(args, kwargs)
        first = await original(*args, **kwargs)
        return first if behaviour == "leave" else result([first, await original(*shifted(args), **kwargs)])

    async def waiting_replace(*args, **kwargs):
        return replace(*args, **kwargs)

    async def waiting_after(value, *args, **kwargs):
        return after(value, *args, **kwargs)

    hooks = {"before": before, "after": after, "around": around, "replace": replace}
    if target == "coroutine":
        hooks |= {"around": waiting_around, "replace": waiting_replace}
        if behaviour == "change":
            hooks["after"] = waiting_after
    return hooks[kind]


def model(original, hooks, *, binds):
    """The function that results from hooks on the original.

    With `binds`, as for Python functions, hooks get positional arguments where possible, and all defaults.
    Otherwise they get the arguments as passed.
    """

    def bound(args, kwargs):
        if not binds:
            return args, kwargs
        binding = inspect.signature(original).bind(*args, **kwargs)
        binding.apply_defaults()
        return binding.args, binding.kwargs

    def of(kind):
        return [fn for k, fn in hooks if k == kind]

    def call(*args, **kwargs):
        args, kwargs = bound(args, kwargs)
        for fn in of("before"):
            changed = fn(*args, **kwargs)
            if changed is not None:
                args, kwargs = bound(*changed)
        inner = [*of("replace"), original][0]
        for fn in reversed(of("around")):

            def inner(*args, fn=fn, inner=inner, **kwargs):
                return fn(inner, *args, **kwargs)

        result = inner(*args, **kwargs)
        if inspect.iscoroutine(result):
            result = settled(result)
        for fn in reversed(of("after")):
            changed = (
                settled(fn(result, *args, **kwargs))
                if inspect.iscoroutinefunction(fn)
                else fn(result, *args, **kwargs)
            )
            if changed is not None:
                result = None if changed is RETURN_NONE else changed
        return result

    return call


def put(module, path, function):
    """Put a function at a path of an unhooked module, as the new original."""
    *owners, name = path.split(".")
    owner = functools.reduce(getattr, owners, module)
    kind = type(inspect.getattr_static(owner, name))
    wrapped = (
        kind(function)
        if kind in (staticmethod, classmethod, property, functools.cached_property)
        else function
    )
    setattr(owner, name, wrapped)
    if isinstance(wrapped, functools.cached_property):
        wrapped.__set_name__(owner, name)


def original_at(module, path):
    """The object at a path of an unhooked module."""
    *owners, name = path.split(".")
    found = inspect.getattr_static(functools.reduce(getattr, owners, module), name)
    for attribute in ("__func__", "fget", "func"):
        if isinstance(found, (staticmethod, classmethod, property, functools.cached_property)):
            found = getattr(found, attribute, found)
    return found


def naive_order(specifications):
    """Repeatedly takes the first hook that no remaining hook must precede; returns None for a cycle."""
    left, order = sorted(specifications, key=lambda s: (-s.priority, s.source, s.number)), []

    def must_wait(one, other):
        return one is not other and (other.source in one.after or one.source in other.before)

    while left:
        ready = [one for one in left if not any(must_wait(one, other) for other in left)]
        if not ready:
            return None
        order.append(ready[0])
        left.remove(ready[0])
    return order


def outcome(trace, source, module):
    trace.clear()
    try:
        return shown(settled(eval(source, {"m": module}))), list(trace)
    except Fail as error:
        return str(error), list(trace)


SPECIFICATION = st.builds(
    types.SimpleNamespace,
    kind=st.sampled_from(["before", "after", "around", "replace"]),
    behaviour=st.sampled_from(["leave", "leave", "change", "change", "clear", "raise"]),
    priority=st.integers(-1, 1),
    source=st.sampled_from(["a", "b", "c"]),
    before=st.sampled_from([(), (), (), ("a",), ("c",), ("b", "c")]),
    after=st.sampled_from([(), (), (), ("b",), ("c", "d")]),
)


@pytest.mark.parametrize("path", TARGETS)
@settings(max_examples=12)
@given(changes=st.lists(SPECIFICATION | st.integers(-6, 5), min_size=1, max_size=9))
def test_chains_do_what_the_model_does(path, changes):
    module, plain = made(), made()
    sys.modules["hook_model"] = module
    hooks, trace, added, disabled = Hooks(), [], [], []
    original = original_at(plain, path)
    binds = isinstance(original, types.FunctionType)
    stood = original_at(module, path)
    code = getattr(stood, "__code__", None)
    namespaces = [dict(vars(owner)) for owner in (module, module.Base, module.Sub)]
    try:
        for number, change in enumerate(changes):
            if isinstance(change, int):
                if not added:
                    continue
                chosen = added[change % len(added)]
                if change >= 0:
                    hooks.remove(chosen.hook)
                    added.remove(chosen)
                elif chosen not in disabled:
                    hooks.disable(chosen.hook)
                    disabled.append(chosen)
                elif naive_order([one for one in added if one is chosen or one not in disabled]) is None:
                    with pytest.raises(OrderError):
                        hooks.enable(chosen.hook)
                else:
                    hooks.enable(chosen.hook)
                    disabled.remove(chosen)
            else:
                change = types.SimpleNamespace(**vars(change), number=number)
                name = f"{change.kind} {number}"
                change.fn = make_hook(trace, name, change.kind, change.behaviour, path)
                enabled = [one for one in added if one not in disabled]
                options = {"source": change.source, "priority": change.priority}
                options |= {"before": change.before, "after": change.after}
                if naive_order([*enabled, change]) is None:
                    with pytest.raises(OrderError):
                        hooks.add(f"hook_model.{path}", change.fn, change.kind, **options)
                else:
                    change.hook = hooks.add(f"hook_model.{path}", change.fn, change.kind, **options)
                    added.append(change)
            order = naive_order([one for one in added if one not in disabled])
            assert hooks.list() == hooks.list(f"hook_model.{path}") == tuple(one.hook for one in order)
            expected = made()
            put(expected, path, model(original, [(one.kind, one.fn) for one in order], binds=binds))
            for call in TARGETS[path]:
                assert outcome(trace, call, module) == outcome(trace, call, expected)
    finally:
        hooks.clear()
        del sys.modules["hook_model"]
    assert original_at(module, path) is stood
    assert getattr(stood, "__code__", None) is code
    assert [dict(vars(owner)) for owner in (module, module.Base, module.Sub)] == namespaces
    assert module.crc32 is binascii.crc32
