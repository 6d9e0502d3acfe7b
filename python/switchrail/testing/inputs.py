"""Seeded random calls of each op, made hard on purpose: for any backend, on any device, in any dtype.

A sample made here has permuted slots and pages, NaN in everything that a backend must not read, NaN in every
output, and, where asked, strided views of one fused buffer. The same arguments give the same numbers on every
device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from switchrail.ops.attention.inputs import attention_call
from switchrail.ops.backend import AnyBackend
from switchrail.ops.catalog import CONTRACTS, OfEach
from switchrail.ops.gated_delta.inputs import gated_delta_call
from switchrail.ops.kda.inputs import kda_call
from switchrail.ops.lightning.inputs import lightning_call
from switchrail.ops.mamba2.inputs import mamba2_call
from switchrail.ops.mla.inputs import mla_call
from switchrail.ops.samples.pages import UNDEFINED_PAGE
from switchrail.ops.samples.random import Gate, Initial
from switchrail.ops.samples.sample import Sample, Verification
from switchrail.ops.short_conv.inputs import short_conv_call

GENERATORS: Mapping[str, Callable[..., Sample]] = OfEach(lambda definition: definition.generator)
"""What makes a sample of each op."""

REFERENCES: Mapping[str, type[AnyBackend]] = OfEach(lambda definition: definition.reference)


def run_reference(sample: Sample) -> Sample:
    """Computes the float64 oracle of a sample on the same (rounded) inputs, on the CPU.

    Returns:
        A float64 copy of the sample with `out` and the state filled in; `sample` itself is left alone.
    """
    oracle = sample.to("cpu").double()
    oracle.run(REFERENCES[sample.op]())
    return oracle


__all__ = [
    "CONTRACTS",
    "GENERATORS",
    "REFERENCES",
    "UNDEFINED_PAGE",
    "Gate",
    "Initial",
    "Sample",
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
