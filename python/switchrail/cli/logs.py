"""Controls what the command shows of the library's log."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

LOG = logging.getLogger("switchrail")


@contextmanager
def failures_shown() -> Iterator[None]:
    """Hides plugins' failures from the log, for callers that show the plugins' records instead."""
    LOG.addFilter(_is_no_failure)
    try:
        yield
    finally:
        LOG.removeFilter(_is_no_failure)


def _is_no_failure(record: logging.LogRecord) -> bool:
    return not hasattr(record, "failed_plugin")
