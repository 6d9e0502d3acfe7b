"""Gates as a model's projections leave them, and what the delta rule makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch

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


def activate_gate(
    g: torch.Tensor,
    gate: GateKind | None,
    A_log: torch.Tensor | None,
    dt_bias: torch.Tensor | None,
    lower_bound: float | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    """The log of the decay.

    With x = g + dt_bias and a = exp(A_log): -a softplus(x), or lower_bound sigmoid(a x).

    Args:
        g: [T, HV] or [T, HV, K].
        gate: The kind; None where g is the log of the decay already.
        A_log: [HV].
        dt_bias: [HV] or [HV, K], or None.
        lower_bound: Of the kind `sigmoid`.
        dtype: The dtype to compute in.
    """
    if gate is None:
        return g
    assert A_log is not None
    raw = g.to(dtype)
    if dt_bias is not None:
        raw = raw + dt_bias
    rate = A_log.to(dtype).exp().view(-1, *[1] * (g.ndim - 2))
    if gate == "softplus":
        return -rate * torch.nn.functional.softplus(raw)
    assert lower_bound is not None
    return lower_bound * torch.sigmoid(rate * raw)


def activate_beta(beta: torch.Tensor, beta_scale: float | None, dtype: torch.dtype) -> torch.Tensor:
    """The weight of the write [T, HV]: beta_scale sigmoid(beta), or beta itself where the scale is None."""
    return beta if beta_scale is None else beta_scale * torch.sigmoid(beta.to(dtype))


__all__ = ["FEATURE", "RAW_NEEDS", "RAW_OPTIONS", "GateKind", "activate_beta", "activate_gate", "raw_tensors"]
