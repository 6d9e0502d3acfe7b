"""Lightning attention."""

from switchrail.ops.definition import RECURRENT, OpDefinition

DEFINITION = OpDefinition(
    op="lightning",
    claims=RECURRENT,
    arguments={"H": "heads", "K": "key_size", "V": "value_size"},
    head_size=("K", "V"),
    heads=("H", "H"),
    sizes=({"H": 64, "K": 128, "V": 128},),
)

__all__ = ["DEFINITION"]
