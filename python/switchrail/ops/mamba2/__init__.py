"""The selective state space of Mamba 2."""

from switchrail.ops.definition import RECURRENT, OpDefinition

DEFINITION = OpDefinition(
    op="mamba2",
    claims=RECURRENT,
    arguments={"H": "heads", "G": "groups", "P": "head_size", "S": "state_size"},
    head_size=("S", "P"),
    heads=("G", "H"),
    sizes=({"H": 128, "P": 64, "G": 8, "S": 128},),
)

__all__ = ["DEFINITION"]
