"""Packages that come with the extra `engine`: torch and transformers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from switchrail.errors import MissingPackageError

INSTALL = "pip install 'switchrail[engine]'"
"""How to install torch and transformers."""


@contextmanager
def engine_packages(user: str) -> Iterator[None]:
    """Explains how to install torch or transformers if an import in the block finds one of them missing.

    Raises:
        MissingPackageError: One of them is not installed; the message says that `user` needs it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "transformers"):
            raise
        raise MissingPackageError(
            f"{user} needs {error.name}, which is not installed: {INSTALL}", found=error.name
        ) from error
