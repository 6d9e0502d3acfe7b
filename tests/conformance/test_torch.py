"""The plain-torch backends and the reference itself pass the whole suite.

The reference computes in float64 for every dtype, so one dtype that rounds is enough.
"""

from switchrail.testing import backend_test

test_torch = backend_test("torch", device="cpu", quick=True)
test_reference = backend_test("reference", device="cpu", quick=True, dtype="float32")
test_reference_in_bfloat16 = backend_test("reference", device="cpu", quick=True, dtype="bfloat16")
