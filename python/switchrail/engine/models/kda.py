"""Kimi delta attention, with the modelling module's `causal_conv1d_fn` and `chunk_kimi_delta_attention`."""

from __future__ import annotations

from typing import Any, Final

from switchrail.engine.models.contract import in_engines
from switchrail.engine.models.convolution import before_recurrence
from switchrail.engine.models.delta import dispatch_delta
from switchrail.ops import KdaLayer
from switchrail.pools import DeltaShape


@in_engines
def chunk_kimi_delta_attention(*args: Any, **kwargs: Any) -> Any:
    """The delta rule, with the state in the pool."""
    return dispatch_delta("kda", *args, **kwargs)


KDA: Final = before_recurrence(
    "kda",
    shape=lambda mixer: DeltaShape(heads=mixer.num_heads, value_size=mixer.head_dim, key_size=mixer.head_dim),
    layer=lambda mixer, states: KdaLayer(state=states, scale=mixer.head_dim**-0.5, qk_l2norm=True),
    hooks={"chunk_kimi_delta_attention": chunk_kimi_delta_attention},
)
