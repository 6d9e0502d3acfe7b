"""Reference for the gated delta rule, one token at a time as in its paper; for tests only."""

from __future__ import annotations

from switchrail.ops.delta_reference import ReferenceDelta
from switchrail.ops.gated_delta.contract import CONTRACT, GatedDeltaBackend


class ReferenceGatedDelta(ReferenceDelta, GatedDeltaBackend):
    """Equation 10 of Yang et al., "Gated Delta Networks", arXiv 2412.06464, in float64.

    S_t = alpha_t S_{t-1} (I - beta_t k_t k_t^T) + beta_t v_t k_t^T and o_t = S_t q_t, with alpha_t =
    exp(g_t). The product of the decayed state and k_t is computed first, and o_t is multiplied by `scale`.
    """

    contract = CONTRACT
