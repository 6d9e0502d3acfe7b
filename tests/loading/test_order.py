"""Plugins are imported in the order of their distributions' names, and then run in the declared order.

The declared order follows constraints, then priorities, then names.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest
import switchrail
from hypothesis import given, settings
from hypothesis import strategies as st
from switchrail import Runtime
from switchrail.errors import ArgumentError
from switchrail.plugins import Plugin
from switchrail.plugins.declaration import Declaration, declaration_of, in_order

from tests.loading.conftest import Install


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    log: list[str] = []
    monkeypatch.setattr(sys, "acme_log", log, raising=False)
    return log


@pytest.fixture
def write(install: Install, log: list[str]) -> Callable[..., None]:
    """Returns a function that installs a plugin, which records its import and its run."""

    def write(distribution: str, declared: str = "", **options: Any) -> None:
        name = options.get("plugin", distribution)
        install(
            distribution,
            f"import sys, switchrail\nsys.acme_log.append('import {name}')\n"
            + (f"@switchrail.plugin({declared})\n" if declared else "")
            + f"def register(registry): sys.acme_log.append({name!r})\n",
            **options,
        )

    return write


def ran(log: list[str]) -> list[str]:
    return [line for line in log if not line.startswith("import ")]


def test_plugins_without_declarations_run_by_distribution_name(
    runtime: Runtime, write: Callable[..., None], log: list[str]
) -> None:
    names = ["acme-c", "acme-a", "Acme-B", "acme_d"]
    for name in names:
        write(name)
    runtime.load()
    order = ["acme-a", "Acme-B", "acme-c", "acme_d"]
    assert log == [*(f"import {name}" for name in order), *order]
    assert [plugin.name for plugin in runtime._loader.in_order()][:4] == order


def test_plugins_run_in_the_declared_order(
    runtime: Runtime, write: Callable[..., None], log: list[str]
) -> None:
    write("acme-a", "after=['acme-c', 'not-installed']")
    write("acme-b", "priority=-1")
    write("acme-c", "priority=-5")
    write("acme-d", "priority=3")
    write("acme-e", "before=['ACME_D']", plugin="e")
    write("acme-f", "before=['acme-e:e']")
    runtime.load(strict=True)
    assert ran(log) == ["acme-f", "e", "acme-d", "acme-b", "acme-c", "acme-a"]
    assert [line for line in log if line.startswith("import ")] == [
        f"import {name}" for name in ("acme-a", "acme-b", "acme-c", "acme-d", "e", "acme-f")
    ]


def test_a_name_of_two_distributions_means_both(
    runtime: Runtime, write: Callable[..., None], log: list[str]
) -> None:
    write("acme-a", "after=['twin']")
    write("acme-b", plugin="twin")
    write("acme-c", plugin="twin")
    runtime.load(strict=True)
    assert ran(log) == ["twin", "twin", "acme-a"]


def test_a_later_plugin_sees_earlier_registrations(
    runtime: Runtime, install: Install, log: list[str]
) -> None:
    install(
        "acme-first",
        "import switchrail\nclass Kernel:\n    def run(self): return 1\n"
        "@switchrail.plugin(before=['acme-also'])\n"
        "def register(registry): registry.register('shared', 'a:A', op='kda', priority=-1)",
    )
    install(
        "acme-also",
        "import switchrail, sys\n"
        "def register(registry):\n"
        "    owner = switchrail.current_runtime().backend('kda', 'shared').origin\n"
        "    sys.acme_log.append(owner)\n"
        "    registry.register('shared', 'b:B', op='kda', override=True)\n"
        "    registry.hook('acme_first.Kernel.run', lambda result, self: result + 1, 'after')\n",
    )
    runtime.load(strict=True)
    assert log == ['plugin "acme-first" of acme-first 1.0']
    assert runtime.backend("kda", "shared").path == "b:B"
    assert sys.modules["acme_first"].Kernel().run() == 2


def test_a_declaration_stays_on_the_function() -> None:
    @switchrail.plugin(priority=3, before=("a",), after=["b"])
    def register(registry: switchrail.Registry) -> None: ...

    assert declaration_of(register) == Declaration(3, ("a",), ("b",))
    assert declaration_of(len) == Declaration()


@pytest.mark.parametrize(
    "options", [{"priority": 1.5}, {"priority": True}, {"priority": 2**31}, {"before": "a"}, {"after": [1]}]
)
def test_invalid_declarations_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=rf"{next(iter(options))}(\[0\])? (is|has) .*; valid"):
        switchrail.plugin(**options)


def record(name: str) -> Plugin:
    origin = {"distribution": f"acme-{name}", "version": None, "path": "/"}
    fields = {"name": name, "group": "switchrail.plugins", "target": "a:b", "extras": [], "origin": origin}
    return Plugin.from_json(json.dumps({**fields, "state": "discovered"}))


@settings(max_examples=100)
@given(st.permutations(range(7)), st.data())
def test_the_order_does_not_depend_on_the_order_of_discovery(
    shuffled: list[int], data: st.DataObject
) -> None:
    """Plugins run in the same order, independently of the order of discovery.

    All constraints point from lower to higher numbers, so that an order exists.
    """
    plugins = [record(f"p{number}") for number in range(7)]
    declared = []
    for number in range(7):
        later = data.draw(st.sets(st.sampled_from(range(number + 1, 7)))) if number < 6 else set()
        earlier = data.draw(st.sets(st.sampled_from(range(number)))) if number else set()
        before, after = (f"p{other}" for other in later), (f"acme_p{other}" for other in earlier)
        declared.append(Declaration(data.draw(st.integers(-2, 2)), tuple(before), tuple(after)))
    order = in_order(plugins, declared)
    again = in_order([plugins[i] for i in shuffled], [declared[i] for i in shuffled])
    assert [shuffled[i] for i in again] == order
    place = {number: order.index(number) for number in range(7)}
    for number, declaration in enumerate(declared):
        assert all(place[number] < place[int(name[1:])] for name in declaration.before)
        assert all(place[int(name[6:])] < place[number] for name in declaration.after)
    left = set(range(7))
    for number in order:
        waiting = {
            other
            for other in left
            for n in left
            if f"p{other}" in declared[n].before or f"acme_p{n}" in declared[other].after
        }
        assert number == min(left - waiting, key=lambda other: (-declared[other].priority, other))
        left.remove(number)
