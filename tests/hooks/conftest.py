import pytest
from switchrail.hooks import Hooks, chain

from tests.hooks.modules import imported

CLASS = """
class C:
    def m(self, a, b=2):
        return a + b

    def n(self):
        return self.m(1)
"""

SOURCE = f'''
def f(a, b=2):
    """Adds."""
    return a + b
{CLASS}
class D(C):
    pass

def counter(start):
    def step(by=1):
        nonlocal start
        start += by
        return start
    return step
'''


@pytest.fixture(autouse=True)
def fast_searches(small_heap):
    """Searches for an object's holders visit the test's own objects only."""


@pytest.fixture(autouse=True)
def nothing_is_left():
    """Remove a test's hooks when it ends, even if it fails, then check that none are left."""
    before = set(chain.added())
    yield
    chain.change(remove=[hook for hook in chain.added() if hook not in before])
    assert set(chain.added()) == before
    assert set(chain.running()) <= before


@pytest.fixture
def hooks():
    """A registry of hooks for one test, cleared when the test ends."""
    hooks = Hooks()
    yield hooks
    hooks.clear()


@pytest.fixture
def module():
    """A new module with plain functions and methods, importable by its name."""
    with imported("hook_targets", SOURCE) as module:
        yield module
