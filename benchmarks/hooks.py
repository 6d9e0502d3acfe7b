"""Cost of a call through hooks, compared with a chain of closures like that of SGLang's hook registry.

Like that registry, the closure chain has one generic wrapper per hook. On CPython 3.11, to check that both
cost about the same, the chain's time relative to a plain call is compared with recorded times of the
registry. pluggy calls 1 or 5 implementations, of which only the last returns a result. wrapt, if installed,
wraps a function 1 or 5 times. All run in turn in the same process, and each must return the right result
before it is timed. The cost of adding a hook is measured with few and with many modules loaded.

    python benchmarks/hooks.py [--json]
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import sys
import time
import timeit
import types

import pluggy
from switchrail.hooks import Hooks

try:
    import wrapt
except ImportError:
    wrapt = None

CALLS, ROUNDS = 2_000, 301

REGISTRY = {"1 before": 150 / 18, "1 after": 200 / 18, "5 before": 670 / 18, "5 alternating": 830 / 18}
"""Times of SGLang 0.5.23's registry on CPython 3.11, relative to a plain call's 18 ns."""

TOLERANCE = 0.2
"""The largest allowed difference between the closure chain's relative times and `REGISTRY`, as a fraction."""

TARGETS = {"1 before": 0.7, "1 after": 0.7, "1 around": 0.7, "1 replace": 0.7, "5 mixed": 0.5}
"""The largest allowed time of a hooked call, relative to the closure chain's."""


def wrapped(kind, fn, inner):
    """One link of the closure chain: a wrapper around `inner` that also calls the hook `fn`."""

    def before(*args, **kwargs):
        changed = fn(*args, **kwargs)
        if changed is not None:
            args, kwargs = changed
        return inner(*args, **kwargs)

    def after(*args, **kwargs):
        result = inner(*args, **kwargs)
        changed = fn(result, *args, **kwargs)
        return result if changed is None else changed

    def around(*args, **kwargs):
        return fn(inner, *args, **kwargs)

    def replace(*args, **kwargs):
        return fn(*args, **kwargs)

    link = {"before": before, "after": after, "around": around, "replace": replace}[kind]
    return functools.wraps(inner)(link)


def before(*args, **kwargs):
    return None


def after(result, *args, **kwargs):
    return None


def around(original, *args, **kwargs):
    return original(*args, **kwargs)


def replace(*args, **kwargs):
    return args[0]


HOOK = {"before": before, "after": after, "around": around, "replace": replace}

CHAINS = {
    "1 before": ["before"],
    "1 after": ["after"],
    "1 around": ["around"],
    "1 replace": ["replace"],
    "5 before": ["before"] * 5,
    "5 alternating": ["before", "after"] * 2 + ["before"],
    "5 mixed": ["before", "around", "after", "around", "before"],
}


def pluggy_call(count):
    """A call of pluggy's hook with `count` implementations, the last of which returns the result."""
    specification, implementation = pluggy.HookspecMarker("bench"), pluggy.HookimplMarker("bench")

    class Specification:
        @specification(firstresult=True)
        def call(self, x):
            """The hook."""

    class Answering:
        @implementation(trylast=True)
        def call(self, x):
            return x

    class Passing:
        @implementation
        def call(self, x):
            return None

    manager = pluggy.PluginManager("bench")
    manager.add_hookspecs(Specification)
    manager.register(Answering())
    for _ in range(count - 1):
        manager.register(Passing())
    hook = manager.hook.call
    return lambda x: hook(x=x)


def wrapt_call(count):
    """A function wrapped `count` times by wrapt."""

    def call(x):
        return x

    for _ in range(count):
        call = wrapt.decorator(lambda wrapped, instance, args, kwargs: wrapped(*args, **kwargs))(call)
    return call


def copies(kinds):
    """A distinct function for each hook, because a function can hook the same target only once."""
    for kind in kinds:
        fn = HOOK[kind]
        yield kind, type(fn)(fn.__code__, fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__)


def measured(calls):
    """Median nanoseconds of CPU time of a call of each function; the functions alternate."""
    times = {name: [] for name in calls}
    timers = {
        name: timeit.Timer("f(1)", timer=time.thread_time, globals={"f": f}) for name, f in calls.items()
    }
    for _ in range(ROUNDS):
        for name, timer in timers.items():
            times[name].append(timer.timeit(CALLS) / CALLS * 1e9)
    return {name: statistics.median(values) for name, values in times.items()}


def install_cost():
    """Median microseconds for adding a hook to a function and removing it, by number of loaded modules."""

    def target(x):
        return x

    hooks, costs = Hooks(), {}

    def once():
        hooks.remove(hooks.add(target, before))

    for more in (0, 5_000):
        for i in range(more):
            module = sys.modules[f"benchmark_module_{i}"] = types.ModuleType(f"benchmark_module_{i}")
            module.held = [target]
        times = timeit.repeat(once, timer=time.thread_time, number=20, repeat=51)
        costs[str(len(sys.modules))] = statistics.median(times) / 20 * 1e6
    return costs


def others():
    """Median nanoseconds of a call through other libraries, by library and number of functions."""
    calls = {f"pluggy, {count}": pluggy_call(count) for count in (1, 5)}
    if wrapt is not None:
        calls |= {f"wrapt, {count}": wrapt_call(count) for count in (1, 5)}
    assert all(call(1) == 1 for call in calls.values())
    return measured(calls)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = {}
    for label, kinds in CHAINS.items():

        def plain(x):
            return x

        def target(x):
            return x

        hooks, chain = Hooks(), plain
        for kind, fn in copies(kinds):
            hooks.add(target, fn, kind)
            chain = wrapped(kind, fn, chain)
        assert target(1) == chain(1) == plain(1) == 1
        assert len(hooks.list(target)) == len(kinds)
        row = measured({"plain": plain, "closures": chain, "hooks": target})
        hooks.clear()
        row["unhooked"] = measured({"unhooked": target})["unhooked"]
        row["ratio"] = row["hooks"] / row["closures"]
        if label in REGISTRY and sys.version_info[:2] == (3, 11):
            row["registry"] = REGISTRY[label]
            row["equivalent"] = row["closures"] / row["plain"] / REGISTRY[label]
        rows[label] = row
    libraries, costs = others(), install_cost()
    few, many = costs.values()
    misses = [
        f"{label}: closures/plain is {row['equivalent']:.2f} times that of the registry, "
        f"not within {TOLERANCE} of 1"
        for label, row in rows.items()
        if abs(row.get("equivalent", 1) - 1) > TOLERANCE
    ]
    misses += [
        f"{label}: hooks take {rows[label]['ratio']:.2f} of the closures' time, more than {most}"
        for label, most in TARGETS.items()
        if rows[label]["ratio"] > most
    ]
    if many > 1.5 * few:
        misses.append(f"adding a hook costs {many / few:.1f} times as much with many modules, more than 1.5")
    if arguments.json:
        document = {"python": sys.version.split()[0], "unit": "ns", "chains": rows, "libraries": libraries}
        print(json.dumps({**document, "install_us_by_modules": costs, "misses": misses}))
        return
    print(f"CPython {sys.version.split()[0]}, ns of CPU time a call, median of {ROUNDS}")
    columns = ("plain", "unhooked", "closures", "hooks", "hooks/closures", "closures/plain", "registry's")
    print(f"{'chain':<14}" + "".join(f"{column:>16}" for column in columns))
    for label, row in rows.items():
        times = "".join(f"{row[column]:>16.0f}" for column in columns[:4])
        relative = row["closures"] / row["plain"]
        registry = f"{row['registry']:.1f}" if "registry" in row else ""
        print(f"{label:<14}{times}{row['ratio']:>16.2f}{relative:>16.1f}{registry:>16}")
    for label, cost in libraries.items():
        print(f"{label}: {cost:.0f} ns")
    for modules, cost in costs.items():
        print(f"adding and removing a hook, {modules} modules loaded: {cost:.0f} us")
    for miss in misses:
        print(f"missed: {miss}")


if __name__ == "__main__":
    main()
