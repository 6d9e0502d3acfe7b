"""Cost of a call through hooks, against a chain of closures as SGLang's hook registry builds it.

The closure chain is written here after what that registry does: one generic wrapper for each hook.
Both run in the same process on the same function, in turns. Every chain must give the right result first.
What it costs to add a hook is measured with few and with many modules loaded.

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

from switchrail.hooks import Hooks

CALLS, ROUNDS = 2_000, 301


def wrapped(kind, fn, inner):
    """One link of the closure chain."""
    if kind == "before":

        @functools.wraps(inner)
        def link(*args, **kwargs):
            changed = fn(*args, **kwargs)
            if changed is not None:
                args, kwargs = changed
            return inner(*args, **kwargs)

    elif kind == "after":

        @functools.wraps(inner)
        def link(*args, **kwargs):
            result = inner(*args, **kwargs)
            changed = fn(result, *args, **kwargs)
            return result if changed is None else changed

    elif kind == "around":

        @functools.wraps(inner)
        def link(*args, **kwargs):
            return fn(inner, *args, **kwargs)

    else:

        @functools.wraps(inner)
        def link(*args, **kwargs):
            return fn(*args, **kwargs)

    return link


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


def copies(kinds):
    """As many distinct functions as hooks: one target takes the same one only once."""
    for kind in kinds:
        fn = HOOK[kind]
        yield kind, type(fn)(fn.__code__, fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__)


def measured(calls):
    """Median nanoseconds of CPU time of a call of each function, taken in turns."""
    times = {name: [] for name in calls}
    timers = {
        name: timeit.Timer("f(1)", timer=time.thread_time, globals={"f": f}) for name, f in calls.items()
    }
    for _ in range(ROUNDS):
        for name, timer in timers.items():
            times[name].append(timer.timeit(CALLS) / CALLS * 1e9)
    return {name: statistics.median(values) for name, values in times.items()}


def install_cost():
    """Median microseconds of adding a hook to a function and taking it away, by the number of modules."""

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
        rows[label] = row
    costs = install_cost()
    if arguments.json:
        version = sys.version.split()[0]
        print(json.dumps({"python": version, "unit": "ns", "chains": rows, "install_us_by_modules": costs}))
        return
    print(f"CPython {sys.version.split()[0]}, ns of CPU time a call, median of {ROUNDS}")
    print(f"{'chain':<14}{'plain':>8}{'unhooked':>10}{'closures':>10}{'hooks':>8}{'hooks/closures':>16}")
    for label, row in rows.items():
        print(
            f"{label:<14}{row['plain']:>8.0f}{row['unhooked']:>10.0f}{row['closures']:>10.0f}"
            f"{row['hooks']:>8.0f}{row['ratio']:>16.2f}"
        )
    for modules, cost in costs.items():
        print(f"adding and removing a hook, {modules} modules loaded: {cost:.0f} us")


if __name__ == "__main__":
    main()
