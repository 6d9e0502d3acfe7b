"""The plain-torch backends pass the quick cases of the suite; the reference passes some of them.

The suite compares results with the reference, so it can't find wrong results of the reference itself. The
reference runs only scenarios that also check which memory is read and written.
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
