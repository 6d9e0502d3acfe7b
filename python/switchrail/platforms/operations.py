"""What the engine's models run besides attention, where a platform can bring its own function.

Each class is an operation; its `forward` says how its functions are called, and computes nothing. Of these
the first one serves:

1. what `Serving.register_oot_forward(name, function)` registered;
2. the class's method `forward_<dispatch key>`, for platforms with that dispatch key;
3. the native one: the model definition's own, or for `ChooseTokens` the engine's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

if TYPE_CHECKING:
    import random

    import torch

    from switchrail.params import SamplingParams


class Operation:
    """An operation.

    Attributes:
        name: What it is registered by.
    """

    name: ClassVar[str]

    @staticmethod
    def forward(*args: Any, **kwargs: Any) -> Any:
        """Computes it; a platform's function takes the same arguments."""
        raise NotImplementedError


class RMSNorm(Operation):
    """Root-mean-square normalisation (Zhang and Sennrich, arXiv 1910.07467).

    `forward(x, weight, *, eps, weight_offset)` returns x rsqrt(mean(x^2) + eps) (weight + weight_offset),
    computed in float32 and rounded to x's dtype at the end: x and the result [..., D], weight [D],
    weight_offset 1 where the model keeps its weights around zero, else 0.
    """

    name = "rms_norm"

    @staticmethod
    def forward(x: torch.Tensor, weight: torch.Tensor, *, eps: float, weight_offset: float) -> torch.Tensor:
        """As the class says."""
        raise NotImplementedError


class AddRMSNorm(Operation):
    """A residual sum and its normalisation.

    `forward(x, residual, weight, *, eps, weight_offset)` returns residual + x, rounded to x's dtype, and what
    `RMSNorm` makes of that: x, residual and both results [..., D], weight [D].
    """

    name = "add_rms_norm"

    @staticmethod
    def forward(
        x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, *, eps: float, weight_offset: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As the class says."""
        raise NotImplementedError


class GatedRMSNorm(Operation):
    """Normalisation of what comes out of a linear layer, times its gate.

    `forward(x, gate, weight, *, eps)` returns weight x rsqrt(mean(x^2) + eps), where the second factor is
    rounded to x's dtype, times silu(gate) in float32, rounded to x's dtype: x, gate and the result [..., D],
    weight [D].
    """

    name = "gated_rms_norm"

    @staticmethod
    def forward(x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
        """As the class says."""
        raise NotImplementedError


class Rotary(Operation):
    """The angles of rotary embeddings (Su et al., arXiv 2104.09864); the model definition applies them.

    `forward(position_ids, inv_freq, *, scaling, dtype)` returns the cosines and the sines of position times
    frequency, computed in float32, times scaling, in dtype: position_ids [1, T] int64, inv_freq [D / 2]
    float32, both results [1, T, D], where the second half of the last axis repeats the first.
    """

    name = "rotary"

    @staticmethod
    def forward(
        position_ids: torch.Tensor, inv_freq: torch.Tensor, *, scaling: float, dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As the class says."""
        raise NotImplementedError


class QKNormRope(Operation):
    """Normalisation and rotation of the heads of queries and keys, between their product and attention.

    `forward(q, k, q_weight, k_weight, cos, sin, *, eps, weight_offset, v, cache)` returns q and k with each
    head normalised as `RMSNorm` says, rounded to its dtype, and then its first R elements rotated: x cos +
    rotate(x) sin, where rotate exchanges the halves of R elements and negates what comes first; both products
    and their sum are rounded. q [1, T, H, D] and k [1, T, HKV, D] may be strided views with their last axis
    contiguous; weights [D]; cos and sin [1, T, R] as `Rotary` returns them, R even.

    Where `cache` is given, caches of keys and of values [pages, page, HKV, D], contiguous, with each token's
    row in them [T] int64, pages taken together, the keys are written there, and so is v [1, T, HKV, D]; what
    is returned for k is then of no account.
    """

    name = "qk_norm_rope"

    @staticmethod
    def forward(
        q: torch.Tensor,
        k: torch.Tensor,
        q_weight: torch.Tensor,
        k_weight: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        *,
        eps: float,
        weight_offset: float,
        v: torch.Tensor | None = None,
        cache: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As the class says."""
        raise NotImplementedError


class SiluAndMul(Operation):
    """The activation of a gated feed-forward layer.

    `forward(gate, up)` returns silu(gate) up: all [..., D]. Nobody else holds the arguments, so they may be
    overwritten.
    """

    name = "silu_and_mul"

    @staticmethod
    def forward(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        """As the class says."""
        raise NotImplementedError

    @staticmethod
    def forward_cpu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        """In place: on a host, memory that was not touched before costs more than the arithmetic."""
        from torch.nn.functional import silu

        return silu(gate, inplace=True).mul_(up)


class Products(Operation):
    """Linear layers that are given the same input, such as those of queries, keys and values.

    `forward(x, weight)` returns x weight^T: x [..., D], weight [N, D], the rows of all layers behind one
    another, the result [..., N]. Weights are moved behind one another only where there is a function.
    """

    name = "products"

    @staticmethod
    def forward(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """As the class says."""
        raise NotImplementedError

    @staticmethod
    def forward_cuda(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """One launch, and one reading of the input, instead of several."""
        from torch.nn.functional import linear

        return linear(x, weight)


class GatedDeltaInputs(Operation):
    """What a gated delta layer makes of its input, before the convolution.

    `forward(x, weight, A_log, dt_bias, *, channels)` multiplies x [T, D] with weight [C + Z + 2 HV, D] and
    returns four parts of it: those of queries, keys and values [T, C], C being `channels`, and of the output
    gate [T, Z] as they are; the log of the decay [T, HV] float32, -exp(A_log) softplus(a + dt_bias); and the
    weight of the write [T, HV] in x's dtype, sigmoid(b). The rows of b come before those of a. A_log and
    dt_bias [HV] are float32 or of x's dtype, and the gates are computed in float32. The first two parts may
    be views of the product.
    """

    name = "gated_delta_inputs"

    @staticmethod
    def forward(
        x: torch.Tensor, weight: torch.Tensor, A_log: torch.Tensor, dt_bias: torch.Tensor, *, channels: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """As the class says."""
        raise NotImplementedError


class Experts(Operation):
    """A mixture of gated feed-forward layers (Shazeer et al., arXiv 1701.06538).

    `forward(x, logits, gate_up, down, *, top_k, normalize, shared, rows)` returns for each row of x the sum
    of down_e (silu(gate_e x) (up_e x)) over its experts e, each times its weight: x and the result [T, H],
    logits [T, E] of x's dtype, gate_up [E, 2 I, H], gate's rows before up's, down [E, H, I]. A row's experts
    are the `top_k` with the greatest logits, of equal ones any; their weights are the softmax of the logits
    over all experts, in float32, divided by their sum where `normalize` says so. The last `shared` experts
    are in no softmax: every row has them, with the sigmoid of their logits for a weight. `rows`, [1] int32 on
    the device or None, says how many rows are real: those after them are padding, which reads no expert and
    becomes zeros. The function neither waits for the device nor keeps the weights in another form.
    """

    name = "experts"

    @staticmethod
    def forward(
        x: torch.Tensor,
        logits: torch.Tensor,
        gate_up: torch.Tensor,
        down: torch.Tensor,
        *,
        top_k: int,
        normalize: bool,
        shared: int,
        rows: torch.Tensor | None,
    ) -> torch.Tensor:
        """As the class says."""
        raise NotImplementedError


class ChooseTokens(Operation):
    """One token from each row of logits.

    `forward(logits, params, draws)` is called as `switchrail.engine.sampling.choose`, which documents it.
    """

    name = "choose_tokens"

    @staticmethod
    def forward(
        logits: torch.Tensor, params: Sequence[SamplingParams], draws: Sequence[random.Random]
    ) -> torch.Tensor:
        """As the class says."""
        raise NotImplementedError


OPERATIONS: Final[dict[str, type[Operation]]] = {
    operation.name: operation
    for operation in (
        RMSNorm,
        AddRMSNorm,
        GatedRMSNorm,
        Rotary,
        QKNormRope,
        SiluAndMul,
        Products,
        GatedDeltaInputs,
        Experts,
        ChooseTokens,
    )
}
"""The operations by name."""

__all__ = [
    "OPERATIONS",
    "AddRMSNorm",
    "ChooseTokens",
    "Experts",
    "GatedDeltaInputs",
    "GatedRMSNorm",
    "Operation",
    "Products",
    "QKNormRope",
    "RMSNorm",
    "Rotary",
    "SiluAndMul",
]
