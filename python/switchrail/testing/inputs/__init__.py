"""Seeded random calls of each op, made hard on purpose: for any backend, on any device, in any dtype.

A call made here has permuted slots and pages, NaN in everything that a backend must not read, NaN in every
output, and, where asked, strided views of one fused buffer. The same arguments give the same numbers on every
device.
"""

from __future__ import annotations

from collections.abc import Callable

from switchrail.testing.inputs.attention import attention_call
from switchrail.testing.inputs.call import CONTRACTS, REFERENCES, Call, Verification, run_reference
from switchrail.testing.inputs.common import Gate, Initial
from switchrail.testing.inputs.delta import gated_delta_call, kda_call
from switchrail.testing.inputs.lightning import lightning_call
from switchrail.testing.inputs.mamba2 import mamba2_call
from switchrail.testing.inputs.mla import mla_call
from switchrail.testing.inputs.pages import UNDEFINED_PAGE
from switchrail.testing.inputs.short_conv import short_conv_call

GENERATORS: dict[str, Callable[..., Call]] = {
    "attention": attention_call,
    "gated_delta": gated_delta_call,
    "kda": kda_call,
    "lightning": lightning_call,
    "mamba2": mamba2_call,
    "mla": mla_call,
    "short_conv": short_conv_call,
}
"""What makes a call of each op."""

__all__ = [
    "CONTRACTS",
    "GENERATORS",
    "REFERENCES",
    "UNDEFINED_PAGE",
    "Call",
    "Gate",
    "Initial",
    "Verification",
    "attention_call",
    "gated_delta_call",
    "kda_call",
    "lightning_call",
    "mamba2_call",
    "mla_call",
    "run_reference",
    "short_conv_call",
]
