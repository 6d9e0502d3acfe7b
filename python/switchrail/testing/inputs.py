"""Random calls of each op from a seed, for any backend, device and dtype, made to expose mistakes.

A sample has permuted slots and pages, and NaN in all outputs and in all memory that a backend must not read.
The inputs can be strided views of fused buffers. Equal arguments give equal numbers on all devices.
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
"""The generator of each op's samples."""

REFERENCES: Mapping[str, type[AnyBackend]] = OfEach(lambda definition: definition.reference)
"""The class of each op's reference backend, the oracle."""


def run_reference(sample: Sample) -> Sample:
    """Computes the float64 oracle of a sample on the CPU, from the same (rounded) inputs.

    Returns:
        A float64 copy of the sample with the results in `out` and the state. The sample itself is not
        modified.
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
