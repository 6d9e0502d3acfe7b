"""Controls what the command shows of the library's log."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

LOG = logging.getLogger("switchrail")


@contextmanager
def without_failures() -> Iterator[None]:
    """In the block, hides plugins' failures from the log, for callers that show the plugins' records."""
    LOG.addFilter(_is_no_failure)
    try:
        yield
    finally:
        LOG.removeFilter(_is_no_failure)


def _is_no_failure(record: logging.LogRecord) -> bool:
    return not hasattr(record, "failed_plugin")
