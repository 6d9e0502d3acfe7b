"""An isolated runtime for a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from switchrail.current import swap_current
from switchrail.runtime import Runtime


@contextmanager
def isolated() -> Iterator[Runtime]:
    """Makes a new runtime the default runtime for the duration of a block, in all threads.

    The new runtime starts with the built-in backends and without plugins, hooks or a platform. `load` runs
    the installed plugins' functions again, for this runtime only. At the end of the block, the new runtime's
    hooks are removed, and the previous default runtime is restored. If `RuntimeState.restore` has replaced
    the new runtime meanwhile, the hooks of the replacement are removed too. Blocks can be nested, but must
    not overlap in two threads.

    As a pytest fixture:

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
