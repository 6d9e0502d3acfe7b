"""The plain-torch backends pass the whole suite; the reference passes the scenarios that apply to it.

Most scenarios compare a backend with the reference, so the reference runs only scenarios about memory that
must not be touched. The tests of the torch backends compare the reference with an independent computation in
each scenario. The reference computes everything in float64, so other dtypes only affect the rounding of its
results.
"""

import pytest
from switchrail.testing import backend_test, isolated
from switchrail.testing.conformance import select_named
from switchrail.testing.conformance.scenarios import SCENARIOS

from tests.conformance.running import run_or_skip

test_torch = backend_test("torch", device="cpu", quick=True)

MEMORY = {"ragged", "none", "empty", "padding", "dirty-slots", "read-not-write", "past"}
OTHERS = {scenario.name for scenario in SCENARIOS} - MEMORY


def reference_cases():
    with isolated() as runtime:
        runtime.load()
        platform = runtime.find_platform("cpu")
        found = select_named(runtime, "reference", platform=platform, quick=True).cases
    return [
        case
        for case in found
        if case.check.name not in OTHERS
        and (case.setting.dtype.itemsize == 4 or case.check.name in ("ragged", "past"))
    ]


@pytest.mark.parametrize("case", reference_cases(), ids=lambda case: case.id)
def test_reference(case):
    run_or_skip(case)
