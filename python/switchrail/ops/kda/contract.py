"""The contract of `kda`, Kimi delta attention (arXiv 2510.26692)."""

from __future__ import annotations

from switchrail.ops.backend import Backend
from switchrail.ops.batch import StateBatch
from switchrail.ops.delta_call import DeltaCall, DeltaLayer, delta_contract


class KdaLayer(DeltaLayer):
    """The constant arguments of a layer; see `KdaBackend`."""

    __slots__ = ()


class KdaCall(DeltaCall):
    """The arguments of one call; see `KdaBackend`."""

    __slots__ = ()


class KdaBackend(Backend[KdaCall, StateBatch]):
    """Kimi delta attention (Kimi Team, "Kimi Linear", arXiv 2510.26692), with a decay per channel.

    With S the [V, K] state of a value head, for each token: S <- S diag(exp(g)); S <- S + beta (v - S k) k^T;
    out = scale S q. With `qk_l2norm`, q and k are first multiplied by rsqrt(sum of squares + 1e-6).

    Shapes: q and k [T, H, K]; v and out [T, HV, V], HV a multiple of H (value head i uses q/k head i // (HV /
    H)); g [T, HV, K] float32, the log of the decay, <= 0; beta [T, HV], float32 or q's dtype; state [slots,
    HV, V, K] float32, bfloat16 or float16, updated in place. q, k, v and g may be strided views if their last
    axis is contiguous; out is contiguous, of q's dtype.

    Some optional features (a call that uses one reaches only backends that declare it):

    - `raw_gates`: g or beta are raw. With `gate` "softplus", the log of the decay is -exp(A_log) softplus(g +
      dt_bias); with "sigmoid", it is lower_bound sigmoid(exp(A_log) (g + dt_bias)). With `beta_scale`, the
      write weight is beta_scale sigmoid(beta). A_log [HV] float32; dt_bias [HV, K], float32 or q's dtype, or
      None; g and beta float32 or q's dtype.
    - `checkpoints` (`CheckpointBatch`): also stores intermediate states in other slots of `state`.
    - `row_states` (`RowStatesBatch`): stores the state after each drafted row in `row_states`, or in `state`
      if `row_states` is None.
    - `deferred_commit` (`DeferredBatch`): leaves the commit of a verification to the next one.
    """

    op = "kda"


CONTRACT = delta_contract("kda", KdaCall, KdaLayer, decays=("HV", "K"), each="channel of the keys")
