"""The plain-torch backends pass the whole suite, and the reference all of it that doesn't repeat itself.

In a scenario the suite compares a backend with the reference, which for the reference is the same function
on the same numbers. Its scenarios are therefore limited to those of memory that it must not touch; in the
torch backends' tests each scenario compares it with an independent computation. It computes everything in
float64, so that other dtypes matter only for the rounding of results.
"""

import pytest
from switchrail.testing import backend_test, isolated
from switchrail.testing.conformance import Unavailable, select_named
from switchrail.testing.conformance.scenarios import SCENARIOS

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
    try:
        case()
    except Unavailable as reason:
        pytest.skip(str(reason))
