"""The depthwise causal convolution with state that linear layers apply before their recurrence."""

from switchrail.ops.definition import FLOATS, STATES, OpDefinition

DEFINITION = OpDefinition(
    op="short_conv",
    claims={"state_dtypes": FLOATS, "features": STATES},
    arguments={"C": "channels", "W": "width"},
    sizes=({"C": 8192, "W": 4},),
)

__all__ = ["DEFINITION"]
