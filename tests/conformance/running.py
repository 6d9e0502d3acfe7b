"""Runs a case of the conformance suite as a test."""

import pytest
from switchrail.testing.conformance import Case
from switchrail.testing.conformance.memory import Unavailable


def run_or_skip(case: Case) -> None:
    """Run a case; skip the test if the device lacks what the case needs."""
    try:
        case()
    except Unavailable as reason:
        pytest.skip(str(reason))
