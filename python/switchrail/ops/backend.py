"""The interfaces that a backend implements, one class per op."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch

from switchrail.errors import ArgumentError
from switchrail.ops.batch import PagedBatch, Phase, StateBatch, VerifyBatch

_MADE_BY = {"plan": "`plan` returned for this phase", "record": "`verify` returned"}


def foreign(argument: Literal["plan", "record"], found: object) -> ArgumentError:
    """The error for a plan or a record that is none of the backend's own, or another phase's."""
    name = type(found).__name__
    return ArgumentError(
        f"{argument}: got {name}; asked is what the backend's {_MADE_BY[argument]}",
        argument=argument,
        found=name,
    )


class Backend:
    """An implementation of one op; one instance serves one route plan.

    A backend is constructed with its validated configuration (the object of the type given at registration,
    or None) once per route plan that uses it. Methods write into `out` and into the state in place and return
    None; they never modify another argument, and never wait for the device. A phase that the registration
    does not name need not be implemented.

    What a call may be given is the op's contract, `switchrail.ops.CONTRACTS[op]`, and what breaks it must be
    refused before anything is written: `check(phase, batch, arguments)` does, or, so that a batch is looked
    at once a step and not in each layer, `check_batch(phase, batch)` in `plan` and
    `check_arguments(batch, arguments)` in the phase.
    """

    op: ClassVar[str]
    has_state: ClassVar[bool] = False
    """Whether the op has a recurrent state, which a verification must commit."""

    def __init__(self, config: Any = None) -> None:
        self.config = config

    def plan(self, phase: Phase, batch: Any) -> object:
        """Prepares what all layers of a step share, once a step and phase; each call is given the result."""
        return None

    def verify(self, *args: Any, **kwargs: Any) -> object:
        """Runs drafted tokens, of which it isn't known yet which are accepted.

        Takes what `prefill` takes. An op with a state is given a `VerifyBatch`, and leaves the state as it
        is; what softmax attention is given is a chain.

        Returns:
            What `commit` needs besides: a state for each token, or what it takes to run them again.
        """
        raise NotImplementedError

    def commit(
        self,
        record: object,
        accepted: torch.Tensor,
        *,
        state: torch.Tensor,
        batch: VerifyBatch,
        plan: object,
    ) -> None:
        """Writes the state after the accepted tokens into each sequence's write slot.

        Args:
            record: What `verify` returned for this layer.
            accepted: [N] int64 on the device, the last accepted row of each sequence, counted within it; -1
                where none is, so that the initial state is written. Of padding and of sequences of length
                zero it is not looked at.
            state: The pool that `verify` was given.
            batch: The batch that `verify` was given.
            plan: The plan that `verify` was given.
        """
        raise NotImplementedError


class AttentionBackend(Backend):
    """Causal softmax attention (Vaswani et al., arXiv 1706.03762), multi-head or grouped-query, paged.

    With x_ij = scale q_i . k_j, for each row i: out = sum over j of exp(x_ij) v_j / sum over j of exp(x_ij).

    Shapes: q and out [T, H, D]; k_cache and v_cache [pages, page, HKV, D], H a multiple of HKV; all of one
    dtype (float32, float16 or bfloat16). q may be a strided view with its last axis contiguous; out is
    contiguous.

    Features, each of which only a backend that declares it is ever given, and only where it is used:

    - `window`: position i sees j only where i - j < window (Beltagy et al., arXiv 2004.05150).
    - `soft_cap`: each x becomes soft_cap tanh(x / soft_cap) (Gemma 2, arXiv 2408.00118).
    - `sinks`: [H], float32 or q's dtype; exp of it is added to each row's sum (gpt-oss, arXiv 2508.10925).
    - `lse`: [T, H] float32, to be filled with the natural log of each row's sum.
    - `trees`: the batch of a verification is a `PagedTreeBatch`.
    """

    op = "attention"

    def prefill(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        *,
        out: torch.Tensor,
        batch: PagedBatch,
        plan: object,
        scale: float,
    ) -> None:
        """Attends T packed query rows of N sequences of any length."""
        raise NotImplementedError

    def decode(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        *,
        out: torch.Tensor,
        batch: PagedBatch,
        plan: object,
        scale: float,
    ) -> None:
        """Attends one query row a sequence."""
        raise NotImplementedError


class MlaBackend(Backend):
    """Causal multi-head latent attention (DeepSeek-V2, arXiv 2405.04434) over a paged cache of latents.

    The cache holds for each token its latent c, [R], and the rotated part r of its key, [E]. With the key of
    head h being [W_k^h c, r] and its value W_v^h c, and the query [q_nope, q_rope], the rest is softmax
    attention. Absorbed, as decoding does it: q_nope . W_k c = (W_k^T q_nope) . c, and W_v leaves the sum.

    Shapes: q_nope [T, H, D]; q_rope [T, H, E]; kv_cache [pages, page, L], L = R + E, latent first; w_k
    [H, D, R] or None, where q_nope comes absorbed, so that D is R; w_v [H, V, R] or None, where out stays a
    latent, so that V is R; out [T, H, V]; all of one dtype. q_nope, q_rope, w_k and w_v may be strided views
    with their last axis contiguous; out is contiguous.

    Features: `lse`, [T, H] float32, to be filled with the natural log of each row's sum; `trees`, with which
    the batch of a verification is a `PagedTreeBatch`.
    """

    op = "mla"

    def prefill(
        self,
        q_nope: torch.Tensor,
        q_rope: torch.Tensor,
        kv_cache: torch.Tensor,
        *,
        w_k: torch.Tensor | None,
        w_v: torch.Tensor | None,
        out: torch.Tensor,
        batch: PagedBatch,
        plan: object,
        scale: float,
    ) -> None:
        """Attends T packed query rows of N sequences of any length."""
        raise NotImplementedError

    def decode(
        self,
        q_nope: torch.Tensor,
        q_rope: torch.Tensor,
        kv_cache: torch.Tensor,
        *,
        w_k: torch.Tensor | None,
        w_v: torch.Tensor | None,
        out: torch.Tensor,
        batch: PagedBatch,
        plan: object,
        scale: float,
    ) -> None:
        """Attends one query row a sequence."""
        raise NotImplementedError


class GatedDeltaBackend(Backend):
    """The gated delta rule (Yang et al., "Gated Delta Networks", arXiv 2412.06464).

    With S the [V, K] state of a value head, for each token: S <- exp(g) S; S <- S + beta (v - S k) k^T;
    out = scale S q. With `qk_l2norm`, q and k are first multiplied by rsqrt(sum of squares + 1e-6).

    Shapes: q and k [T, H, K]; v and out [T, HV, V], HV a multiple of H, value head i using q/k head
    i // (HV / H); g [T, HV] float32, the log of the decay, <= 0; beta [T, HV], float32 or q's dtype;
    state [slots, HV, V, K] float32 or bfloat16, updated in place. q, k, v may be strided views with their
    last axis contiguous; out is contiguous, of q's dtype.

    Features, each of which only a backend that declares it is ever given, and only where it is used:

    - `raw_gates`: with `gate` "softplus", the log of the decay is -exp(A_log) softplus(g + dt_bias); with
      "sigmoid" it is lower_bound sigmoid(exp(A_log) (g + dt_bias)); with `beta_scale`, the weight of the
      write is beta_scale sigmoid(beta). A_log [HV] float32; dt_bias [HV], float32 or q's dtype, or None; g
      and beta then float32 or q's dtype.
    - `checkpoints`: states on the way are kept in slots of their own; the batch is a `CheckpointBatch`.
    """

    op = "gated_delta"
    has_state = True

    def prefill(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        g: torch.Tensor,
        beta: torch.Tensor,
        state: torch.Tensor,
        out: torch.Tensor,
        batch: StateBatch,
        plan: object,
        scale: float,
        qk_l2norm: bool,
    ) -> None:
        """Runs T packed tokens of N sequences of any length."""
        raise NotImplementedError

    def decode(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        g: torch.Tensor,
        beta: torch.Tensor,
        state: torch.Tensor,
        out: torch.Tensor,
        batch: StateBatch,
        plan: object,
        scale: float,
        qk_l2norm: bool,
    ) -> None:
        """Runs one token a sequence."""
        raise NotImplementedError


class KdaBackend(Backend):
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

    def prefill(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        g: torch.Tensor,
        beta: torch.Tensor,
        state: torch.Tensor,
        out: torch.Tensor,
        batch: StateBatch,
        plan: object,
        scale: float,
        qk_l2norm: bool,
    ) -> None:
        """Runs T packed tokens of N sequences of any length."""
        raise NotImplementedError

    def decode(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        g: torch.Tensor,
        beta: torch.Tensor,
        state: torch.Tensor,
        out: torch.Tensor,
        batch: StateBatch,
        plan: object,
        scale: float,
        qk_l2norm: bool,
    ) -> None:
        """Runs one token a sequence."""
        raise NotImplementedError


class LightningBackend(Backend):
    """Lightning attention (Qin et al., arXiv 2405.17381): linear attention with a constant decay a head.

    With S the [V, K] state of a head, for each token: S <- exp(g) S + v k^T; out = scale S q.

    Shapes: q and k [T, H, K]; v and out [T, H, V]; g [H] float32, the log of the decay, <= 0 (MiniMax's and
    Ring's slope, negated); state [slots, H, V, K] float32 or bfloat16, updated in place. q, k and v may be
    strided views with their last axis contiguous; out is contiguous, of q's dtype.

    A feature: `checkpoints`, where states on the way are kept in slots of their own; the batch is a
    `CheckpointBatch`.
    """

    op = "lightning"
    has_state = True

    def prefill(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        g: torch.Tensor,
        state: torch.Tensor,
        out: torch.Tensor,
        batch: StateBatch,
        plan: object,
        scale: float,
    ) -> None:
        """Runs T packed tokens of N sequences of any length."""
        raise NotImplementedError

    def decode(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        g: torch.Tensor,
        state: torch.Tensor,
        out: torch.Tensor,
        batch: StateBatch,
        plan: object,
        scale: float,
    ) -> None:
        """Runs one token a sequence."""
        raise NotImplementedError


class Mamba2Backend(Backend):
    """The selective state space of Mamba 2 (Dao and Gu, "Transformers are SSMs", arXiv 2405.21060).

    The time step of a head is dt + dt_bias, then softplus of it if `dt_softplus`, then held between `dt_min`
    and `dt_max`. With h the [P, S] state of a head, for each token: h <- exp(dt A) h + dt x B^T; out =
    h C + D x.

    Shapes: x and out [T, H, P]; B and C [T, G, S], H a multiple of G, head i using group i // (H / G); dt
    [T, H], float32 or x's dtype; A [H] float32, 0 or less (-exp of a model's A_log); D and dt_bias [H],
    float32 or x's dtype, or None; state [slots, H, P, S] float32 or bfloat16, updated in place. x, B and C
    may be strided views with their last axis contiguous; out is contiguous, of x's dtype.

    A feature: `checkpoints`, where states on the way are kept in slots of their own; the batch is a
    `CheckpointBatch`.
    """

    op = "mamba2"
    has_state = True

    def prefill(
        self,
        x: torch.Tensor,
        B: torch.Tensor,
        C: torch.Tensor,
        *,
        dt: torch.Tensor,
        A: torch.Tensor,
        D: torch.Tensor | None,
        dt_bias: torch.Tensor | None,
        state: torch.Tensor,
        out: torch.Tensor,
        batch: StateBatch,
        plan: object,
        dt_softplus: bool,
        dt_min: float,
        dt_max: float,
    ) -> None:
        """Runs T packed tokens of N sequences of any length."""
        raise NotImplementedError

    def decode(
        self,
        x: torch.Tensor,
        B: torch.Tensor,
        C: torch.Tensor,
        *,
        dt: torch.Tensor,
        A: torch.Tensor,
        D: torch.Tensor | None,
        dt_bias: torch.Tensor | None,
        state: torch.Tensor,
        out: torch.Tensor,
        batch: StateBatch,
        plan: object,
        dt_softplus: bool,
        dt_min: float,
        dt_max: float,
    ) -> None:
        """Runs one token a sequence."""
        raise NotImplementedError


class ShortConvBackend(Backend):
    """Depthwise causal convolution along time, with the last W - 1 inputs of each sequence kept as its state.

    out[t, c] = activation(bias[c] + sum over j of weight[c, j] x[t - (W - 1) + j, c]), inputs before the
    sequence's first row coming from the state, oldest first.

    Shapes: x and out [T, C]; weight [C, W]; bias [C] or None; state logically [slots, C, W - 1] with the C
    axis contiguous in memory (strides (C (W - 1), 1, C)), of x's dtype or float32, updated in place. x may be
    a strided view with either axis contiguous; out is contiguous, of x's dtype.

    A feature: `checkpoints`, where states on the way are kept in slots of their own; the batch is a
    `CheckpointBatch`.
    """

    op = "short_conv"
    has_state = True

    def prefill(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        *,
        bias: torch.Tensor | None,
        state: torch.Tensor,
        out: torch.Tensor,
        batch: StateBatch,
        plan: object,
        activation: Literal["silu"] | None,
    ) -> None:
        """Runs T packed rows of N sequences of any length."""
        raise NotImplementedError

    def decode(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        *,
        bias: torch.Tensor | None,
        state: torch.Tensor,
        out: torch.Tensor,
        batch: StateBatch,
        plan: object,
        activation: Literal["silu"] | None,
    ) -> None:
        """Runs one row a sequence."""
        raise NotImplementedError


__all__ = [
    "AttentionBackend",
    "Backend",
    "GatedDeltaBackend",
    "KdaBackend",
    "LightningBackend",
    "Mamba2Backend",
    "MlaBackend",
    "ShortConvBackend",
]
