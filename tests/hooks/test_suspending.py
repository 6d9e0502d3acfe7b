"""Coroutine functions, generators and asynchronous generators keep their kind under hooks."""

import asyncio
import inspect
import sys
import types

import pytest
from switchrail.errors import HookError
from switchrail.hooks import RETURN_NONE

SOURCE = """
import asyncio, types

async def wait(a, b=2):
    await asyncio.sleep(0)
    return a + b

def count(n, start=0):
    got = []
    try:
        for i in range(start, start + n):
            got.append((yield i))
    except KeyError:
        yield "caught"
    finally:
        got.append("closed")
    return got

async def stream(n, start=0):
    try:
        for i in range(start, start + n):
            await asyncio.sleep(0)
            got = yield i
            if got is not None:
                yield got
    except KeyError:
        yield "caught"

@types.coroutine
def old(a):
    yield
    return a
"""


@pytest.fixture
def functions():
    namespace = types.SimpleNamespace()
    exec(SOURCE, vars(namespace))
    return namespace


def around(original, *args, **kwargs):
    return original(*args, **kwargs)


async def collect(source):
    return [item async for item in source]


def test_hooked_functions_keep_their_kind(hooks, functions):
    for function in (functions.wait, functions.count, functions.stream):
        expected = [test(function) for test in inspect_tests]
        hooks.add(function, lambda *args: None)
        hooks.add(function, around, "around")
        assert [test(function) for test in inspect_tests] == expected
    assert inspect.iscoroutinefunction(functions.wait)
    made = functions.wait(1)
    assert asyncio.iscoroutine(made)
    assert asyncio.run(made) == 3
    assert isinstance(functions.count(1), types.GeneratorType)
    assert isinstance(functions.stream(1), types.AsyncGeneratorType)


inspect_tests = [inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="on 3.10, an outer generator delegates to it")
def test_a_hooked_generator_has_the_original_code(hooks, functions):
    code = functions.count.__code__
    hooks.add(functions.count, around, "around")
    assert functions.count(1).gi_code is code


def test_each_kind_on_a_coroutine_function(hooks, functions):
    async def double(original, a, b):
        return await original(a, b) * 2

    async def slow_after(result, a, b):
        await asyncio.sleep(0)
        return result + 1

    seen = []
    hooks.add(functions.wait, lambda a, b: ((a + 10, b), {}))
    hooks.add(functions.wait, double, "around")
    hooks.add(functions.wait, lambda result, a, b: seen.append((result, a, b)), "after", priority=-2)
    hooks.add(functions.wait, slow_after, "after", priority=-1)
    assert asyncio.run(functions.wait(1)) == 27
    assert seen == [(26, 11, 2)]
    assert inspect.iscoroutinefunction(functions.wait)

    async def instead(a, b):
        return 100

    hooks.add(functions.wait, instead, "replace")
    hooks.add(functions.wait, lambda result, a, b: RETURN_NONE, "after", priority=1)
    assert asyncio.run(functions.wait(1)) is None


def test_many_at_once(hooks, functions):
    hooks.add(functions.wait, lambda result, a, b: result * 2, "after")

    async def all_of():
        return await asyncio.gather(*(functions.wait(i) for i in range(20)))

    assert asyncio.run(all_of()) == [(i + 2) * 2 for i in range(20)]


def test_cancelling_and_raising(hooks, functions):
    async def cancelled():
        task = asyncio.ensure_future(functions.wait(1))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    hooks.add(functions.wait, around, "around")
    hooks.add(functions.wait, lambda result, a, b: None, "after")
    asyncio.run(cancelled())
    with pytest.raises(TypeError, match="concatenate"):
        asyncio.run(functions.wait("x"))


@pytest.mark.parametrize("hooked", [False, True])
def test_a_generator_is_sent_thrown_and_closed(hooks, functions, hooked):
    if hooked:
        hooks.add(functions.count, around, "around")
        hooks.add(functions.count, lambda n, start: ((n,), {"start": start}))
        hooks.add(functions.count, lambda result, n, start: None, "after")
    made = functions.count(3)
    assert [next(made), made.send("x"), made.send("y")] == [0, 1, 2]
    with pytest.raises(StopIteration) as stopped:
        made.send("z")
    assert stopped.value.value == ["x", "y", "z", "closed"]
    made = functions.count(3)
    next(made)
    assert made.throw(KeyError) == "caught"
    made.close()
    assert list(made) == []
    with pytest.raises(ValueError, match="mine"):
        functions.count(3).throw(ValueError("mine"))


def test_hooks_that_make_generators(hooks, functions):
    def doubled(result, n, start):
        for item in result:
            yield item * 2

    def bracketed(original, n, start):
        yield "["
        yield from original(n, start)

    hooks.add(functions.count, doubled, "after")
    assert list(functions.count(3, 1)) == [2, 4, 6]
    hooks.add(functions.count, bracketed, "around")
    assert list(functions.count(2)) == ["[[", 0, 2]


@pytest.mark.parametrize("hooked", [False, True])
def test_an_async_generator_is_sent_thrown_and_closed(hooks, functions, hooked):
    if hooked:
        hooks.add(functions.stream, around, "around")
        hooks.add(functions.stream, lambda n, start: None)

    async def use():
        made = functions.stream(3)
        assert [await made.__anext__(), await made.asend("x"), await made.__anext__()] == [0, "x", 1]
        assert await made.athrow(KeyError) == "caught"
        await made.aclose()
        assert await collect(made) == []
        assert await collect(functions.stream(2, 5)) == [5, 6]

    asyncio.run(use())


def test_hooks_that_make_async_generators(hooks, functions):
    async def doubled(result, n, start):
        async for item in result:
            yield item * 2

    hooks.add(functions.stream, doubled, "after")
    hooks.add(functions.stream, lambda n, start: ((n + 1, start), {}))
    assert asyncio.run(collect(functions.stream(2))) == [0, 2, 4]


def test_generator_based_coroutines(hooks, functions):
    async def outer():
        return await functions.old(5)

    hooks.add(functions.old, around, "around")
    assert asyncio.run(outer()) == 5


async def coroutine(*args, **kwargs):
    return None


def generator(*args, **kwargs):
    yield


async def async_generator(*args, **kwargs):
    yield


def plain(*args, **kwargs):
    return None


@pytest.mark.parametrize("target", [coroutine, generator, async_generator, plain], ids=lambda f: f.__name__)
@pytest.mark.parametrize("fn", [coroutine, generator, async_generator], ids=lambda f: f.__name__)
@pytest.mark.parametrize("kind", ["before", "after", "around", "replace"])
def test_kinds_of_hooks_that_fit_a_target(hooks, target, fn, kind):
    copy = types.FunctionType(fn.__code__, globals())
    if fn is target and kind != "before":
        hooks.add(target, copy, kind)
    else:
        with pytest.raises(HookError, match=r"valid for this kind and target: a .*plain function"):
            hooks.add(target, copy, kind)
