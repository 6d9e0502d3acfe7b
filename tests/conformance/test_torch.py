"""The plain-torch backends and the oracle itself pass the suite entirely."""

from switchrail.testing import backend_test

test_torch = backend_test("torch", device="cpu", quick=True)
test_reference = backend_test("reference", device="cpu", quick=True)
