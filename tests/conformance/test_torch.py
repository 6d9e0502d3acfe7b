"""The plain-torch backends and the oracle itself pass the suite entirely.

The oracle computes in float64 whatever the dtype is; one that rounds stands for the others.
"""

from switchrail.testing import backend_test

test_torch = backend_test("torch", device="cpu", quick=True)
test_reference = backend_test("reference", device="cpu", quick=True, dtype="float32")
test_reference_in_bfloat16 = backend_test("reference", device="cpu", quick=True, dtype="bfloat16")
