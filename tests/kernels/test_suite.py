"""Runs the conformance suite for Triton's kernels: with a GPU, all quick cases, and in the interpreter, those
of `INTERPRETED` and `IN_FLOAT16`.
"""

from __future__ import annotations

import fnmatch

import pytest
import torch
from switchrail.testing import isolated
from switchrail.testing.conformance import Case, select_named

from tests.conformance.running import run_or_skip

pytest.importorskip("triton")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
INTERPRETED = {
    "prefill": (
        *("none", "empty", "padding", "page-33", "sinks", "bias", "time-innermost", "zero-keys", "plain"),
        *("initial-states", "read-not-write", "state-bfloat16", "normalised", "large-norms", "*-steps"),
        *("gate-near_one", "gate-one", "gate-mixed", "heads-1-3", "heads-3-1", "heads-6-2"),
        *("head-size-16-24",),
    ),
    "decode": (
        *("none", "padding", "page-33", "initial-states", "read-not-write", "state-bfloat16", "bias"),
        *("gate-one", "gate-mixed", "normalised", "large-norms", "head-size-16*", "*-steps", "plain"),
    ),
    "verify": ("trees",),
}
"""Patterns of the names of checks that run in the interpreter in float32, by phase."""
IN_FLOAT16 = {"prefill": ("ragged", "past", "hard-mixed"), "decode": ("ragged",), "verify": ()}
"""The names of checks that run in the interpreter in float16, by phase."""


def cases() -> list[Case]:
    """The cases that run on this machine."""
    with isolated() as runtime:
        runtime.load()
        platform = runtime.find_platform(DEVICE)
        found = select_named(runtime, "triton", platform=platform, quick=True).cases
    return [case for case in found if DEVICE == "cuda" or is_interpreted(case)]


def is_interpreted(case: Case) -> bool:
    setting = case.setting
    if setting.op == "mla":  # takes many times as long, and has separate tests
        return False
    names = (INTERPRETED if setting.dtype == torch.float32 else IN_FLOAT16)[setting.phase]
    return any(fnmatch.fnmatch(case.check.name, name) for name in names)


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.id)
def test_a_case(case):
    run_or_skip(case)
