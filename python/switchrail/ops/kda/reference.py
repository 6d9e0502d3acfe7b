"""Reference for Kimi delta attention, one token at a time as in its paper; for tests only."""

from __future__ import annotations

from switchrail.ops.delta_reference import ReferenceDelta
from switchrail.ops.kda.contract import CONTRACT, KdaBackend


class ReferenceKda(ReferenceDelta, KdaBackend):
    """Equation 1 of Kimi Team, "Kimi Linear", arXiv 2510.26692, in float64.

    S_t = (I - beta_t k_t k_t^T) Diag(alpha_t) S_{t-1} + beta_t k_t v_t^T and o_t = S_t^T q_t, with alpha_t =
    exp(g_t). The product of the decayed state and k_t is computed first. Here the state is the transpose of
    the paper's, and o_t is multiplied by `scale`.
    """

    contract = CONTRACT
