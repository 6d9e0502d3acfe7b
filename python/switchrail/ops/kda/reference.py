"""Kimi delta attention, token by token as its paper states it: the oracle, not for use."""

from __future__ import annotations

from switchrail.ops.delta_reference import ReferenceDelta
from switchrail.ops.kda.contract import CONTRACT, KdaBackend


class ReferenceKda(ReferenceDelta, KdaBackend):
    """Equation 1 of Kimi Team, "Kimi Linear", arXiv 2510.26692, in float64.

    S_t = (I - beta_t k_t k_t^T) Diag(alpha_t) S_{t-1} + beta_t k_t v_t^T and o_t = S_t^T q_t, with alpha_t =
    exp(g_t), written with the product of the decayed state and k_t taken first. The state here is the
    transpose of the paper's.
    """

    contract = CONTRACT


__all__ = ["ReferenceKda"]
