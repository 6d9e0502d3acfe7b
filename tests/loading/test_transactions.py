"""A plugin's registrations and hooks become active together or not at all; later ones are refused."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import switchrail
from switchrail import Runtime
from switchrail.errors import ConflictError, HookError, OrderError, RegistrationError, TransactionClosedError

from tests.loading.conftest import Find, Install


@pytest.fixture
def target(install: Install) -> Any:
    import acme_target

    return acme_target


def louder(result: str, name: str) -> str:
    return result.upper()


def test_hooks_come_with_the_plugin(runtime: Runtime, install: Install, target: Any) -> None:
    install(
        "acme-hooks",
        "import acme_target, switchrail\n"
        "class Acme: pass\n"
        "def register(registry):\n"
        "    registry.register('acme', 'acme_hooks:Acme', op='kda')\n"
        "    @registry.hook('acme_target.greet', kind='after', priority=2, before=['user'])\n"
        "    def after(result, name): return result + '!'\n"
        "    hook = registry.hook(acme_target.greet, lambda name: (('you',), {}))\n"
        "    assert (hook.source, hook.plugin, hook.version) == ('acme-hooks', 'acme', '2.1')\n"
        "    assert switchrail.current_runtime().hooks.list() == ()\n"
        "    assert acme_target.greet() == 'hello world'\n",
        version="2.1",
        plugin="acme",
    )
    runtime.load(strict=True)
    assert target.greet() == "hello you!"
    hooks = runtime.hooks.list("acme_target.greet")
    assert [(hook.kind, hook.priority, hook.before) for hook in hooks] == [
        ("after", 2, ("user",)),
        ("before", 0, ()),
    ]
    assert {(hook.source, hook.plugin, hook.version) for hook in hooks} == {("acme-hooks", "acme", "2.1")}


def test_a_hook_belongs_to_the_plugin_however_it_was_added(
    runtime: Runtime, install: Install, target: Any, find: Find
) -> None:
    install(
        "acme-doors",
        "import switchrail\n"
        "@switchrail.hook('acme_target.greet', kind='after')\n"
        "def at_import(result, name): return result + ' 1'\n"
        "def register(registry):\n"
        "    runtime = switchrail.current_runtime()\n"
        "    runtime.hook('acme_target.greet', lambda result, name: result + ' 2', 'after')\n"
        "    kept = runtime.hooks.add('acme_target.greet', lambda result, name: result + ' 3', 'after')\n"
        "    gone = runtime.hooks.add('acme_target.greet', lambda result, name: result + ' 4', 'after')\n"
        "    runtime.hooks.remove(gone)\n"
        "    with runtime.transaction() as inner:\n"
        "        inner.hook('acme_target.greet', lambda result, name: result + ' 5', 'after')\n"
        "    named = runtime.hooks.add('acme_target.greet', lambda n: None, source='elsewhere')\n"
        "    assert named.source == 'elsewhere'\n"
        "    assert runtime.hooks.list() == ()\n",
    )
    runtime.load(strict=True)
    assert target.greet() == "hello world 5 3 2 1"
    sources = [hook.source for hook in runtime.hooks.list()]
    assert sorted(sources) == ["acme-doors"] * 4 + ["elsewhere"]


def test_a_plugin_can_clear_all_that_it_has_staged(
    runtime: Runtime, install: Install, target: Any, find: Find
) -> None:
    install(
        "acme-shy",
        "import switchrail\n"
        "def register(registry):\n"
        "    registry.register('shy', 'a:S', op='kda')\n"
        "    registry.register('torch', 'a:S', op='gated_delta', override=True)\n"
        "    registry.hook('acme_target.greet', lambda name: (('x',), {}))\n"
        "    registry.clear('kda', 'shy')\n"
        "    registry.clear('gated_delta', 'torch')\n"
        "    switchrail.current_runtime().hooks.clear()\n",
    )
    snapshot = runtime._core.snapshot()
    runtime.load(["acme-shy"], strict=True)
    assert find("acme-shy").state == "loaded"
    assert runtime._core.snapshot().backends == snapshot.backends
    assert runtime.hooks.list() == ()


def test_a_plugin_may_handle_a_refusal(runtime: Runtime, install: Install, target: Any) -> None:
    install(
        "acme-tries",
        "import switchrail\n"
        "from switchrail.errors import HookError, RegistrationError\n"
        "refused = []\n"
        "def register(registry):\n"
        "    runtime = switchrail.current_runtime()\n"
        "    for attempt in (lambda: registry.clear('kda', 'users'), runtime.hooks.clear,\n"
        "                    lambda: registry.register('torch', 'a:B', op='kda')):\n"
        "        try: attempt()\n"
        "        except (HookError, RegistrationError) as error: refused.append(error)\n"
        "    registry.register('tries', 'a:B', op='kda')\n"
        "    registry.register('users', 'a:B', op='kda', override=True)\n",
    )
    runtime.register("users", "u:U", op="kda")
    hook = runtime.hook("acme_target.greet", louder, "after")
    runtime.load(strict=True)
    assert [type(error).__name__ for error in sys.modules["acme_tries"].refused] == [
        "RegistrationError",
        "HookError",
        "NameTakenError",
    ]
    assert runtime.backend("kda", "tries").path == runtime.backend("kda", "users").path == "a:B"
    assert runtime.hooks.list() == (hook,)
    runtime.clear("kda", "users")
    assert "users" not in {backend.name for backend in runtime.backends("kda")}


def test_a_conflict_at_the_commit_takes_the_hooks_out(
    runtime: Runtime, install: Install, target: Any, find: Find
) -> None:
    install(
        "acme-late",
        "import switchrail, threading\n"
        "def register(registry):\n"
        "    registry.register('contested', 'a:B', op='kda')\n"
        "    registry.hook('acme_target.greet', lambda name: (('x',), {}))\n"
        "    def user(): switchrail.register('contested', 'u:U', op='kda')\n"
        "    thread = threading.Thread(target=user)\n"
        "    thread.start()\n"
        "    thread.join()\n",
    )
    runtime.load()
    assert find("acme-late").state == "failed"
    assert 'ConflictError: nothing was committed: kda backend "contested"' in (find("acme-late").reason or "")
    assert runtime.backend("kda", "contested").path == "u:U"
    assert runtime.hooks.list() == ()
    assert target.greet() == "hello world"


def test_hooks_that_fail_at_the_commit_keep_the_registrations_out(runtime: Runtime, target: Any) -> None:
    snapshot = runtime._core.snapshot()

    def commit(**constraints: Any) -> None:
        with runtime.transaction() as registry:
            registry.register("never", "a:N", op="kda")
            registry.hook("acme_target.greet", louder, "after", **constraints)
            registry.hook("acme_target.greet", lambda name: None)

    with pytest.raises(OrderError):
        commit(before=["user"], after=["user"])
    assert runtime._core.snapshot() == snapshot
    assert runtime.hooks.list() == ()
    runtime.hook("acme_target.greet", louder, "after")
    with pytest.raises(HookError, match="the target already has this hook"):
        commit()
    assert runtime._core.snapshot() == snapshot
    assert len(runtime.hooks.list()) == 1


def test_the_users_transaction_hooks_too(runtime: Runtime, target: Any) -> None:
    with runtime.transaction() as registry:
        hook = registry.hook("acme_target.greet", louder, "after")
        registry.register("mine", "a:M", op="kda")
        assert runtime.hooks.list() == ()
    assert runtime.hooks.list() == (hook,)
    assert (hook.source, hook.plugin, hook.version) == ("user", None, None)
    assert target.greet() == "HELLO WORLD"
    with pytest.raises(TransactionClosedError, match="the transaction of the user is closed"):
        registry.hook("acme_target.greet", lambda name: None)

    def fail(end: Callable[[], Any]) -> None:
        with runtime.transaction() as registry:
            registry.register("other", "a:O", op="kda")
            registry.hook("acme_target.greet", lambda name: (("x",), {}))
            end()

    with pytest.raises(ZeroDivisionError):
        fail(lambda: 1 / 0)
    with pytest.raises(ConflictError):
        fail(lambda: runtime.register("other", "b:O", op="kda"))
    assert runtime.hooks.list() == (hook,)
    assert runtime.backend("kda", "other").path == "b:O"


def test_one_hook_of_the_default_runtime(runtime: Runtime, target: Any) -> None:
    hook = switchrail.hook("acme_target.greet", louder, "after")

    @switchrail.hook("acme_target.greet", kind="before", priority=1)
    def quieter(name: str) -> tuple[tuple[str], dict[str, Any]]:
        return (name + "?",), {}

    assert target.greet() == "HELLO WORLD?"
    assert hook in runtime.hooks.list()
    assert quieter("x") == (("x?",), {})
    with pytest.raises(HookError, match="the target already has this hook"):
        runtime.hook("acme_target.greet", louder, "after")


def test_a_registry_that_a_plugin_keeps_is_closed(runtime: Runtime, install: Install, target: Any) -> None:
    install("acme-late", "kept = []\nregister = kept.append", plugin="late")
    runtime.load(strict=True)
    [registry] = sys.modules["acme_late"].kept
    snapshot = runtime._core.snapshot()
    for attempt in (
        lambda: registry.register("late", "acme:Late", op="gated_delta"),
        lambda: registry.clear("gated_delta", "torch"),
        lambda: registry.hook("acme_target.greet", louder, "after"),
        lambda: registry.hook("acme_target.greet", kind="after")(louder),
    ):
        with pytest.raises(
            TransactionClosedError, match=r"the transaction of plugin acme-late:late is closed, .*; valid: "
        ):
            attempt()
    assert runtime._core.snapshot() == snapshot
    assert runtime.hooks.list() == ()


def test_a_thread_of_the_plugin_belongs_to_it_until_it_ends(
    runtime: Runtime, install: Install, target: Any, find: Find
) -> None:
    install(
        "acme-threads",
        "import threading\n"
        "go, errors = threading.Event(), []\n"
        "def work(registry, number):\n"
        "    registry.register(f't{number}', 'a:T', op='kda')\n"
        "    registry.hook('acme_target.greet', lambda result, name: result + str(number), 'after',"
        " priority=-number)\n"
        "def late(registry):\n"
        "    go.wait(60)\n"
        "    for attempt in (lambda: registry.register('late', 'a:L', op='kda'),\n"
        "                    lambda: registry.hook('acme_target.greet', lambda name: None)):\n"
        "        try: attempt()\n"
        "        except Exception as error: errors.append(error)\n"
        "def register(registry):\n"
        "    threads = [threading.Thread(target=work, args=(registry, n)) for n in range(8)]\n"
        "    for thread in threads: thread.start()\n"
        "    for thread in threads: thread.join()\n"
        "    global left\n"
        "    left = threading.Thread(target=late, args=(registry,))\n"
        "    left.start()\n",
    )
    runtime.load(strict=True)
    module = sys.modules["acme_threads"]
    origins = {runtime.backend("kda", f"t{number}").origin for number in range(8)}
    assert origins == {'plugin "acme-threads" of acme-threads 1.0'}
    assert target.greet() == "hello world76543210"
    assert {hook.plugin for hook in runtime.hooks.list()} == {"acme-threads"}
    module.go.set()
    module.left.join()
    assert [type(error) for error in module.errors] == [TransactionClosedError] * 2
    assert "plugin acme-threads:acme-threads is closed" in str(module.errors[0])
    assert target.greet() == "hello world76543210"


def test_a_plugin_cannot_withdraw_registrations_of_others(runtime: Runtime) -> None:
    runtime.register("users", "u:U", op="kda")
    origin = {"kind": "plugin", "distribution": "acme", "version": None, "plugin": "acme"}
    staging = switchrail.staging.Staging(runtime._core, runtime.hooks, runtime._functions, origin)
    [registration] = runtime._core.stack("kda", "users")
    with pytest.raises(RegistrationError, match='"users" is registered by the user'):
        staging.registrations.withdraw(registration)
    staging.close()
