"""Kimi delta attention."""

from dataclasses import replace

from switchrail.ops.gated_delta import DEFINITION as GATED_DELTA

DEFINITION = replace(GATED_DELTA, op="kda", sizes=({"H": 32, "HV": 32, "K": 128, "V": 128},))

__all__ = ["DEFINITION"]
