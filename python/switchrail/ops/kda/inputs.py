"""Random samples of `kda`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from switchrail.ops.gated_delta.inputs import SCENARIOS, flops, gated_delta_call
from switchrail.ops.kda import DEFINITION
from switchrail.ops.kda.contract import CONTRACT
from switchrail.ops.samples.sample import Sample
from switchrail.ops.samples.scenario import timed


def kda_call(lengths: Sequence[int], **arguments: Any) -> Sample:
    """Makes a random sample of `kda`. Same arguments as `gated_delta_call`."""
    return gated_delta_call(lengths, contract=CONTRACT, **arguments)


(_SIZES,) = DEFINITION.sizes

TIMED = (
    *timed("prefill", _SIZES, (8192,), (1024,) * 8, (32768,), (2048,) * 16),
    *timed("prefill", _SIZES, (32768,), decays=False),
    *timed("decode", _SIZES, (1,), (1,) * 32, (1,) * 256),
)

__all__ = ["SCENARIOS", "TIMED", "flops", "kda_call"]
