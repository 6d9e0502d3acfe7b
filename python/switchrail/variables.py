"""The environment variables that Switchrail reads; docs/environment.md describes them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from switchrail.errors import SwitchrailError

PREFIX: Final = "SWITCHRAIL_"
"""The prefix of the variables' names."""

ALLOW_LIST: Final = "SWITCHRAIL_PLUGINS"
"""Names of the plugins that may be loaded, separated by commas; unset means all."""

PLATFORM: Final = "SWITCHRAIL_PLATFORM"
"""The platform to use: a built-in kind or the name of a platform plugin; unset means automatic choice."""

LOCK: Final = "SWITCHRAIL_LOCK"
"""A lock file; plugins that differ from it are not imported."""

TIMEOUT: Final = "SWITCHRAIL_LOAD_TIMEOUT"
"""Time limit for loading one plugin in seconds, or `none` for no limit."""

TIMES: Final = "SWITCHRAIL_TIMES"
"""The file with the times that `switchrail tune` measured; unset means one in the user's cache folder."""

POLICY: Final = "SWITCHRAIL_POLICY"
"""A file with the backends to prefer and to deny and their configurations, for all programs."""

VARIABLES: Final = (ALLOW_LIST, PLATFORM, LOCK, TIMEOUT, TIMES, POLICY)
"""All of these variables."""


@contextmanager
def blamed_on(variable: str, *errors: type[SwitchrailError], given: object = None) -> Iterator[None]:
    """Adds a variable's name to errors that the variable's value causes.

    Args:
        variable: The variable.
        *errors: The classes of such errors. Errors of their subclasses are not changed.
        given: The value that the program passed instead; None means that the variable's value is used.
    """
    try:
        yield
    except errors as error:
        found = os.environ.get(variable)
        if given is not None or found is None or type(error) not in errors or variable in error.message:
            raise
        raise type(error)(f"{variable} is {found!r:.200}: {error.message}", **error.fields) from error
