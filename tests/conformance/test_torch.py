"""The plain-torch backends and the reference itself pass the whole suite."""

from switchrail.testing import backend_test

test_torch = backend_test("torch", device="cpu", quick=True)
test_reference = backend_test("reference", device="cpu", quick=True)
