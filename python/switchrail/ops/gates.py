"""Gates as a model's projections leave them: what the contracts of the delta rule say of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from switchrail.ops.contract import COMPUTE, INPUT, OptionSpec, TensorSpec

GateKind = Literal["softplus", "sigmoid"]

FEATURE = "raw_gates"
"""What a backend declares that takes raw gates."""

RAW_OPTIONS: Mapping[str, OptionSpec] = {
    "gate": OptionSpec(
        types=(str, type(None)),
        values=("softplus", "sigmoid", None),
        feature=FEATURE,
        about="what makes the log of the decay of g; None: g is the log of the decay itself",
    ),
    "lower_bound": OptionSpec(
        types=(float, type(None)),
        finite_nonzero=True,
        sign=-1,
        feature=FEATURE,
        about="the least log of a decay that the gate 'sigmoid' gives",
    ),
    "beta_scale": OptionSpec(
        types=(float, type(None)),
        finite_nonzero=True,
        sign=1,
        feature=FEATURE,
        about="the weight of the write is this times sigmoid(beta); None: it is beta itself",
    ),
}

RAW_NEEDS = (("gate", "softplus", "A_log"), ("gate", "sigmoid", "A_log"), ("gate", "sigmoid", "lower_bound"))
"""What else must be given with a value of an option."""


def raw_tensors(bias_axes: tuple[str, ...]) -> Mapping[str, TensorSpec]:
    """The tensors that raw gates need, the bias having one value for each of `bias_axes`."""
    return {
        "A_log": TensorSpec(
            axes=("HV",), dtypes=(COMPUTE,), memory=("HV",), feature=FEATURE, about="log of each head's rate"
        ),
        "dt_bias": TensorSpec(
            axes=bias_axes,
            dtypes=(INPUT, COMPUTE),
            memory=bias_axes,
            feature=FEATURE,
            about="added to a raw gate",
        ),
    }


__all__ = ["FEATURE", "RAW_NEEDS", "RAW_OPTIONS", "GateKind", "raw_tensors"]
