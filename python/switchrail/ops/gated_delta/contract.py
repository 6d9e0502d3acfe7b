"""The contract of `gated_delta`, the gated delta rule (arXiv 2412.06464)."""

from __future__ import annotations

from switchrail.ops.backend import Backend
from switchrail.ops.batch import StateBatch
from switchrail.ops.delta_call import DeltaCall, DeltaLayer, delta_contract


class GatedDeltaLayer(DeltaLayer):
    """The constant arguments of a layer; see `GatedDeltaBackend`."""

    __slots__ = ()


class GatedDeltaCall(DeltaCall):
    """The arguments of one call; see `GatedDeltaBackend`."""

    __slots__ = ()


class GatedDeltaBackend(Backend[GatedDeltaCall, StateBatch]):
    """The gated delta rule (Yang et al., "Gated Delta Networks", arXiv 2412.06464).

    With S the [V, K] state of a value head, for each token: S <- exp(g) S; S <- S + beta (v - S k) k^T; out =
    scale S q. With `qk_l2norm`, q and k are first multiplied by rsqrt(sum of squares + 1e-6).

    Shapes: q and k [T, H, K]; v and out [T, HV, V], HV a multiple of H (value head i uses q/k head i // (HV /
    H)); g [T, HV] float32, the log of the decay, <= 0; beta [T, HV], float32 or q's dtype; state [slots, HV,
    V, K] float32, bfloat16 or float16, updated in place. q, k and v may be strided views if their last axis
    is contiguous; out is contiguous, of q's dtype.

    Some optional features (a call that uses one reaches only backends that declare it):

    - `raw_gates`: g or beta are raw. With `gate` "softplus", the log of the decay is -exp(A_log) softplus(g +
      dt_bias); with "sigmoid", it is lower_bound sigmoid(exp(A_log) (g + dt_bias)). With `beta_scale`, the
      write weight is beta_scale sigmoid(beta). A_log [HV] float32; dt_bias [HV], float32 or q's dtype, or
      None; g and beta float32 or q's dtype.
    - `checkpoints` (`CheckpointBatch`): also stores intermediate states in other slots of `state`.
    - `row_states` (`RowStatesBatch`): stores the state after each drafted row in `row_states`, or in `state`
      if `row_states` is None.
    - `deferred_commit` (`DeferredBatch`): leaves the commit of a verification to the next one.
    """

    op = "gated_delta"


CONTRACT = delta_contract("gated_delta", GatedDeltaCall, GatedDeltaLayer, decays=("HV",), each="head")
