"""The operations: computations other than the ops, for which a platform can provide its own functions.

Each class is an operation. The class documents the arguments of the operation's functions; its `forward` only
declares their names. The engine and the SGLang bridge use the first of these functions that exists:

1. the function that `Serving.register_oot_forward(name, function)` registered;
2. the class's method `forward_<dispatch key>`, on platforms with that dispatch key;
3. the function that a plugin or the program registered for the device with `Registrar.operation`;
4. the native function: the model definition's own; or Switchrail's if models define none, as for
   `ChooseTokens`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

if TYPE_CHECKING:
    import torch


class Operation:
    """An operation.

    Attributes:
        name: The name under which functions for the operation are registered.
    """

    name: ClassVar[str]

    @staticmethod
    def forward(*args: Any, **kwargs: Any) -> Any:
        """Declares the arguments of the operation's functions; computes nothing."""
        raise NotImplementedError


class RMSNorm(Operation):
    """Root-mean-square normalisation (Zhang and Sennrich, arXiv 1910.07467).

    `forward(x, weight, *, eps, weight_offset)` returns x rsqrt(mean(x^2) + eps) (weight + weight_offset),
    computed in float32 and rounded once to x's dtype. x and the result are [..., D], weight is [D].
    weight_offset is 1 if the model stores weights centred at zero, otherwise 0.
    """

    name = "rms_norm"
    forward = staticmethod(lambda x, weight, *, eps, weight_offset: NotImplemented)


class AddRMSNorm(Operation):
    """A residual sum and its normalisation.

    `forward(x, residual, weight, *, eps, weight_offset)` returns residual + x, rounded to x's dtype, and
    `RMSNorm` of that sum. x, residual and both results are [..., D], weight is [D].
    """

    name = "add_rms_norm"
    forward = staticmethod(lambda x, residual, weight, *, eps, weight_offset: NotImplemented)


class GatedRMSNorm(Operation):
    """Normalises the output of a linear-attention layer and multiplies it by silu of the layer's gate.

    `forward(x, gate, weight, *, eps)` returns weight y silu(gate), where y = x rsqrt(mean(x^2) + eps) is
    rounded to x's dtype. silu(gate) and the last product are computed in float32, and the result is rounded
    to x's dtype. x, gate and the result are [..., D], weight is [D].
    """

    name = "gated_rms_norm"
    forward = staticmethod(lambda x, gate, weight, *, eps: NotImplemented)


class Rotary(Operation):
    """The cosines and sines of rotary embeddings (Su et al., arXiv 2104.09864). The model definition rotates.

    `forward(position_ids, inv_freq, *, scaling, dtype)` returns the cosines and the sines of position times
    frequency, computed in float32, times scaling, in dtype. position_ids is [1, T] int64, inv_freq [D / 2]
    float32. Both results are [1, T, D]; the second half of the last axis repeats the first.
    """

    name = "rotary"
    forward = staticmethod(lambda position_ids, inv_freq, *, scaling, dtype: NotImplemented)


class QKNormRope(Operation):
    """Normalises and rotates the heads of queries and keys, between their projection and attention.

    `forward(q, k, q_weight, k_weight, cos, sin, *, eps, weight_offset, v, cache)` returns q and k. Each head
    is normalised by `RMSNorm` and rounded to its dtype. Then its first R elements are rotated: x cos +
    rotate(x) sin, where rotate swaps the two halves of the R elements and negates the new first half. Both
    products and their sum are rounded. q [1, T, H, D] and k [1, T, HKV, D] may be strided views with a
    contiguous last axis. The weights are [D]. cos and sin are [1, T, R] as `Rotary` returns them, with R
    even.

    `cache` is None or three tensors: the caches of keys and of values, each contiguous [pages, page, HKV, D],
    and the row of each token in them, [T] int64, counted over all pages. If it is given, the
    keys and v [1, T, HKV, D] are written there, and the returned k is unused.
    """

    name = "qk_norm_rope"
    forward = staticmethod(
        lambda q, k, q_weight, k_weight, cos, sin, *, eps, weight_offset, v=None, cache=None: NotImplemented
    )


class SiluAndMul(Operation):
    """The activation of a gated feed-forward layer.

    `forward(gate, up)` returns silu(gate) up, all [..., D]. The arguments may be overwritten, because the
    caller does not use them afterwards.
    """

    name = "silu_and_mul"
    forward = staticmethod(lambda gate, up: NotImplemented)

    @staticmethod
    def forward_cpu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        """Computes in place: on a CPU, touching new memory costs more than the arithmetic."""
        from torch.nn.functional import silu

        return silu(gate, inplace=True).mul_(up)


class SigmoidGate(Operation):
    """The output gate of an attention layer.

    `forward(x, gate)` returns x sigmoid(gate), where the sigmoid is rounded to x's dtype. All are [..., D];
    gate may be a strided view with its last axis contiguous.
    """

    name = "sigmoid_gate"
    forward = staticmethod(lambda x, gate: NotImplemented)


class Products(Operation):
    """A linear layer, or several with the same input, such as those of queries, keys and values.

    `forward(x, weight)` returns x weight^T. x is [..., D], weight [N, D] with the rows of all layers
    concatenated, and the result [..., N]. The engine only concatenates the weights if the platform
    has a function for this operation.
    """

    name = "products"
    forward = staticmethod(lambda x, weight: NotImplemented)


class GatedDeltaInputs(Operation):
    """The inputs of a gated delta layer, before the convolution.

    `forward(x, weight, A_log, dt_bias, *, channels)` multiplies x [T, D] by weight [C + Z + 2 HV, D]
    transposed and returns four tensors: the convolution's input (queries, keys and values) [T, C] with C =
    `channels`; the output gate [T, Z]; the log of the decay [T, HV] float32, which is -exp(A_log) softplus(a
    + dt_bias); and the write strength [T, HV] in x's dtype, which is sigmoid(b). The weight's last
    2 HV rows give b and then a. A_log and dt_bias [HV] are float32 or of x's dtype; the gates are computed in
    float32. The first two results may be views of the product.
    """

    name = "gated_delta_inputs"
    forward = staticmethod(lambda x, weight, A_log, dt_bias, *, channels: NotImplemented)


class Experts(Operation):
    """A mixture of gated feed-forward layers (Shazeer et al., arXiv 1701.06538).

    `forward(x, logits, gate_up, down, *, top_k, normalize, shared, rows)` returns the weighted sum of down_e
    (silu(gate_e x) (up_e x)) over the experts e of each row. x and the result are [T, H] with the hidden
    size H, logits [T, E] of x's dtype, gate_up [E, 2 I, H] with gate's rows before up's, and down [E, H, I].

    The last `shared` experts are shared; the others are routed. A row uses the `top_k` routed experts with
    the greatest logits (ties are broken arbitrarily), weighted by the float32 softmax over the logits of all
    routed experts. If `normalize` is set, these weights are divided by the sum of the chosen ones. Every row
    also uses the shared experts, weighted by the sigmoid of their logits.

    `rows` is None or the number of real rows, [1] int32 on the device. The rows after them are padding: they
    read no expert's weights, and their results are zeros. The function must neither wait for the device nor
    keep a converted copy of the weights.
    """

    name = "experts"
    forward = staticmethod(lambda x, logits, gate_up, down, *, top_k, normalize, shared, rows: NotImplemented)


class RoutedExperts(Operation):
    """`Experts` for models whose own code chooses each row's experts, as routers with groups or biases do.

    `forward(x, ids, weights, gate_up, down, *, rows)` returns the sum of weights[:, k] down_e (silu(gate_e x)
    (up_e x)) over the experts e = ids[:, k] of each row. ids [T, K] are integers; the K ids of one row are
    distinct. weights [T, K] have any floating dtype. Both may be strided views with a contiguous last axis.
    The other arguments and the result are the same as for `Experts`, without shared experts.
    """

    name = "routed_experts"
    forward = staticmethod(lambda x, ids, weights, gate_up, down, *, rows: NotImplemented)


class RaggedAttention(Operation):
    """Softmax attention over keys and values that are packed like the queries, without a cache.

    `forward(q, k, v, batch, *, scale, causal)` returns the output [T, H, V] in q's dtype and its natural
    log-sum-exp [T, H] in float32, or float64 if q is float64. Rows that attend to nothing have zeros and
    -inf. q is [T, H, D], k [S, HKV, D] and v [S, HKV, V], with H a multiple of HKV. All may be strided views
    with a contiguous last axis, and V may differ from D. `batch` is a `switchrail.ops.ragged.RaggedBatch`,
    which has the rows and the keys of each sequence. If causal, the last row attends to all keys of its
    sequence, and each earlier row to one key less than the next row; otherwise every row attends to all keys.
    Two results over parts of the keys can be merged by their log-sum-exps (`switchrail.ops.softmax.merge`),
    as in MLA's prefill in chunks.
    """

    name = "ragged_attention"
    forward = staticmethod(lambda q, k, v, batch, *, scale, causal: NotImplemented)

    @staticmethod
    def forward_cpu(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Plain torch, which also runs on other devices."""
        from switchrail.ops.ragged import ragged_attention

        return ragged_attention(*args, **kwargs)


class DecodeRows(Operation):
    """Computes the inputs of a captured decode from each row's position and slot.

    `forward(rows, last_tokens, page_table, *, page_size, out)` has the arguments of
    `switchrail.engine.inputs.decode_rows`, which documents them.
    """

    name = "decode_rows"
    forward = staticmethod(lambda rows, last_tokens, page_table, *, page_size, out: NotImplemented)


class VerifyRows(Operation):
    """Computes the inputs of a captured verification of drafts from each sequence's length and slot.

    `forward(tasks, drafts, last_tokens, page_table, *, page_size, pending, out)` has the arguments of
    `switchrail.engine.verify_inputs.verify_rows`, which documents them.
    """

    name = "verify_rows"
    forward = staticmethod(
        lambda tasks, drafts, last_tokens, page_table, *, page_size, pending, out: NotImplemented
    )


class AcceptRows(Operation):
    """Finds the drafts that a verification accepts, from the token chosen after each of its rows.

    `forward(chosen, ids, rows, parents, slots, last_tokens, *, are_trees, pending, out)` has the arguments of
    `switchrail.engine.accept.accept_rows`, which documents them.
    """

    name = "accept_rows"
    forward = staticmethod(
        lambda chosen, ids, rows, parents, slots, last_tokens, *, are_trees, pending, out: NotImplemented
    )


class ChooseTokens(Operation):
    """Chooses one token from each row of logits.

    `forward(logits, params, draws)` has the signature of `switchrail.engine.sampling.choose`, which documents
    it. If `switchrail.params.capturable` decorates the function and no hook is on it, the graphs of greedy
    decodes and verifications include it; otherwise the engine calls it after the replay.
    """

    name = "choose_tokens"
    forward = staticmethod(lambda logits, params, draws: NotImplemented)


OPERATIONS: Final[dict[str, type[Operation]]] = {
    operation.name: operation
    for operation in (
        RMSNorm,
        AddRMSNorm,
        GatedRMSNorm,
        Rotary,
        QKNormRope,
        SiluAndMul,
        SigmoidGate,
        Products,
        GatedDeltaInputs,
        Experts,
        RoutedExperts,
        RaggedAttention,
        DecodeRows,
        VerifyRows,
        AcceptRows,
        ChooseTokens,
    )
}
"""The operations by name."""
