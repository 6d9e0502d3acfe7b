"""The contract's arguments for raw gates of the delta rule, as a model's projections produce them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from switchrail.ops.contract import COMPUTE, FLOATS, INPUT, Allowance, OptionSpec, TensorSpec

GateKind = Literal["softplus", "sigmoid"]

FEATURE = "raw_gates"
"""The feature of backends that accept raw gates."""

MIXED = Allowance(feature="mixed_weights", dtypes=FLOATS)
"""Allows any floating-point dtype for the weights of raw gates."""

RAW_OPTIONS: Mapping[str, OptionSpec] = {
    "gate": OptionSpec(
        types=(str, type(None)),
        values=("softplus", "sigmoid", None),
        feature=FEATURE,
        about="activation that maps g to the log of the decay; None: g is already the log of the decay",
    ),
    "lower_bound": OptionSpec(
        types=(float, type(None)),
        finite_nonzero=True,
        sign=-1,
        feature=FEATURE,
        about="lower bound of the log of the decay with the gate 'sigmoid'",
    ),
    "beta_scale": OptionSpec(
        types=(float, type(None)),
        finite_nonzero=True,
        sign=1,
        feature=FEATURE,
        about="the write weight is this factor times sigmoid(beta); None: the write weight is beta itself",
    ),
}

RAW_NEEDS = (("gate", "softplus", "A_log"), ("gate", "sigmoid", "A_log"), ("gate", "sigmoid", "lower_bound"))
"""Triples of an option, a value of it, and another argument that this value requires."""


def raw_tensors(bias_axes: tuple[str, ...]) -> Mapping[str, TensorSpec]:
    """The tensors that raw gates need; the bias has the axes `bias_axes`."""
    return {
        "A_log": TensorSpec(
            axes=("HV",),
            dtypes=(COMPUTE,),
            memory=("HV",),
            feature=FEATURE,
            also=(MIXED,),
            about="log of each head's rate",
        ),
        "dt_bias": TensorSpec(
            axes=bias_axes,
            dtypes=(INPUT, COMPUTE),
            memory=bias_axes,
            feature=FEATURE,
            also=(MIXED,),
            about="added to a raw gate",
        ),
    }
