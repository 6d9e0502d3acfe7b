"""A runtime of its own for a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from switchrail.current import swap_current
from switchrail.runtime import Runtime


@contextmanager
def isolated() -> Iterator[Runtime]:
    """Makes a new runtime the default one for the length of a block, in all threads.

    It begins with the built-in backends, no plugin, no hook and no platform; `load` in it runs the installed
    plugins' functions again, for it alone. At the end its hooks are taken off, also those of a runtime that
    `RuntimeState.restore` put in its place, and the runtime from before is the default one again, as it was:
    registry, hooks, platform. Blocks nest, but must not overlap in two threads. As a pytest fixture:

    ```
    @pytest.fixture
    def runtime():
        with switchrail.testing.isolated() as runtime:
            yield runtime
    ```
    """
    runtime = Runtime()
    before = swap_current(runtime)
    try:
        yield runtime
    finally:
        last = swap_current(before)
        runtime.hooks.clear()
        if last is not None:
            last.hooks.clear()
