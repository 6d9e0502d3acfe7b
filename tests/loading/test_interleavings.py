"""Two threads that use one transaction or one runtime, with a thread switch at one line after another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from switchrail import Runtime, forks
from switchrail.errors import TransactionClosedError
from switchrail.hooks import chain
from switchrail.registration import Registry
from switchrail.staging import Staging

from tests.interleaving import every_interleaving
from tests.loading.conftest import Install

ORIGIN = {"kind": "plugin", "distribution": "acme", "version": "1.0", "plugin": "acme"}
TARGET = "acme_target.greet"


def mark(text: str) -> Callable[..., str]:
    return lambda result, name: f"{result} {text}"


@pytest.mark.parametrize("other", ["stage", "commit", "close", "undo", "read", "unstage"])
def test_one_transaction(install: Install, other: str) -> None:
    """If a thread commits while another uses the same transaction, nothing is applied in part."""
    import acme_target

    def make() -> tuple[Any, Any, Any]:
        runtime = Runtime()
        staging = Staging(runtime._core, runtime.hooks, runtime._functions, ORIGIN)
        first = staging.hook(TARGET, mark("one"), "after")
        Registry(staging).register("acme-x", "a:A", op="kda", priority=-1)
        refused = []

        def use() -> None:
            work: dict[str, Callable[[], object]] = {
                "stage": lambda: staging.hook(TARGET, mark("two"), "after"),
                "commit": staging.commit,
                "close": staging.close,
                "undo": staging.undo,
                "read": lambda: (staging.staged(), staging.is_committed),
                "unstage": lambda: staging.unstage(first),
            }
            work[other]()

        def expecting(work: Callable[[], None]) -> Callable[[], None]:
            def run() -> None:
                try:
                    work()
                except TransactionClosedError as error:
                    refused.append(error)

            return run

        def check() -> None:
            try:
                words = acme_target.greet().split()[2:]
                names = [backend.name for backend in runtime.backends() if backend.name == "acme-x"]
                if other != "unstage":
                    assert ("one" in words, names) in [(True, ["acme-x"]), (False, [])]
                if other in ("stage", "commit", "read"):
                    assert staging.is_committed
                if not staging.is_committed:
                    assert words == names == []
                assert set(words) <= {"one", "two"}
                assert sorted(words) == sorted(set(words))
            finally:
                staging.close()
                runtime.hooks.clear()
            assert acme_target.greet() == "hello world"
            assert chain.added() == {}

        return expecting(staging.commit), expecting(use), check

    assert every_interleaving(make, ["staging.py", "registration.py"]) > 10


@pytest.mark.parametrize("other", ["load", "discover", "hook", "transaction", "fingerprint"])
def test_loading_while_another_thread_uses_the_runtime(install: Install, other: str) -> None:
    import acme_target

    install(
        "acme-late",
        "def after(result, name): return f'{result} late'\n"
        "def register(registry):\n"
        "    registry.register('acme-late', 'a:A', op='kda', priority=-1)\n"
        "    registry.hook('acme_target.greet', after, 'after')\n",
    )

    def make() -> tuple[Any, Any, Any]:
        runtime = Runtime()
        runtime.discover()

        def load() -> None:
            runtime.load(["acme-late"])
            assert "late" in acme_target.greet().split()

        def transaction() -> None:
            with runtime.transaction() as registry:
                registry.register("user", "a:U", op="kda", priority=-1)
                registry.hook(TARGET, mark("user"), "after")
            assert "user" in acme_target.greet().split()

        work: dict[str, Callable[[], object]] = {
            "load": load,
            "discover": runtime.discover,
            "hook": lambda: runtime.hook(TARGET, mark("user"), "after"),
            "transaction": transaction,
            "fingerprint": runtime.fingerprint,
        }

        def check() -> None:
            try:
                (plugin,) = [plugin for plugin in runtime.plugins if plugin.name == "acme-late"]
                assert plugin.state == "loaded"
                words = acme_target.greet().split()[2:]
                assert sorted(words) == sorted(["late", *["user"] * (other in ("hook", "transaction"))])
                names = [b.name for b in runtime.backends() if b.name in ("acme-late", "user")]
                assert sorted(names) == sorted(["acme-late", *["user"] * (other == "transaction")])
            finally:
                runtime.hooks.clear()
            assert chain.added() == {}

        return load, work[other], check

    def locks() -> list[tuple[Any, str]]:
        return [(each, "_lock") for each in forks._flights]

    assert every_interleaving(make, ["plugins", "staging.py"], locks) > 50
