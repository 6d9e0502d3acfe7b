"""Adding and removing hooks: refusals, restoration, leftovers."""

import gc
import subprocess
import sys
import types

import pytest
from switchrail.errors import HookError, SwitchrailError
from switchrail.hooks import Hooks, site, trampoline


def private_names(module):
    return [name for name in vars(module) if name.startswith("__switchrail")]


def test_removal_restores_everything(hooks, module):
    f, attributes = module.f, dict(vars(module.f))
    code, names = f.__code__, set(vars(module))
    added = [hooks.add(f, lambda *args, i=i: None, kind) for i, kind in enumerate(("before", "after"))]
    assert f.__code__ is not code
    assert private_names(module)
    assert vars(f) == attributes
    assert not hasattr(f, "__wrapped__")
    for hook in added:
        hooks.remove(hook)
    assert f.__code__ is code
    assert set(vars(module)) == names
    assert hooks.list() == ()


def test_only_the_latest_chain_has_names(hooks, module):
    for i in range(10):
        hooks.add(module.f, lambda a, b, i=i: None)
    assert len([name for name in private_names(module) if "_before_" in name]) == 10


def test_a_running_call_keeps_its_chain(hooks, module):
    def around(original, a, b):
        hooks.clear()
        gc.collect()
        return original(a, b)

    hooks.add(module.f, around, "around")
    hooks.add(module.f, lambda original, a, b: original(a, b) * 10, "around", priority=-1)
    hooks.add(module.f, lambda result, a, b: result + 1, "after")
    assert [module.f(1), module.f(1)] == [31, 3]
    assert private_names(module) == []


def test_a_copy_of_a_hooked_function_keeps_its_chain(hooks, module):
    hooks.add(module.f, lambda result, a, b: result * 2, "after")
    copy = types.FunctionType(module.f.__code__, module.f.__globals__, "copy", module.f.__defaults__)
    hooks.clear()
    assert [copy(1), module.f(1)] == [6, 3]


def test_code_swapped_by_somebody_else_stays(hooks, module, caplog):
    hook = hooks.add(module.f, lambda a, b: None)
    theirs = (lambda a, b=2: "theirs").__code__
    module.f.__code__ = theirs
    with pytest.raises(HookError, match="other code has changed"):
        hooks.add(module.f, lambda a, b: None, "replace")
    assert hooks.list() == (hook,)
    hooks.clear()
    assert module.f.__code__ is theirs
    assert "hook_targets.f keeps its code" in caplog.text
    hooks.add(module.f, lambda result, a, b: f"hooked {result}", "after")
    assert module.f(1) == "hooked theirs"


def test_a_swap_that_fails_rolls_all_back():
    # An audit hook can't be removed, so this one runs in a separate process.
    program = f"""
import sys
sys.path[:0] = {sys.path!r}
from switchrail.hooks import Hooks, chain

def f(a): return a
def g(a): return a
codes, refused = (f.__code__, g.__code__), []

def audit(event, arguments):
    if event == "object.__setattr__" and arguments[:2] == (g, "__code__"):
        refused.append(event)
        raise PermissionError("no")

sys.addaudithook(audit)
hooks = Hooks()
try:
    hooks.commit([hooks.prepare(target, lambda a: None) for target in (f, g)])
except PermissionError:
    print("refused", len(refused))
assert (f.__code__, g.__code__) == codes
assert chain.running() == ()
assert not [name for name in globals() if name.startswith("__switchrail")]
print("rolled back")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("refused 1\nrolled back\n", "")


def test_a_finalizer_may_remove_hooks_in_the_middle_of_a_change(hooks, module, monkeypatch):
    other, code = Hooks(), module.C.m.__code__
    theirs = other.add(module.C.m, lambda result, *args: result * 2, "after")

    def build(*args):
        other.clear()
        assert other.list() == (theirs,)
        return trampoline.build(*args)

    monkeypatch.setattr(site, "build", build)
    hooks.add(module.f, lambda result, a, b: result * 2, "after")
    assert module.f(1) == 6
    assert other.list() == ()
    assert module.C.m.__code__ is code


@pytest.mark.parametrize("change", ["add", "disable"])
def test_hooks_are_only_removed_in_the_middle_of_a_change(hooks, module, monkeypatch, change):
    other = hooks.add(module.C.m, anything)

    def build(*args):
        hooks.add(module.C.m, anything) if change == "add" else hooks.disable(other)

    monkeypatch.setattr(site, "build", build)
    with pytest.raises(HookError, match="within another change"):
        hooks.add(module.f, lambda a, b: None)
    assert hooks.list() == (other,)


def test_hooks_of_others_are_not_removed(hooks, module):
    hook = hooks.add(module.f, lambda a, b: None)
    Hooks().remove(hook)
    assert hooks.list() == (hook,)


def test_a_commit_with_a_hook_of_another_registry_adds_none(hooks, module):
    good = hooks.prepare(module.f, lambda a, b: None)
    foreign = Hooks().prepare(module.C.m, lambda *args: None)
    code = module.f.__code__
    with pytest.raises(HookError, match="another Hooks"):
        hooks.commit([good, foreign])
    assert module.f.__code__ is code
    assert hooks.list() == ()
    assert private_names(module) == []


def test_the_same_hook_twice(hooks, module):
    def nothing(a, b):
        return None

    hooks.add(module.f, nothing)
    with pytest.raises(HookError, match="already has this hook"):
        hooks.add(module.f, nothing)
    hooks.add(module.f, nothing, "replace")
    assert len(hooks.list()) == 2


def anything(*args, **kwargs):
    return None


async def suspends(*args, **kwargs):
    return None


REFUSED_TARGETS = {
    "f": "not a dotted path",
    "hook_targets.": "not a dotted path",
    "hook_targets.g h": "not a dotted path",
    "hook_targets.counterr": "nearest: counter",
    "hook_targets.C.mm": "'mm' was not found",
    "hook_targets.__name__": "is of type str; valid: something that can be called",
    "hook_targetz.f": "nearest: hook_targets",
}


@pytest.mark.parametrize("target", REFUSED_TARGETS)
def test_refused_dotted_targets(hooks, module, target):
    hooks.strict = True
    with pytest.raises(HookError, match=REFUSED_TARGETS[target]) as caught:
        hooks.add(target, anything)
    assert isinstance(caught.value, SwitchrailError)
    assert isinstance(caught.value, ValueError)


def test_refused_objects(hooks, module):
    with pytest.raises(HookError, match=r"of one instance; valid: 'hook_targets\.C\.m', which every"):
        hooks.add(module.C().m, anything)
    with pytest.raises(HookError, match="is of type int; valid: something that can be called"):
        hooks.add(3, anything)


@pytest.mark.parametrize(
    ("kind", "fn", "message"),
    [
        ("beforr", anything, "valid: before, after, around, replace"),
        ("before", 3, "not callable"),
        ("before", lambda a: None, r"can't be called as fn\(a, b\): too many positional"),
        ("before", lambda a, b, c: None, "missing a required argument: 'c'"),
        ("after", lambda a, b: None, "too many positional"),
        ("around", lambda a, b: None, "too many positional"),
        ("replace", lambda a, *, b: None, "too many positional"),
        ("before", suspends, "coroutine"),
    ],
)
def test_refused_hooks(hooks, module, kind, fn, message):
    with pytest.raises(HookError, match=message):
        hooks.add(module.f, fn, kind)
    assert hooks.list() == ()


def test_refused_for_a_variadic_target(hooks):
    def f(*args, k, **kw):
        return None

    with pytest.raises(HookError, match=r"no parameter for \*args"):
        hooks.add(f, lambda a, k, **kw: None)
    with pytest.raises(HookError, match=r"no parameter for \*\*kw"):
        hooks.add(f, lambda *args, k: None)
    with pytest.raises(HookError, match="missing a required"):
        hooks.add(f, lambda *args, k, other, **kw: None)
    hooks.add(f, lambda *args, k, **kw: None)


@pytest.mark.parametrize("priority", [2**31, True, 1.5, "1"])
def test_refused_priorities(hooks, module, priority):
    with pytest.raises(HookError, match="32 bits"):
        hooks.add(module.f, anything, priority=priority)


def test_every_instruction_is_on_the_line_of_the_def(hooks, module):
    line = module.counter(0).__code__.co_firstlineno
    step = module.counter(0)
    hooks.add(step, lambda by: None)
    hooks.add(step, lambda result, by: None, "after")
    lines = {line for _, _, line in step.__code__.co_lines() if line is not None}
    assert lines == {line}
