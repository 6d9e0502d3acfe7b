import sys
import threading

import pytest
from switchrail.hooks import Hooks


@pytest.fixture(autouse=True)
def many_switches():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


def test_each_call_sees_one_whole_chain(hooks, module):
    """A call that saw half of a chain would be off by a thousand."""
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
    code, start = module.f.__code__, threading.Barrier(8)
    registries = [Hooks() for _ in range(8)]

    def change(registry):
        start.wait()
        kept = [registry.add(module.f, lambda a, b, i=i: None) for i in range(8)]
        for hook in kept[::2]:
            registry.remove(hook)
        registry.add(module.f, lambda result, a, b: result + 1, "after")

    threads = [threading.Thread(target=change, args=(registry,)) for registry in registries]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(registry.list()) for registry in registries] == [5] * 8
    assert module.f(1) == 11
    for registry in registries:
        registry.clear()
    assert module.f.__code__ is code


def test_every_kind_of_place_from_many_threads(hooks, module):
    class Adder:
        def __call__(self, x):
            return x + 1

    class Other:
        def m(self, a, b=2):
            return a - b

        def n(self):
            return self.m(1)

    module.adder, start, wrong = Adder(), threading.Barrier(8), []
    original = module.adder

    def change(number):
        registry = Hooks()
        start.wait()
        for _ in range(2):
            registry.add("hook_targets.D.m", lambda result, *args: None, "after")
            registry.add("hook_targets.adder", lambda result, x: None, "after")
            registry.add("hook_targets.C", Other, "replace", source=f"{number}")
            if module.C().m(1) != -1 or module.D().m(1) != -1 or module.adder(1) != 2:
                wrong.append(number)
            registry.clear()

    threads = [threading.Thread(target=change, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert module.adder is original
    assert "m" not in vars(module.D)
    assert (module.C().m(1), module.D().m(1)) == (3, 3)
