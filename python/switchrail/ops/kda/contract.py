"""The contract of `kda`, Kimi delta attention (arXiv 2510.26692)."""

from __future__ import annotations

from switchrail.ops.backend import Backend
from switchrail.ops.batch import CheckpointBatch, StateBatch
from switchrail.ops.contract import COMPUTE, FLOATS, INPUT, STATE_SLOTS, Contract, OptionSpec, TensorSpec
from switchrail.ops.delta_call import DeltaCall, DeltaLayer
from switchrail.ops.gates import RAW_NEEDS, RAW_OPTIONS, raw_tensors


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


CONTRACT = Contract(
    op="kda",
    call=KdaCall,
    layer=KdaLayer,
    tensors={
        "q": TensorSpec(axes=("T", "H", "K"), dtypes=FLOATS, unit_stride=("K",), about="queries"),
        "k": TensorSpec(axes=("T", "H", "K"), dtypes=(INPUT,), unit_stride=("K",), about="keys"),
        "v": TensorSpec(axes=("T", "HV", "V"), dtypes=(INPUT,), unit_stride=("V",), about="values"),
        "g": TensorSpec(
            axes=("T", "HV", "K"),
            dtypes=(COMPUTE,),
            unit_stride=("K",),
            raw_with="gate",
            about="log of the decay, or what `gate` makes it of",
        ),
        "beta": TensorSpec(
            axes=("T", "HV"),
            dtypes=(INPUT, COMPUTE),
            unit_stride=("T", "HV"),
            about="weight of the write, 0 to 2, or what `beta_scale` makes it of",
        ),
        **raw_tensors(("HV", "K")),
        "state": TensorSpec(
            axes=("slots", "HV", "V", "K"),
            dtypes=(COMPUTE, "bfloat16"),
            memory=("slots", "HV", "V", "K"),
            mutated=True,
            about="pool of recurrent states",
        ),
        "out": TensorSpec(
            axes=("T", "HV", "V"), dtypes=(INPUT,), memory=("T", "HV", "V"), mutated=True, about="the result"
        ),
    },
    options={
        "scale": OptionSpec(types=(float,), finite_nonzero=True, about="factor of the queries"),
        "qk_l2norm": OptionSpec(
            types=(bool,), about="whether q and k are first multiplied by rsqrt(sum of squares + 1e-6)"
        ),
        **RAW_OPTIONS,
    },
    batch=STATE_SLOTS,
    batch_type=StateBatch,
    batch_features={"checkpoints": CheckpointBatch},
    multiples=(("HV", "H"),),
    needs=RAW_NEEDS,
    state_layout="VK",
    gate={
        "space": "log",
        "kind": "activated, or raw as `gate` says; one value a channel of the keys",
        "range": "-inf to 0, both included",
    },
    notes=(
        "value head i uses q/k head i // (HV / H)",
        "g = -inf is a decay of exactly 0; a backend may take any g below -80 as -inf",
        "a slot that is read holds finite numbers; a slot that is not read may hold anything",
        "a sequence of padding writes zeros into its rows of out and no state",
        "a sequence of length zero keeps its state: no slot is read or written",
        "out may not overlap any other tensor",
    ),
)

__all__ = ["CONTRACT", "KdaBackend", "KdaCall", "KdaLayer"]
