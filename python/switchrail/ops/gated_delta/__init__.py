"""The gated delta rule."""

from switchrail.ops.definition import RECURRENT, OpDefinition

DEFINITION = OpDefinition(
    op="gated_delta",
    claims={**RECURRENT, "features": (*RECURRENT["features"], "mixed_weights", "raw_gates")},
    arguments={"H": "heads", "HV": "value_heads", "K": "key_size", "V": "value_size"},
    head_size=("K", "V"),
    heads=("H", "HV"),
    sizes=({"H": 16, "HV": 32, "K": 128, "V": 128},),
)

__all__ = ["DEFINITION"]
