"""Arguments, results and exceptions in a chain of hooks, and the order of hooks."""

import inspect
import pickle
import traceback

import pytest
from switchrail.errors import ArgumentError, HookError, OrderError
from switchrail.hooks import RETURN_NONE, Hooks, chain


def test_each_kind(hooks, module):
    seen = []
    hooks.add(module.f, lambda a, b: seen.append((a, b)))
    hooks.add(module.f, lambda a, b: ((a * 10, b), {}))
    hooks.add(module.f, lambda original, a, b: original(a, b) + 0.5, "around")
    hooks.add(module.f, lambda a, b: a * b, "replace")
    hooks.add(module.f, lambda result, a, b: (result, a, b), "after")
    assert module.f(1) == (20.5, 10, 2)
    assert seen == [(1, 2)]


def test_after_leaves_changes_or_clears_the_result(hooks, module):
    answers = iter([None, 7, RETURN_NONE])
    hooks.add(module.f, lambda result, a, b: next(answers), "after")
    assert [module.f(1), module.f(1), module.f(1)] == [3, 7, None]


def test_return_none_survives_pickling():
    assert pickle.loads(pickle.dumps(RETURN_NONE)) is RETURN_NONE
    assert repr(RETURN_NONE) == "switchrail.hooks.RETURN_NONE"


def test_first_in_order_is_nearest_to_the_caller(hooks, module):
    trace = []

    def put(source, priority=0, **constraints):
        def around(original, a, b):
            trace.append(f"{source} in")
            result = original(a, b)
            trace.append(f"{source} out")
            return result

        hooks.commit(
            [
                hooks.prepare(module.f, fn, kind, source=source, priority=priority, **constraints)
                for kind, fn in {
                    "before": lambda a, b: trace.append(f"{source} before"),
                    "around": around,
                    "after": lambda result, a, b: trace.append(f"{source} after"),
                }.items()
            ]
        )

    put("b")
    put("a")
    put("c", priority=1)
    put("d", before=["a"], after=["not installed"])
    module.f(1)
    order = ["c", "b", "d", "a"]
    assert trace == [
        *(f"{source} before" for source in order),
        *(f"{source} in" for source in order),
        *(f"{source} out" for source in reversed(order)),
        *(f"{source} after" for source in reversed(order)),
    ]
    assert [hook.source for hook in hooks.list(module.f) if hook.kind == "around"] == order


def test_equal_hooks_keep_the_order_of_registration(hooks, module):
    trace = []
    first = hooks.add(module.f, lambda a, b: trace.append("first"), after=["z"])
    hooks.add(module.f, lambda a, b: trace.append("second"))
    last = hooks.add(module.f, lambda a, b: trace.append("z"), source="z")
    module.f(1)
    assert trace == ["second", "z", "first"]
    hooks.remove(last)
    trace.clear()
    module.f(1)
    assert trace == ["first", "second"]
    hooks.remove(first)
    hooks.remove(first)
    module.f(1)
    assert trace == ["first", "second", "second"]


def test_a_cycle_is_refused_and_changes_nothing(hooks, module):
    hooks.add(module.f, lambda result, a, b: result + 1, "after", source="a", before=["b"])
    with pytest.raises(OrderError, match="no order is possible"):
        hooks.add(module.f, lambda result, a, b: result + 1, "after", source="b", before=["a"])
    assert module.f(1) == 4
    assert len(hooks.list()) == 1


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"source": None}, "None is not a name of a hook or source"),
        ({"before": [3]}, "3 is not a name of a hook or source"),
        ({"before": "abc"}, "before is 'abc'; valid: a list"),
        ({"after": None}, "after is None; valid: a list"),
        ({"priority": 1.5}, "its priority is 1.5; valid: an int of 32 bits"),
        ({"priority": 2**31}, "its priority is 2147483648; valid: an int of 32 bits"),
    ],
    ids=str,
)
def test_invalid_orders_are_refused(hooks, module, options, why):
    with pytest.raises((HookError, ArgumentError), match=why):
        hooks.add(module.f, lambda a, b: None, **options)
    assert chain.added() == {}


def test_only_the_first_replace_runs_and_the_other_is_reported(hooks, module, caplog):
    hooks.add(module.f, lambda a, b: "low", "replace", source="low")
    assert not caplog.records
    hooks.add(module.f, lambda a, b: "high", "replace", source="high", priority=1)
    assert module.f(1) == "high"
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "'low'" in caplog.text
    assert "'high'" in caplog.text


def test_two_runtimes_share_a_target(hooks, module):
    other = Hooks()
    hooks.add(module.f, lambda result, a, b: result + 1, "after")
    theirs = other.add(module.f, lambda result, a, b: result * 2, "after", priority=-1)
    assert module.f(1) == 7
    assert other.list() == (theirs,)
    hooks.clear()
    assert module.f(1) == 6
    other.clear()
    assert module.f(1) == 3


SIGNATURES = [
    ("", ["", "1", "x=1"]),
    ("a", ["1", "a=1", "", "1, 2", "1, a=2"]),
    ("a, /, b=2", ["1", "1, 3", "1, b=3", "a=1", ""]),
    ("a=1, *args", ["", "1, 2, 3", "1, a=2"]),
    ("*, k, d=4", ["k=1", "d=1", "k=1, d=2", "1"]),
    ("a, b=2, *args, k=3, **kw", ["1", "1, 2, 3, k=5, z=6", "b=1, a=2", "z=1"]),
    ("self, original, result, /, **kw", ["1, 2, 3, self=4, original=5, result=6"]),
    ("ünï, _x, __y", ["1, 2, 3", "ünï=1, _x=2, __y=3"]),
]


@pytest.mark.parametrize(("parameters", "calls"), SIGNATURES, ids=[p for p, _ in SIGNATURES])
def test_calls_bind_as_without_hooks(hooks, parameters, calls):
    namespace = {}
    exec(f"def f({parameters}): return locals()", namespace)
    f = namespace["f"]

    def outcome(call):
        try:
            return eval(f"f({call})", namespace)
        except TypeError as error:
            return str(error)

    expected = [outcome(call) for call in calls]
    signature, argspec = inspect.signature(f), inspect.getfullargspec(f)
    hooks.add(f, lambda *args, **kwargs: (args, kwargs))
    hooks.add(f, lambda original, /, *args, **kwargs: original(*args, **kwargs), "around")
    hooks.add(f, lambda original, /, *args, **kwargs: original(*args, **kwargs), "around", priority=1)
    hooks.add(f, lambda result, /, *args, **kwargs: result, "after")
    assert [outcome(call) for call in calls] == expected
    assert (inspect.signature(f), inspect.getfullargspec(f)) == (signature, argspec)


def test_defaults_stay_the_functions_own(hooks, module):
    hooks.add(module.f, lambda result, a, b: None, "after")
    module.f.__defaults__ = (40,)
    assert module.f(2) == 42


def test_original_and_changed_arguments_take_the_defaults(hooks):
    def f(a, b=2, *, k=3):
        return a, b, k

    hooks.add(f, lambda original, a, b, k: original(a), "around")
    assert f(1, 7, k=8) == (1, 2, 3)
    hooks.clear()
    hooks.add(f, lambda a, b, k: ((), {"a": a + 10}))
    assert f(1, 7, k=8) == (11, 2, 3)


def test_exceptions_pass_unchanged(hooks, module):
    class Oops(Exception):
        pass

    for kind in ("before", "around", "replace", "after"):
        error = Oops(kind)

        def fail(*args, error=error):
            raise error

        hook = hooks.add(module.f, fail, kind)
        with pytest.raises(Oops) as caught:
            module.f(1)
        assert caught.value is error
        assert caught.value.__cause__ is caught.value.__context__ is None
        hooks.remove(hook)
    hooks.add(module.f, lambda a, b: None)
    with pytest.raises(TypeError, match="unsupported operand") as caught:
        module.f(None)
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert [(frame.name, frame.lineno) for frame in frames[-2:]] == [("f", 2), ("f", 4)]


@pytest.mark.parametrize("returned", [3, (1, 2), [(1, 2), {}], ((1, 2), {}, None), False])
def test_a_before_hook_that_returns_something_else(hooks, module, returned):
    hooks.add(module.f, lambda a, b: returned)
    with pytest.raises(HookError, match=r"valid: None, or \(args, kwargs\)"):
        module.f(1)


def test_changed_arguments_that_do_not_fit(hooks, module):
    hooks.add(module.f, lambda a, b: ((1, 2, 3), {}))
    with pytest.raises(TypeError, match=r"^f\(\) takes from 1 to 2 positional arguments but 3 were given$"):
        module.f(1)


def test_recursion_goes_through_the_hook(hooks):
    namespace = {}
    exec("def fact(n): return 1 if n == 0 else n * fact(n - 1)", namespace)
    calls = []
    hooks.add(namespace["fact"], lambda n: calls.append(n))
    assert namespace["fact"](5) == 120
    assert calls == [5, 4, 3, 2, 1, 0]


def test_super_and_class_cells(hooks):
    class Base:
        def m(self):
            return ["base"]

    class Child(Base):
        def m(self):
            return [*super().m(), __class__.__name__]

    hooks.add(Child.m, lambda result, self: [*result, type(self).__name__], "after")
    assert Child().m() == ["base", "Child", "Child"]
    assert Child.m.__code__.co_freevars == ("__class__",)


def test_original_outlives_its_chain(hooks, module):
    kept = []
    hooks.add(module.f, lambda original, a, b: kept.append(original), "around")
    hooks.add(module.f, lambda original, a, b: original(a, b) * 10, "around", priority=-1)
    module.f(1)
    hooks.clear()
    assert kept[0](1, 2) == 30
