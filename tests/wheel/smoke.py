"""A program that each interpreter runs with only the wheel installed: the runtime works without torch."""

import sys

import switchrail

runtime = switchrail.Runtime()
runtime.register("first", "nowhere:First", op="gated_delta")
runtime.register("second", "nowhere:Second", op="gated_delta", priority=1)
decision = runtime.resolve("gated_delta", "decode", device="cpu", dtype="float32")
assert decision.chosen == "second", decision
layout = switchrail.Layout.from_kinds("toy", ["gated_delta", "full_attention"])
assert len(layout) == 2
message = ""
try:
    runtime.resolve("gated_dleta", "decode", device="cpu", dtype="float32")
except switchrail.SwitchrailError as error:
    message = str(error)
assert "gated_delta" in message, message
assert "torch" not in sys.modules
print("wheel works on", sys.version.split()[0])
