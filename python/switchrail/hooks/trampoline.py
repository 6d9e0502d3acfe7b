"""Compiles trampolines: code for a hooked function, with its exact parameters and the whole chain inline."""

from __future__ import annotations

import inspect
import itertools
import sys
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from types import CodeType, FunctionType
from typing import Any, Final

from switchrail.errors import HookError
from switchrail.hooks.hook import RETURN_NONE, SUSPENDING, Hook, name_of
from switchrail.hooks.parameters import CALLEE, Parameters

_versions: Final = itertools.count()


def build(function: FunctionType, code: CodeType, hooks: Sequence[Hook]) -> CodeType:
    """Compiles a trampoline for a function, and puts the hooks' callables into the function's globals.

    The callables are not constants of the code, since torch.compile would refuse such constants. Each
    trampoline has its own names in the globals, which are deleted together with the trampoline. So a call
    that still runs an older trampoline finds its callables.

    Args:
        function: The hooked function; its code is not changed here.
        code: The function's own code, at the end of the chain.
        hooks: The chain in running order; at least one hook.

    Returns:
        Code for `function.__code__`.
    """
    parameters = Parameters.of(code)
    flags = code.co_flags & SUSPENDING
    prefix = f"__switchrail_{next(_versions)}_"
    names: dict[str, Any] = {}

    def named(what: str, value: Any) -> str:
        name = f"{prefix}{what}"
        names[name] = value
        return name

    # `before` hooks may change the arguments.
    body: list[str] = []
    changed = "__switchrail_changed"
    befores = [hook for hook in hooks if hook.kind == "before"]
    if befores:
        rebind = named("rebind", _rebind(function, code, replace(parameters, callee=False)))
    for i, hook in enumerate(befores):
        fn = named(f"before_{i}", hook.fn)
        body.append(f"{changed} = {parameters.call(fn)}")
        body.append(f"if {changed} is not None: [{', '.join(parameters.names)}] = {rebind}({changed}, {fn})")

    # Calls the first `around` hook. Each `around` hook gets the next one as `original`; the last one gets the
    # `replace` hook or the target's own function.
    replaces = [hook.fn for hook in hooks if hook.kind == "replace"]
    arounds = [hook.fn for hook in hooks if hook.kind == "around"]
    if parameters.callee:  # each call has another original, so the nested functions are created in each call
        inner = named("replace", replaces[0]) if replaces else CALLEE
        for i, around in reversed([*enumerate(arounds)][1:]):
            inner = f"{named('partial', partial)}({named(f'around_{i}', around)}, {inner})"
    else:
        original = replaces[0] if replaces else _like(function, code)
        for around in reversed(arounds[1:]):
            original = partial(around, original)
        inner = named("original", original)
    call = parameters.call(named("around", arounds[0]), inner) if arounds else parameters.call(inner)

    # `after` hooks may change the result.
    afters = [hook for hook in reversed(hooks) if hook.kind == "after"]
    if afters:
        none = named("none", RETURN_NONE)
    ending: list[str] = []
    for i, hook in enumerate(afters):
        awaits = "await " if inspect.iscoroutinefunction(hook.fn) else ""
        ending.append(f"{changed} = {awaits}{parameters.call(named(f'after_{i}', hook.fn), _RESULT)}")
        ending.append(f"if {changed} is not None: {_RESULT} = None if {changed} is {none} else {changed}")
    if afters and flags & inspect.CO_COROUTINE and not _DELEGATES:
        # `after` hooks get a coroutine's result, so the trampoline returns a coroutine that awaits the
        # original's coroutine.
        waiting = [f"{_RESULT} = await {_RESULT}", *ending, f"return {_RESULT}"]
        seen = replace(parameters, callee=False)
        waits = _compiled(code, seen, waiting, first=_RESULT, coroutine=True)
        body.append(f"return {parameters.call(named('waits', _like(function, waits)), call)}")
    else:
        body += _returning(flags, call, ending)

    trampoline = _suspending(code, parameters, body)
    function.__globals__.update(names)
    weakref.finalize(trampoline, _forget, function.__globals__, tuple(names)).atexit = False
    return trampoline


def forwarder(code: CodeType, parameters: Parameters, call: str) -> CodeType:
    """Code with these parameters that runs the source text `call`; the same sort of function as `code`."""
    return _suspending(code, parameters, _returning(code.co_flags & SUSPENDING, call, []), free=())


_RESULT: Final = "__switchrail_result"

# Before 3.11, calling code with a flag in `SUSPENDING` always creates a coroutine or generator. From 3.11 on,
# code can have the flag and return the original's coroutine or generator.
_DELEGATES: Final = sys.version_info < (3, 11)


def _returning(flags: int, call: str, ending: Sequence[str]) -> list[str]:
    """Statements that make a call, run `ending` on its result and return the result."""
    if not (flags and _DELEGATES):
        return [f"{_RESULT} = {call}", *ending, f"return {_RESULT}"] if ending else [f"return {call}"]
    if flags & inspect.CO_COROUTINE:
        return [f"{_RESULT} = await {call}", *ending, f"return {_RESULT}"]
    delegation = (
        _ASYNC_DELEGATION if flags & inspect.CO_ASYNC_GENERATOR else [f"return (yield from {_RESULT})"]
    )
    return [f"{_RESULT} = {call}", *ending, *delegation]


def _suspending(
    code: CodeType, parameters: Parameters, body: Sequence[str], *, free: tuple[str, ...] | None = None
) -> CodeType:
    """Compiles a body into the same sort of function as `code`."""
    flags = code.co_flags & SUSPENDING
    asynchronous = flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR)
    made = _compiled(code, parameters, body, free=free, coroutine=_DELEGATES and bool(asynchronous))
    return made.replace(co_flags=made.co_flags | flags)


_ASYNC_DELEGATION: Final = """\
try:
    __switchrail_value = await __switchrail_result.__anext__()
    while True:
        try:
            __switchrail_sent = yield __switchrail_value
        except GeneratorExit:
            await __switchrail_result.aclose()
            raise
        except BaseException as __switchrail_error:
            __switchrail_value = await __switchrail_result.athrow(__switchrail_error)
        else:
            if __switchrail_sent is None:
                __switchrail_value = await __switchrail_result.__anext__()
            else:
                __switchrail_value = await __switchrail_result.asend(__switchrail_sent)
except StopAsyncIteration:
    pass""".splitlines()


def _forget(namespace: dict[str, Any], names: tuple[str, ...]) -> None:
    for name in names:
        namespace.pop(name, None)


def _compiled(
    code: CodeType,
    parameters: Parameters,
    body: Sequence[str],
    *,
    first: str = "",
    free: tuple[str, ...] | None = None,
    coroutine: bool = False,
) -> CodeType:
    """Compiles a body into a function with the parameter `first` before the given ones.

    The function has the free variables of `code`, unless `free` names others. All instructions get the line
    number of the original's `def`, since coverage would report other lines as never run.
    """
    free = code.co_freevars if free is None else free
    lines = ["def enclosing():"]
    lines += [f"    {name} = None" for name in free]
    definition = f"{first}, {parameters.definition}" if first else parameters.definition
    lines.append(f"    {'async ' if coroutine else ''}def trampoline({definition}):")
    lines += [f"        nonlocal {name}" for name in free]
    lines += [f"        {line}" for line in body]
    # Compiled from text, not from a syntax tree: CPython before 3.13 counts the depth of trees for all
    # threads together, so if two threads build trees at the same time, one may get a SystemError.
    compiled = compile("\n".join(lines), code.co_filename, "exec", dont_inherit=True)
    for _ in ("enclosing", "trampoline"):
        compiled = next(const for const in compiled.co_consts if isinstance(const, CodeType))
    compiled = compiled.replace(
        co_name=code.co_name,
        co_firstlineno=code.co_firstlineno,
        co_freevars=free,
        co_linetable=_one_line(len(compiled.co_code)),
    )
    if sys.version_info >= (3, 11):
        compiled = compiled.replace(co_qualname=code.co_qualname)
    return compiled


def _one_line(size: int) -> bytes:
    """A line-number table that assigns `size` bytes of code to the first line."""
    if sys.version_info < (3, 11):  # pairs of (bytes of code, even and at most 254; difference of lines)
        return bytes(byte for start in range(0, size, 254) for byte in (min(254, size - start), 0))
    # Each entry has two bytes and covers up to eight code units of two bytes. Its first byte is form 13 (no
    # columns) with the number of units, the second byte is the difference of lines.
    units = size // 2
    return bytes(byte for at in range(0, units, 8) for byte in (0x80 | 13 << 3 | min(8, units - at) - 1, 0))


def _like(function: FunctionType, code: CodeType) -> FunctionType:
    """A new function with this code and another function's name, defaults and cells."""
    new = FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    new.__kwdefaults__ = function.__kwdefaults__
    new.__qualname__ = function.__qualname__
    new.__module__ = function.__module__
    return new


def _rebind(
    function: FunctionType, code: CodeType, parameters: Parameters
) -> Callable[[Any, Callable[..., Any]], tuple[Any, ...]]:
    """Creates a function that binds a before hook's `(args, kwargs)` to the target's parameters."""
    bind = _like(
        function, _compiled(code, parameters, [f"return ({''.join(f'{n}, ' for n in parameters.names)})"])
    )

    def rebind(changed: Any, hook: Callable[..., Any]) -> tuple[Any, ...]:
        if isinstance(changed, tuple) and len(changed) == 2:
            args, kwargs = changed
            if isinstance(args, tuple) and isinstance(kwargs, dict):
                values: tuple[Any, ...] = bind(*args, **kwargs)
                return values
        raise HookError(
            f"before hook {name_of(hook)} on {name_of(bind)} returned {changed!r}; "
            "valid: None, or (args, kwargs) with a tuple and a dict",
            target=name_of(bind),
        )

    return rebind
