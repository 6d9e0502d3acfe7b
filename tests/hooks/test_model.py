"""Random chains against a model that interprets the same hooks one by one."""

import inspect

from hypothesis import given, settings
from hypothesis import strategies as st
from switchrail.hooks import RETURN_NONE, Hooks

TARGETS = [
    ("a, b=2", ["f(1)", "f(1, 3)", "f(b=4, a=5)"]),
    ("a, /, *args, k=3", ["f(1)", "f(1, 2, 3, k=4)"]),
    ("a=1, *, k, **kw", ["f(k=2)", "f(5, k=6, z=7)"]),
]


class Fail(Exception):
    pass


def make_hook(trace, name, kind, behaviour):
    """A hook that traces its call and then behaves as told."""

    def shifted(args):
        return (args[0] + 1, *args[1:]) if args else args

    def act(call):
        if behaviour == "raise":
            raise Fail(name)
        return call

    def before(*args, **kwargs):
        trace.append((name, args, kwargs))
        return act({"leave": None}.get(behaviour, (shifted(args), kwargs)))

    def replace(*args, **kwargs):
        trace.append((name, args, kwargs))
        return act((name, args))

    def after(result, *args, **kwargs):
        trace.append((name, result, args, kwargs))
        return act({"leave": None, "clear": RETURN_NONE}.get(behaviour, (name, result)))

    def around(original, *args, **kwargs):
        trace.append((name, args, kwargs))
        act(None)
        if behaviour == "leave":
            return original(*args, **kwargs)
        if behaviour == "clear":
            return None
        return original(*args, **kwargs), original(*shifted(args), **kwargs)

    return {"before": before, "after": after, "around": around, "replace": replace}[kind]


def model(signature, original, hooks):
    """The function that a chain in its running order makes of the original."""

    def bound(args, kwargs):
        binding = signature.bind(*args, **kwargs)
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
        for fn in reversed(of("after")):
            changed = fn(result, *args, **kwargs)
            if changed is not None:
                result = None if changed is RETURN_NONE else changed
        return result

    return call


def outcome(trace, source, function):
    trace.clear()
    try:
        return eval(source, {"f": function}), list(trace)
    except Fail as error:
        return str(error), list(trace)


SPECIFICATION = st.tuples(
    st.sampled_from(["before", "after", "around", "replace"]),
    st.sampled_from(["leave", "leave", "change", "change", "clear", "raise"]),
    st.integers(-1, 1),
    st.sampled_from(["a", "b", "c"]),
)


@settings(max_examples=150, deadline=None)
@given(
    target=st.sampled_from(TARGETS),
    changes=st.lists(SPECIFICATION | st.integers(-6, 5), min_size=1, max_size=9),
)
def test_chains_do_what_the_model_does(target, changes):
    parameters, calls = target
    namespace = {}
    exec(f"def f({parameters}): return dict(locals())", namespace)
    f, hooks, trace, added = namespace["f"], Hooks(), [], []
    signature, code = inspect.signature(f), f.__code__
    plain = type(f)(code, f.__globals__, "f", f.__defaults__)
    plain.__kwdefaults__ = f.__kwdefaults__
    try:
        for number, change in enumerate(changes):
            if isinstance(change, int):
                if added and change >= 0:
                    *_, hook = added.pop(change % len(added))
                    hooks.remove(hook)
                elif added:
                    *_, hook = added[change % len(added)]
                    (hooks.enable if hook in hooks.disabled() else hooks.disable)(hook)
            else:
                kind, behaviour, priority, source = change
                fn = make_hook(trace, f"{kind} {number}", kind, behaviour)
                hook = hooks.add(f, fn, kind, source=source, priority=priority)
                added.append((-priority, source, number, kind, fn, hook))
            running = [(kind, fn) for *_, kind, fn, hook in sorted(added) if hook not in hooks.disabled()]
            expected = model(signature, plain, running)
            for call in calls:
                assert outcome(trace, call, f) == outcome(trace, call, expected)
    finally:
        hooks.clear()
    assert f.__code__ is code
