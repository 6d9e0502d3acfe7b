import functools
import itertools
import logging
import sys
import threading
import time
import types

import pytest
from switchrail import Runtime
from switchrail.hooks import Hooks
from switchrail.hooks.target import resolve


@pytest.fixture(autouse=True)
def many_switches():
    """Make Python switch threads often."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


def together(*works):
    """Run each function in a thread of its own, then raise the first exception, if there is one."""
    errors, start = [], threading.Barrier(len(works))

    def run(work):
        try:
            start.wait(60)
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_each_call_sees_one_whole_chain(hooks, module):
    """A call sees the whole chain from before or from after a change.

    With half of a chain, its result would be off by a thousand.
    """
    f, stop, wrong, hooked = module.f, threading.Event(), [], [0] * 4

    def call(i):
        while not stop.is_set():
            if f(i, 1) != i + 1:
                wrong.append(i)

    def before(a, b):
        hooked[a] += 1
        return (a + 1000, b), {}

    callers = [threading.Thread(target=call, args=(i,)) for i in range(4)]
    for caller in callers:
        caller.start()
    while min(hooked) < 50:
        pair = [
            hooks.prepare(f, before),
            hooks.prepare(f, lambda result, a, b: result - 1000, "after"),
        ]
        hooks.commit(pair)
        hooks.remove(*pair)
    stop.set()
    for caller in callers:
        caller.join()
    assert wrong == []


def test_changes_from_many_threads_lose_nothing(hooks, module):
    code = module.f.__code__
    registries = [Hooks() for _ in range(8)]

    def change(registry):
        kept = [registry.add(module.f, lambda a, b, i=i: None) for i in range(8)]
        for hook in kept[::2]:
            registry.remove(hook)
        registry.add(module.f, lambda result, a, b: result + 1, "after")

    together(*(functools.partial(change, registry) for registry in registries))
    assert [len(registry.list()) for registry in registries] == [5] * 8
    assert module.f(1) == 11
    for registry in registries:
        registry.clear()
    assert module.f.__code__ is code


def test_hooks_of_every_kind_of_target_from_many_threads(hooks, module):
    class Adder:
        def __call__(self, x):
            return x + 1

    class Other:
        def m(self, a, b=2):
            return a - b

        def n(self):
            return self.m(1)

    module.adder = original = Adder()
    wrong = []

    def change(number):
        registry = Hooks()
        for _ in range(10):
            registry.add("hook_targets.D.m", lambda result, *args: None, "after")
            registry.add("hook_targets.adder", lambda result, x: None, "after")
            registry.add("hook_targets.C", Other, "replace", source=f"{number}")
            if module.C().m(1) != -1 or module.D().m(1) != -1 or module.adder(1) != 2:
                wrong.append(number)
            registry.clear()

    together(*(functools.partial(change, number) for number in range(8)))
    assert wrong == []
    assert module.adder is original
    assert "m" not in vars(module.D)
    assert (module.C().m(1), module.D().m(1)) == (3, 3)


@pytest.mark.parametrize("where", ["function", "inherited method", "class", "object"])
def test_no_call_runs_unhooked_once_the_change_has_returned(hooks, module, where):
    """A call that begins after a hook was added, and ends before it is removed, sees the hook."""
    module.adder = functools.partial(module.f, b=2)
    target, kind, fn, use = {
        "function": ("hook_targets.f", "replace", lambda a, b: "hooked", lambda: module.f(1)),
        "inherited method": (
            "hook_targets.D.m",
            "replace",
            lambda self, a, b: "hooked",
            lambda: module.D().m(1),
        ),
        "class": (
            "hook_targets.C",
            "replace",
            type("Other", (module.C,), {"m": lambda self, a, b=2: "hooked"}),
            lambda: module.D().n(),
        ),
        "object": ("hook_targets.adder", "replace", lambda a, *, b=0: "hooked", lambda: module.adder(1)),
    }[where]
    in_force, wrong, calls, stop = [False], [], [0] * 4, threading.Event()

    def call(i):
        while not stop.is_set():
            before = in_force[0]
            result = use()
            if before and in_force[0] and result != "hooked":
                wrong.append(result)
            calls[i] += 1

    callers = [threading.Thread(target=call, args=(i,)) for i in range(4)]
    for caller in callers:
        caller.start()
    for _ in range(10):
        hook = hooks.add(target, fn, kind)
        in_force[0] = True
        seen = list(calls)
        while any(now < then + 3 for now, then in zip(calls, seen, strict=True)):
            time.sleep(0)
        in_force[0] = False
        hooks.remove(hook)
    stop.set()
    for caller in callers:
        caller.join()
    assert wrong == []
    assert use() == 3


def test_hooks_and_registrations_together():
    """Eight threads change hooks and backends of a runtime, while eight others call, resolve and take
    fingerprints."""
    runtime, name = Runtime(), "hook_together"
    module = sys.modules[name] = types.ModuleType(name)
    exec("def f(a): return a", vars(module))
    code = module.f.__code__
    runtime.discover()
    stop, ended, wrong = threading.Event(), [], []

    def register(runtime, backend):
        with runtime.transaction() as registry:
            registry.register(backend, "acme:Acme", op="gated_delta", priority=-1)

    def change(i):
        try:
            for turn in range(6):
                register(runtime, f"b{i}-{turn}")
                hook = runtime.hooks.add(f"{name}.f", lambda result, a: result + 1, "after", source=f"s{i}")
                if hook not in runtime.hooks.list(module.f):
                    wrong.append(hook)
                runtime.hooks.remove(hook)
        finally:
            ended.append(i)
            if len(ended) == 8:
                stop.set()

    def read():
        while not stop.is_set():
            if not 0 <= module.f(0) <= 8:
                wrong.append("chain")
            runtime.resolve("gated_delta", "prefill", device="cpu", dtype="float32")
            runtime.fingerprint()
            runtime.hooks.explain(module.f)

    together(*(functools.partial(change, i) for i in range(8)), *[read] * 8)
    del sys.modules[name]
    assert wrong == []
    assert module.f.__code__ is code
    alone = Runtime()
    alone.discover()
    for i in range(8):
        for turn in range(6):
            register(alone, f"b{i}-{turn}")
    assert runtime.fingerprint() == alone.fingerprint()


def test_a_finalizer_may_change_hooks_while_a_target_is_looked_up():
    """In programs, the garbage collector may run an engine's finalizer between any two instructions."""
    module = sys.modules["looked_up"] = types.ModuleType("looked_up")
    exec(
        "class Base:\n    def inherited(self): pass\nclass Target(Base):\n    def own(self): pass",
        vars(module),
    )
    hooks, added, changes, changing = Hooks(), [], 0, False

    def finalize():
        nonlocal changes, changing
        changing = True
        if added:
            hooks.remove(added.pop())
        else:
            added.append(hooks.add("looked_up.Target.inherited", lambda *_: None))
        changes += 1
        changing = False

    def trace(frame, event, arg):
        if changing or not frame.f_code.co_filename.endswith(("namespaces.py", "attributes.py")):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and next(instructions) == 0:
            finalize()
        return trace

    before = sys.gettrace()
    try:
        for period in (7, 31, 101):
            instructions = itertools.cycle(range(period))
            for _ in range(10):
                sys.settrace(trace)
                site = resolve("looked_up.Target.own")
                sys.settrace(before)
                assert site.function is module.Target.own
    finally:
        sys.settrace(before)
        hooks.clear()
        del sys.modules["looked_up"]
    assert changes > 30


def test_handlers_of_the_log_run_without_the_lock(hooks, module):
    """A log handler runs without the lock on hooks, so it may wait for another thread that changes hooks."""
    told, waiting = [], []

    class Handler(logging.Handler):
        def emit(self, record):
            told.append(record.getMessage())
            other = threading.Thread(target=lambda: Hooks().clear(), daemon=True)
            other.start()
            other.join(60)
            waiting.append(other.is_alive())

    module.adder = functools.partial(max, 1)
    hooks.add("hook_targets.adder", lambda *args, **kwargs: None)
    held = (module.adder,)
    hooks.add(module.f, lambda a, b: None)
    module.f.__code__ = (lambda a, b=2: "theirs").__code__
    handler = Handler()
    log = logging.getLogger("switchrail")
    log.addHandler(handler)
    try:
        hooks.clear()
    finally:
        log.removeHandler(handler)
    assert held[0](0) == 1
    assert [any(part in line for line in told) for part in ("keeps its code", "keeps the stand-in")] == [
        True
    ] * 2
    assert not any(waiting)
