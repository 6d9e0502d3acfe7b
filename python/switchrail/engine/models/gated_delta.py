"""Gated delta layers, with the modelling module's `causal_conv1d_fn` and `torch_chunk_gated_delta_rule`."""

from __future__ import annotations

from typing import Any, Final

from switchrail.engine.models.contract import in_engines
from switchrail.engine.models.convolution import before_recurrence
from switchrail.engine.models.delta import dispatch_delta
from switchrail.ops import GatedDeltaLayer
from switchrail.pools import DeltaShape


@in_engines
def torch_chunk_gated_delta_rule(*args: Any, **kwargs: Any) -> Any:
    """The gated delta rule, with the state in the pool."""
    return dispatch_delta("gated_delta", *args, **kwargs)


GATED_DELTA: Final = before_recurrence(
    "gated_delta",
    shape=lambda mixer: DeltaShape(
        heads=mixer.num_v_heads, value_size=mixer.head_v_dim, key_size=mixer.head_k_dim
    ),
    layer=lambda mixer, states: GatedDeltaLayer(state=states, scale=mixer.head_k_dim**-0.5, qk_l2norm=True),
    hooks={"torch_chunk_gated_delta_rule": torch_chunk_gated_delta_rule},
)
