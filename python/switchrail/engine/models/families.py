"""Which model types the engine runs, and where their mixers are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from switchrail.engine.models.attention import GATED_ATTENTION
from switchrail.engine.models.contract import MixerContract
from switchrail.engine.models.decoder_layer import DECODER_LAYER
from switchrail.engine.models.gated_delta import GATED_DELTA
from switchrail.engine.models.gated_delta_net import GATED_DELTA_NET
from switchrail.engine.models.operations import (
    GATED_MLP,
    GATED_RMS_NORM,
    OFFSET_RMS_NORM,
    ROTARY,
    Binding,
)
from switchrail.engine.models.products import QKV
from switchrail.engine.models.softmax import SOFTMAX
from switchrail.engine.models.sparse_block import SPARSE_BLOCK


@dataclass(frozen=True, kw_only=True)
class Family:
    """A modelling module of transformers.

    Attributes:
        module: Its dotted path; the functions that a contract names are hooked there.
        layers: Where the model keeps its decoder layers, from the model with its head.
        mixers: Kind of a layer, as its layout names it -> the mixers of such a layer, by attribute.
        operations: Class of the modelling module -> the operations that it runs, and how; no two of them
            both `prepare`, or both `call`.
        opaque: Classes of the modelling module that a compiled layer runs as they are: modules that take one
            tensor and return one like it, in a way that torch.compile can't trace.
    """

    module: str
    layers: str
    mixers: Mapping[str, Mapping[str, MixerContract]]
    operations: Mapping[str, tuple[Binding, ...]] = field(default_factory=dict)
    opaque: tuple[str, ...] = ()


FAMILIES: Final[Mapping[str, Family]] = {
    "qwen3_next": Family(
        module="transformers.models.qwen3_next.modeling_qwen3_next",
        layers="model.layers",
        mixers={"full_attention": {"self_attn": SOFTMAX}, "gated_delta": {"linear_attn": GATED_DELTA}},
        operations={
            "Qwen3NextDecoderLayer": (DECODER_LAYER,),
            "Qwen3NextRMSNorm": (OFFSET_RMS_NORM,),
            "Qwen3NextRMSNormGated": (GATED_RMS_NORM,),
            "Qwen3NextRotaryEmbedding": (ROTARY,),
            "Qwen3NextMLP": (GATED_MLP,),
            "Qwen3NextAttention": (QKV, GATED_ATTENTION),
            "Qwen3NextGatedDeltaNet": (GATED_DELTA_NET,),
            "Qwen3NextSparseMoeBlock": (SPARSE_BLOCK,),
        },
        opaque=("Qwen3NextSparseMoeBlock",),
    ),
}

__all__ = ["FAMILIES", "Family"]
