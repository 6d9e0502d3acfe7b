"""The plain-torch backends pass the quick cases of the suite; the reference passes some of them.

The suite compares results with the reference, so it can't find wrong results of the reference itself. The
reference runs only scenarios that also check which memory is read and written, and each part of its code
once: decode is a prefill, sizes are only shapes, and the references of `AS_GATED_DELTA` add only the
formula of one row. The checks `EVERYWHERE` run for these, too.
"""

import pytest
from switchrail.testing import backend_test, isolated
from switchrail.testing.conformance import select_named
from switchrail.testing.conformance.scenarios import SCENARIOS

from tests.conformance.running import run_or_skip

test_torch = backend_test("torch", device="cpu", quick=True)

MEMORY = {"ragged", "none", "empty", "padding", "dirty-slots", "read-not-write", "past"}
AS_GATED_DELTA = ("kda", "lightning", "mamba2")
EVERYWHERE = ("ragged", "refusals", "engine-memory")
OTHERS = {scenario.name for scenario in SCENARIOS} - MEMORY


def reference_cases():
    with isolated() as runtime:
        runtime.load()
        platform = runtime.find_platform("cpu")
        found = select_named(runtime, "reference", platform=platform, quick=True).cases
    own = {case.check.name for case in found if case.setting.op == "gated_delta"}
    return [case for case in found if is_distinct(case, own)]


def is_distinct(case, of_gated_delta):
    setting, name = case.setting, case.check.name
    if setting.dtype.itemsize != 4:
        return name in ("ragged", "past")
    if name in EVERYWHERE:
        return True
    is_repeated = setting.op in AS_GATED_DELTA and name in of_gated_delta
    is_of_size = name.startswith(("head-size-", "page-"))
    return not (name in OTHERS or is_repeated or is_of_size or setting.phase == "decode")


@pytest.mark.parametrize("case", reference_cases(), ids=lambda case: case.id)
def test_reference(case):
    run_or_skip(case)
