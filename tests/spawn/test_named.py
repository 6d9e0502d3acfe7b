"""Objects that another process can't find by name are refused in the parent, each with its reason."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from switchrail import Runtime, RuntimeState
from switchrail.errors import UnpicklableError

SOURCE = """
from dataclasses import dataclass
from switchrail.ops import ShortConvBackend

class Mine(ShortConvBackend):
    def run(self, *arguments): pass

@dataclass
class Settings:
    scale: float = 1.0

def hook(*arguments, **options): return None

def target(value): return value

class Called:
    def __call__(self, *arguments, **options): return None
    def method(self, *arguments, **options): return None

def local():
    class Inner(Mine): pass
    @dataclass
    class Options:
        scale: float = 1.0
    def inner(value): return None
    return Inner, Options, inner
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module that every process finds."""
    (tmp_path / "userland_found.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    import userland_found  # type: ignore[import-not-found]

    return userland_found


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Make a module without a file."""

    def make(name: str) -> Any:
        made = types.ModuleType(name)
        monkeypatch.setitem(sys.modules, name, made)
        exec(SOURCE, vars(made))
        return made

    return make


def backend(runtime: Runtime, target: Any, name: str = "mine", **options: Any) -> None:
    runtime.register(name, target, op="short_conv", phases=["decode"], **options)


def refused(runtime: Runtime) -> tuple[str, ...]:
    with pytest.raises(UnpicklableError) as caught:
        RuntimeState.of(runtime)
    assert isinstance(caught.value, TypeError)
    problems: tuple[str, ...] = caught.value.fields["problems"]
    assert all(problem in str(caught.value) for problem in problems)
    return problems


def test_objects_that_can_be_found_are_not_refused(runtime: Runtime, module: Any) -> None:
    backend(runtime, module.Mine, config=module.Settings)
    backend(runtime, "nowhere.to:BeFound", "path")
    runtime.hooks.add(module.target, module.hook)
    runtime.hooks.add("userland_found.Called.method", module.hook, "replace")
    state = RuntimeState.of(runtime)
    assert [each.is_imported for each in state.backends if each.registration.name in ("mine", "path")] == [
        True,
        False,
    ]
    assert [hook.fn for hook in state.hooks] == ["userland_found:hook"] * 2


def test_objects_of_main_are_refused(runtime: Runtime, make: Callable[[str], Any]) -> None:
    main = make("__main__")
    backend(runtime, main.Mine)
    backend(runtime, "__main__:Else", "path")
    runtime.hooks.add("textwrap.dedent", main.hook)
    runtime.hooks.add(main.target, main.hook)
    problems = refused(runtime)
    expected = (
        "short_conv backend 'mine' (__main__:Mine): it is in __main__",
        "short_conv backend 'path' (__main__:Else): it is in __main__",
        "before hook __main__.hook of 'user' on textwrap.dedent>: it is in __main__",
        "before hook __main__.hook of 'user' on __main__.target>: it is in __main__",
        "the target of <before hook __main__.hook of 'user' on __main__.target>: it is in __main__",
    )
    assert len(problems) == len(expected)
    assert all(text in problem for text, problem in zip(expected, problems, strict=True)), problems


def test_local_objects_are_refused(runtime: Runtime, module: Any) -> None:
    cls, options, function = module.local()
    backend(runtime, cls, config=options)
    runtime.hooks.add("textwrap.dedent", function)
    runtime.hooks.add("textwrap.indent", lambda *args: None)
    problems = refused(runtime)
    assert len(problems) == 4
    assert "'mine' (userland_found:local.<locals>.Inner): it is local to local" in problems[0]
    assert problems[1].startswith("configuration type <class 'userland_found.local.<locals>.Options'> of")
    assert "inner of 'user' on textwrap.dedent>: it is local to local" in problems[2]
    assert "on textwrap.indent>: it is a lambda" in problems[3]


def test_objects_whose_path_leads_elsewhere_are_refused(runtime: Runtime, module: Any) -> None:
    mine, hook = module.Mine, module.hook
    backend(runtime, mine)
    runtime.hooks.add("textwrap.dedent", hook)
    RuntimeState.of(runtime)
    module.Mine = type("Mine", (mine,), {})
    del module.hook
    problems = refused(runtime)
    assert len(problems) == 2
    assert f"its path userland_found:Mine leads to another object, {module.Mine!r}" in problems[0]
    assert "its path userland_found:hook leads to nothing" in problems[1]


def test_objects_without_a_name_are_refused(runtime: Runtime, module: Any) -> None:
    for target, fn in {
        "textwrap.dedent": partial(module.hook),
        "textwrap.indent": module.Called(),
        "shutil.which": module.Called().method,
    }.items():
        runtime.hooks.add(target, fn)
    problems = refused(runtime)
    assert ["it has no name" in problem or "leads to another object" in problem for problem in problems] == [
        True
    ] * 3


def test_a_hook_in_the_name_of_a_plugin_that_is_not_loaded(runtime: Runtime, module: Any) -> None:
    runtime.hooks.add("textwrap.dedent", lambda text: None, source="acme", plugin="acme")
    [problem] = refused(runtime)
    assert "it is a lambda" in problem
    runtime.hooks.clear()
    runtime.hooks.add("textwrap.dedent", module.hook, source="acme", plugin="acme")
    assert RuntimeState.of(runtime).hooks[0].fn == "userland_found:hook"


def test_modules_that_only_this_process_has(
    runtime: Runtime, module: Any, make: Callable[[str], Any], tmp_path: Path
) -> None:
    made = make("userland_made")
    backend(runtime, made.Mine)
    backend(runtime, "userland_made:Mine", "path")
    runtime.hooks.add("textwrap.dedent", module.hook)
    (tmp_path / "userland_found.py").unlink()
    problems = refused(runtime)
    assert len(problems) == 3
    assert all("can't be imported again" in problem for problem in problems)


def test_a_target_that_no_path_leads_to(runtime: Runtime, module: Any) -> None:
    _, _, function = module.local()
    runtime.hooks.add(function, module.hook)
    [problem] = refused(runtime)
    assert "the target of" in problem
    assert "no dotted path leads to it" in problem


def test_objects_of_plugins_need_no_name(runtime: Runtime, install: Callable[..., Path]) -> None:
    install(
        "acme-local",
        "def register(registry):\n"
        "    def hook(text): return None\n"
        "    registry.hook('textwrap.dedent', hook)\n"
        "    registry.hook('textwrap.indent', lambda *args: None)\n",
    )
    runtime.load(["acme-local"], strict=True)
    state = RuntimeState.of(runtime)
    runtime.clear("kda", "none")
    runtime.register("else", "a:B", op="kda")
    assert state.restore().fingerprint() == state.fingerprint
