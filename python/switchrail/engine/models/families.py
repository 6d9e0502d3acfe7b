"""The model types that the engine runs, and where their mixers are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from pkgutil import resolve_name
from typing import Any, Final

from transformers import AutoConfig

from switchrail.engine.models.attention import GATED_ATTENTION
from switchrail.engine.models.contract import MixerContract
from switchrail.engine.models.convolution import SHORT_CONV
from switchrail.engine.models.decoder_layer import DECODER_LAYER, DECODER_LAYERS
from switchrail.engine.models.delta import GATED_DELTA, KDA
from switchrail.engine.models.gated_delta_net import GATED_DELTA_NET
from switchrail.engine.models.latent import LATENT
from switchrail.engine.models.lightning import LIGHTNING, RING_LIGHTNING
from switchrail.engine.models.mamba2 import MAMBA2
from switchrail.engine.models.operations import (
    GATED_MLP,
    GATED_RMS_NORM,
    OFFSET_RMS_NORM,
    ROTARY,
    Binding,
)
from switchrail.engine.models.products import QKV
from switchrail.engine.models.routed_experts import ROUTED_EXPERTS
from switchrail.engine.models.softmax import SOFTMAX, SOFTMAX_OF_CONFIG
from switchrail.engine.models.sparse_block import SPARSE_BLOCK
from switchrail.errors import CheckpointError


@dataclass(frozen=True, kw_only=True)
class Family:
    """A modelling module, of transformers or of this package, and how the engine runs its models.

    Attributes:
        module: The module's dotted path; the functions of contracts are hooked in it.
        mixers: By kind of layer (as in the layout), the mixers of such a layer. The inner key is the dotted
            attribute of the layer that holds the mixer.
        layers: The dotted attribute that leads from the model with its head to the decoder layers.
        operations: Maps the name of a class of the modelling module, or another class's dotted path, to the
            class's operations and how to run them. Of these, at most one has a `Binding.prepare`, and at
            most one has a `Binding.call`.
        opaque: Classes of the modelling module that a compiled layer runs unchanged, because torch.compile
            can't trace them. Their modules take one tensor and return one of the same shape and dtype.
        since: The first transformers version with the module; None if all supported versions have it.
        config: The dotted path of the class that reads the config, if transformers' class for the model type
            can't be used.
    """

    module: str
    mixers: Mapping[str, Mapping[str, MixerContract]]
    layers: str = "model.layers"
    operations: Mapping[str, tuple[Binding, ...]] = field(default_factory=dict)
    opaque: tuple[str, ...] = ()
    since: str | None = None
    config: str | None = None

    def config_class(self) -> Any:
        """The class that reads the config."""
        return AutoConfig if self.config is None else resolve_name(self.config)

    def layers_of(self, model: Any) -> Any:
        """The decoder layers of a model, given the model with its head.

        Raises:
            CheckpointError: The model has no such attribute.
        """
        try:
            return attrgetter(self.layers)(model)
        except AttributeError:
            model_type = model.config.model_type
            raise CheckpointError(
                f"transformers loads no text model of model_type {model_type!r}: its "
                f"{type(model).__name__} has no {self.layers}",
                model_type=model_type,
                found=type(model).__name__,
            ) from None


def _module(name: str) -> str:
    return f"transformers.models.{name}.modeling_{name}"


_ATTENTION: Final = {"self_attn": SOFTMAX}
_LATENT: Final = {"self_attn": LATENT}
_MAMBA2: Final = {"mamba": MAMBA2}
_CONVOLUTION: Final = {"conv": SHORT_CONV}
_WITH_GATED_DELTA: Final = {"full_attention": _ATTENTION, "gated_delta": {"linear_attn": GATED_DELTA}}
_WITH_KDA: Final = {"mla": _LATENT, "kda": {"self_attn": KDA}}
_WITH_MAMBA2: Final = {"full_attention": _ATTENTION, "mamba2": _MAMBA2}
_WITH_CONVOLUTION: Final = {"full_attention": _ATTENTION, "short_conv": _CONVOLUTION}
_WITH_WINDOWS: Final = {"full_attention": _ATTENTION, "sliding_attention": _ATTENTION}

_DEEPSEEK_EXPERTS: Final = {f"{_module('deepseek_v3')}.DeepseekV3Experts": (ROUTED_EXPERTS,)}

_RING: Final = Family(
    module="switchrail.engine.models.ring",
    mixers={
        "lightning": {"self_attn": RING_LIGHTNING},
        "mla": _LATENT,
        "full_attention": _ATTENTION,
    },
    operations=_DEEPSEEK_EXPERTS,
    config="switchrail.engine.models.ring:RingConfig",
)

ARCHITECTURES: Final[Mapping[str, Family]] = {"BailingMoeV2_5ForCausalLM": _RING}
"""The families of architectures whose model type is shared with another family."""

FAMILIES: Final[Mapping[str, Family]] = {
    "qwen3_next": Family(
        module=_module("qwen3_next"),
        mixers=_WITH_GATED_DELTA,
        operations={
            "Qwen3NextModel": (DECODER_LAYERS,),
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
    "qwen3_5_text": Family(module=_module("qwen3_5"), mixers=_WITH_GATED_DELTA),
    "qwen3_5_moe_text": Family(
        module=_module("qwen3_5_moe"),
        mixers=_WITH_GATED_DELTA,
        operations={"Qwen3_5MoeSparseMoeBlock": (SPARSE_BLOCK,)},
        opaque=("Qwen3_5MoeSparseMoeBlock",),
    ),
    "olmo_hybrid": Family(module=_module("olmo_hybrid"), mixers=_WITH_GATED_DELTA),
    "kimi_linear": Family(
        module=_module("kimi_linear"),
        mixers=_WITH_KDA,
        operations={"KimiLinearExperts": (ROUTED_EXPERTS,)},
    ),
    "bailing_hybrid": Family(
        module=_module("bailing_hybrid"),
        mixers=_WITH_KDA,
        operations={"BailingHybridExperts": (ROUTED_EXPERTS,)},
        since="5.20",
    ),
    "bailing_moe_linear": _RING,
    "minimax": Family(
        module=_module("minimax"),
        mixers={
            "full_attention": {"self_attn": SOFTMAX_OF_CONFIG},
            "sliding_attention": {"self_attn": SOFTMAX_OF_CONFIG},
            "lightning": {"self_attn": LIGHTNING},
        },
        operations={"MiniMaxExperts": (ROUTED_EXPERTS,)},
    ),
    "nemotron_h": Family(
        module=_module("nemotron_h"),
        mixers={
            "full_attention": {"mixer": SOFTMAX},
            "mamba2": {"mixer": MAMBA2},
            "moe": {},
            "mlp": {},
        },
    ),
    "bamba": Family(module=_module("bamba"), mixers=_WITH_MAMBA2),
    "granitemoehybrid": Family(
        module=_module("granitemoehybrid"),
        mixers=_WITH_MAMBA2,
        operations={"GraniteMoeHybridExperts": (ROUTED_EXPERTS,)},
    ),
    "falcon_h1": Family(module=_module("falcon_h1"), mixers={"hybrid": {**_MAMBA2, **_ATTENTION}}),
    "zamba2": Family(
        module=_module("zamba2"),
        mixers={
            "mamba2": _MAMBA2,
            "hybrid": {"mamba_decoder.mamba": MAMBA2, "shared_transformer.self_attn": SOFTMAX},
        },
    ),
    "mamba2": Family(
        module=_module("mamba2"), mixers={"mamba2": {"mixer": MAMBA2}}, layers="backbone.layers"
    ),
    "lfm2": Family(module=_module("lfm2"), mixers=_WITH_CONVOLUTION, since="5.22"),
    "lfm2_moe": Family(
        module=_module("lfm2_moe"),
        mixers=_WITH_CONVOLUTION,
        operations={"Lfm2MoeExperts": (ROUTED_EXPERTS,)},
        since="5.22",
    ),
    "lfm3": Family(
        module=_module("lfm3"),
        mixers={**_WITH_WINDOWS, "short_conv": _CONVOLUTION},
        since="5.23",
    ),
    "deepseek_v3": Family(
        module=_module("deepseek_v3"), mixers={"mla": _LATENT}, operations=_DEEPSEEK_EXPERTS
    ),
    "llama": Family(module=_module("llama"), mixers={"full_attention": _ATTENTION}),
    "qwen3": Family(module=_module("qwen3"), mixers=_WITH_WINDOWS),
    "gemma2": Family(module=_module("gemma2"), mixers=_WITH_WINDOWS),
    "gemma3_text": Family(module=_module("gemma3"), mixers=_WITH_WINDOWS),
    "gpt_oss": Family(module=_module("gpt_oss"), mixers=_WITH_WINDOWS),
}


def family_of(config: Mapping[str, Any]) -> Family | None:
    """The family of a model with this configuration; None if the engine has no such family."""
    listed = config.get("architectures")
    for architecture in listed if isinstance(listed, list) else ():
        if isinstance(architecture, str) and architecture in ARCHITECTURES:
            return ARCHITECTURES[architecture]
    return FAMILIES.get(config["model_type"])
