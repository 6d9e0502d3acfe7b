"""The environment variables that Switchrail reads; docs/environment.md is their reference."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from switchrail.errors import SwitchrailError

PREFIX: Final = "SWITCHRAIL_"
"""How their names begin."""

ALLOW_LIST: Final = "SWITCHRAIL_PLUGINS"
"""Names of the plugins that may be loaded, separated by commas; not set: all."""

PLATFORM: Final = "SWITCHRAIL_PLATFORM"
"""The platform in use, a built-in kind or a platform plugin; not set: what is found."""

LOCK: Final = "SWITCHRAIL_LOCK"
"""A lock file; plugins that differ from it are not imported."""

TIMEOUT: Final = "SWITCHRAIL_LOAD_TIMEOUT"
"""How many seconds one plugin may take to load, or `none`: as long as it takes."""

TIMES: Final = "SWITCHRAIL_TIMES"
"""The file with the times that `switchrail tune` measured; not set: one in the user's cache folder."""

VARIABLES: Final = (ALLOW_LIST, PLATFORM, LOCK, TIMEOUT, TIMES)
"""All of them."""


@contextmanager
def blamed_on(variable: str, errors: type[SwitchrailError], *, given: object = None) -> Iterator[None]:
    """Names a variable in errors that its value causes.

    Args:
        variable: The variable.
        errors: The class of such errors; those of a subclass stay as they are.
        given: What the program has said in its place; None: nothing, so that the variable counts.
    """
    try:
        yield
    except errors as error:
        found = os.environ.get(variable)
        if given is not None or found is None or type(error) is not errors or variable in error.message:
            raise
        raise errors(f"{variable} is {found!r:.200}: {error.message}", **error.fields) from error
