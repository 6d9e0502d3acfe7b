"""Settings, scheduling and fixtures of all tests, and the check that each test leaves nothing behind.

Without a GPU, Triton's kernels are interpreted. Times that `switchrail tune` measured on this machine are
ignored. PyTorch uses one thread, since the tests' computations are too small to gain from more.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import hypothesis
import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
os.environ["SWITCHRAIL_TIMES"] = str(Path(__file__).with_name("none.json"))

from switchrail import garbage

from tests import leftovers
from tests.interpreter import avoid_repeated_work
from tests.processes import processes  # noqa: F401  (a fixture for all)

# Hypothesis examples have no time limit, since other processes may keep the cores busy.
hypothesis.settings.register_profile(
    "busy", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("busy")


class YoungCollector:
    """Replaces the module `gc` in `switchrail.garbage`: collects young objects only, and freezes none.

    Engines collect garbage before they capture steps. Full collections, which visit all imports and all
    collected tests, took a third of the time of tests with such engines. Tests of `switchrail.garbage` use
    `whole_heap`.
    """

    get_freeze_count = staticmethod(gc.get_freeze_count)
    get_referrers = staticmethod(gc.get_referrers)

    def collect(self) -> None:
        gc.collect(1)

    def freeze(self) -> None:
        pass

    def unfreeze(self) -> None:
        pass


avoid_repeated_work()
garbage.gc = YoungCollector()  # type: ignore[attr-defined]
leftovers.remember_triton()
gc.disable()  # until the tests are collected, since nearly all objects made until then stay alive

# Tests in these files share slow fixtures. They start first, in this order, so that no process is still busy
# with a slow fixture at the end.
WHOLE_FILES = (
    "tests/wheel/test_wheel.py",
    "tests/test_plugin_guide.py",
    "tests/engine/test_drafts.py",
    "tests/engine/test_mtp.py",
    "tests/engine/test_draft_model.py",
    "tests/engine/test_interrupts.py",
    "tests/engine/test_parity.py",
    "tests/benchmarks/test_ops.py",
    "tests/cli/test_new_plugin.py",
    "tests/discovery/test_lock.py",
    "tests/plugins/test_vendor.py",
    "tests/platforms/test_acme.py",
    "tests/spawn/test_ranks.py",
)


def pytest_collection_finish() -> None:
    """Turn the garbage collector on again, and let torch's loggers print through the logger `torch`.

    A full collection visits all imports and collected tests. One in 50 collections of the middle generation
    is followed by a full collection. With Python's default, one in 10, full collections took a twentieth of
    the time of tests with engines.

    Torch's loggers propagate because pytest adds handlers to each logger that doesn't, three times per test,
    which takes a sixth of an empty test's time.
    """
    gc.enable()
    gc.set_threshold(*gc.get_threshold()[:2], 50)
    for name, logger in logging.root.manager.loggerDict.items():
        if name.startswith("torch.") and isinstance(logger, logging.Logger):
            own = [each for each in logger.handlers if type(each).__name__ == "_StderrHandler"]
            for handler in own:
                logger.removeHandler(handler)
                logger.propagate = True


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Run each file of `WHOLE_FILES`, and all cases of a function, in one process.

    If xdist distributed the cases one by one, this alone would take as long as running ten files of tests.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def schedule(self) -> None:
            super().schedule()
            for file in reversed(WHOLE_FILES):
                if file in self.workqueue:
                    self.workqueue.move_to_end(file, last=False)

        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return file if file in WHOLE_FILES else nodeid.partition("[")[0]

    return Scheduling(config, log)


_state: list[Mapping[Any, Any]] = []
"""The state after the last test, which is the state before the next one. Empty if a fixture of several tests
has been set up or torn down in between."""


class SharedFixtures:
    """Forgets `_state` when fixtures come or go.

    This is a plugin, because pytest calls no hook of this file for the fixtures of a session.
    """

    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> None:
        if fixturedef.scope != "function":
            _state.clear()

    def pytest_fixture_post_finalizer(self, fixturedef: pytest.FixtureDef[Any]) -> None:
        if fixturedef.scope != "function":
            _state.clear()


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(SharedFixtures())


@pytest.fixture(scope="session", autouse=True)
def _nothing_is_left_by_fixtures() -> Iterator[None]:
    before = leftovers.read()
    yield
    assert not (left := leftovers.put_back(before)), left


@pytest.fixture(autouse=True)
def _nothing_is_left(_nothing_is_left_by_fixtures: None) -> Iterator[None]:
    """Check for leftovers after each test. Being each test's first fixture, it ends last.

    Also seeds torch's default generator.
    """
    before = _state.copy() or leftovers.read()
    torch.default_generator.manual_seed(0)
    yield
    leftovers.put_back_triton()
    left = leftovers.put_back(before)
    _state[:] = before
    if left:
        pytest.fail("\n".join(["this test left something behind:", *left]), pytrace=False)


@pytest.fixture
def whole_heap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let engines collect and freeze all objects before they capture steps, as outside the tests."""
    monkeypatch.setattr(garbage, "gc", gc)


@pytest.fixture
def small_heap() -> Iterator[None]:
    """Let the garbage collector see only the test's own objects, not those of all earlier imports."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def switch_often() -> Iterator[None]:
    """Make Python switch threads very often."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)
