"""The contract of `kda`, Kimi delta attention (arXiv 2510.26692)."""

from __future__ import annotations

from switchrail.ops.backend import Backend
from switchrail.ops.batch import StateBatch
from switchrail.ops.delta_call import DeltaCall, DeltaLayer, delta_contract


class KdaLayer(DeltaLayer):
    """A layer's half of a call; see `KdaBackend`."""

    __slots__ = ()


class KdaCall(DeltaCall):
    """What a call of a layer brings; see `KdaBackend`."""

    __slots__ = ()


class KdaBackend(Backend[KdaCall, StateBatch]):
    """Kimi delta attention (Kimi Team, "Kimi Linear", arXiv 2510.26692): the delta rule, a decay a channel.

    With S the [V, K] state of a value head, for each token: S <- S diag(exp(g)); S <- S + beta (v - S k) k^T;
    out = scale S q. With `qk_l2norm`, q and k are first multiplied by rsqrt(sum of squares + 1e-6).

    Shapes: q and k [T, H, K]; v and out [T, HV, V], HV a multiple of H, value head i using q/k head
    i // (HV / H); g [T, HV, K] float32, the log of the decay, <= 0; beta [T, HV], float32 or q's dtype;
    state [slots, HV, V, K] float32 or bfloat16, updated in place. q, k, v and g may be strided views with
    their last axis contiguous; out is contiguous, of q's dtype.

    Features, each of which only a backend that declares it is ever given, and only where it is used:

    - `raw_gates`: with `gate` "softplus", the log of the decay is -exp(A_log) softplus(g + dt_bias); with
      "sigmoid" it is lower_bound sigmoid(exp(A_log) (g + dt_bias)); with `beta_scale`, the weight of the
      write is beta_scale sigmoid(beta). A_log [HV] float32; dt_bias [HV, K], float32 or q's dtype, or None; g
      and beta then float32 or q's dtype.
    - `checkpoints`: states on the way are kept in slots of their own; the batch is a `CheckpointBatch`.
    """

    op = "kda"
    has_state = True


CONTRACT = delta_contract("kda", KdaCall, KdaLayer, decays=("HV", "K"), each="channel of the keys")

__all__ = ["CONTRACT", "KdaBackend", "KdaCall", "KdaLayer"]
