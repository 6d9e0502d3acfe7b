"""The definition of Ring 2.5, Ling 2.6 and Ring-linear 2.0, which transformers lacks.

Most layers have lightning attention. The last layer of each group has latent attention (Ring 2.5, Ling
2.6) or grouped-query attention (Ring-linear 2.0). Latent attention and experts are the same as in DeepSeek
V3.
"""

from __future__ import annotations

import copy
import math
from typing import Any, ClassVar, Final, cast

import torch
from huggingface_hub.dataclasses import strict
from torch import nn
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, DeepseekV3Config, GenerationMixin
from transformers.conversion_mapping import (
    get_checkpoint_conversion_mapping,
    register_checkpoint_conversion_mapping,
)
from transformers.core_model_loading import WeightRenaming
from transformers.masking_utils import create_causal_mask
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.deepseek_v3.modeling_deepseek_v3 import (
    DeepseekV3Attention,
    DeepseekV3MLP,
    DeepseekV3MoE,
    DeepseekV3PreTrainedModel,
    DeepseekV3RMSNorm,
    eager_attention_forward,
)
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

Rotary = tuple[torch.Tensor, torch.Tensor]
"""Cosines and sines, each [B, T, size of the rotated part of a head]."""

_REQUIRED: Final = {
    "score_function": "sigmoid",
    "moe_router_enable_expert_bias": True,
    "use_bias": False,
    "use_qkv_bias": False,
    "linear_silu": False,
    "use_linear_silu": False,
    "linear_rope": True,
    "norm_head": False,
    "lightning_layerwise_decay": True,
}
"""Config keys, each with the only value that this definition implements."""


@strict
class RingConfig(DeepseekV3Config):  # type: ignore[misc]
    """The configuration, with the key names of published checkpoints.

    Attributes:
        head_dim: Size of a head of lightning and grouped-query attention.
        kv_lora_rank: Size of a latent; None for grouped-query attention.
        layer_group_size: Number of layers in a group; the last one has softmax attention.
        group_norm_size: Number of channel groups in which the output of lightning attention is normalised.
        partial_rotary_factor: The fraction of a head that is rotated, from its start; latent attention
            ignores it.
        use_qk_norm: Whether queries and keys are normalised.
        moe_shared_expert_intermediate_size: Inner size of each shared expert; None for the inner
            size of the other experts.
    """

    model_type = "bailing_moe_linear"
    attribute_map: ClassVar[dict[str, str]] = {
        "num_local_experts": "n_routed_experts",
        "num_experts": "n_routed_experts",
        "num_shared_experts": "n_shared_experts",
        "num_nextn_predict_layers": "num_mtp_layers",
    }

    head_dim: int | None = None
    kv_lora_rank: int | None = None
    layer_group_size: int = 1
    group_norm_size: int = 1
    partial_rotary_factor: float = 1.0
    use_qk_norm: bool = False
    moe_shared_expert_intermediate_size: int | None = None
    num_mtp_layers: int = 0

    def __post_init__(self, **kwargs: Any) -> None:
        head_dim = self.head_dim or self.hidden_size // self.num_attention_heads
        super().__post_init__(**kwargs)
        self.head_dim = head_dim
        if self.kv_lora_rank is not None:
            self.num_key_value_heads = self.num_attention_heads
        for key, value in _REQUIRED.items():
            if (found := kwargs.get(key, value)) != value:
                raise ValueError(f"{key} is {found!r}; valid: {value!r}")
        rotary = self.rope_parameters["rope_type"]
        if rotary != "default":
            raise ValueError(f"rope_scaling has type {rotary!r}; valid: no scaling")
        heads = kwargs.get("num_kv_heads_for_linear_attn") or self.num_attention_heads
        if heads != self.num_attention_heads:
            raise ValueError(f"num_kv_heads_for_linear_attn is {heads}; valid: {self.num_attention_heads}")
        if self.num_hidden_layers % self.layer_group_size:
            raise ValueError(
                f"num_hidden_layers is {self.num_hidden_layers}; valid: a multiple of layer_group_size, "
                f"which is {self.layer_group_size}"
            )

    @classmethod
    def get_config_dict(cls, *args: Any, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Read a config file, and set its model type: the config of Ring 2.5 has the model type of Ling 3."""
        values, unused = super().get_config_dict(*args, **kwargs)
        return {**values, "model_type": cls.model_type}, unused


def decays(heads: int, layer: int, layers: int) -> torch.Tensor:
    """The logarithms of a lightning layer's decays: [heads] float32, negative.

    The result is the negative of ALiBi's slopes (Press et al., "Train short, test long", 2021), times a
    factor that decreases from layer to layer. Layers are counted from 0. The factor is 1 (plus 1e-5) in layer
    1, as in the definition that was published with the weights; in SGLang 0.5.23 and vLLM it is 1 in layer 0.
    """
    whole = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * i / whole) for i in range(1, whole + 1)]
    slopes += [2 ** (-4 * i / whole) for i in range(1, 2 * (heads - whole) + 1, 2)]
    return -torch.tensor(slopes) * (1 - (layer - 1) / (layers - 1) + 1e-5)


def lightning_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, decay: torch.Tensor, **kwargs: Any
) -> torch.Tensor:
    """Lightning attention over whole sequences, in float32.

    Args:
        query: [B, T, H, D].
        key: [B, T, H, D].
        value: [B, T, H, D].
        decay: [H], the logarithms of the heads' decays.
        **kwargs: Unused by this function; hooks read them.

    Returns:
        [B, T, H, D].
    """
    q, k, v = (x.transpose(1, 2).float() for x in (query, key, value))
    place = torch.arange(q.shape[2], device=q.device)
    distance = place[:, None] - place
    weights = (distance * decay.to(q.device)[:, None, None]).exp().masked_fill(distance < 0, 0.0)
    out = (q @ k.transpose(-1, -2) * weights) @ v * q.shape[-1] ** -0.5
    return cast("torch.Tensor", out.transpose(1, 2).to(query.dtype))


def _rotate(query: torch.Tensor, key: torch.Tensor, rotary: Rotary) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate the first part of each head; query and key are [B, H, T, D]."""
    size = rotary[0].shape[-1]
    q, k = apply_rotary_pos_emb(query[..., :size], key[..., :size], *rotary)
    return torch.cat((q, query[..., size:]), dim=-1), torch.cat((k, key[..., size:]), dim=-1)


class GroupNorm(nn.Module):
    """Root-mean-square normalisation of each group of channels, times weights and the sigmoid of a gate."""

    def __init__(self, size: int, groups: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.groups = groups
        self.eps = eps

    def forward(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """Normalise x [..., size]."""
        grouped: torch.Tensor = x.float().unflatten(-1, (self.groups, -1))  # type: ignore[no-untyped-call]
        scaled = grouped * torch.rsqrt(grouped.square().mean(-1, keepdim=True) + self.eps)
        gated = self.weight * scaled.flatten(-2) * gate.float().sigmoid()
        return gated.to(x.dtype)


class Projections(nn.Module):
    """Queries, keys and values from one product, normalised and rotated; the base of two kinds of layers."""

    def __init__(self, config: RingConfig, key_heads: int) -> None:
        super().__init__()
        self.config = config
        self.head_dim = cast("int", config.head_dim)
        self.heads = (config.num_attention_heads, key_heads, key_heads)
        self.scaling = self.head_dim**-0.5
        self.query_key_value = nn.Linear(config.hidden_size, sum(self.heads) * self.head_dim, bias=False)
        self.o_proj = nn.Linear(self.heads[0] * self.head_dim, config.hidden_size, bias=False)
        if config.use_qk_norm:
            self.query_layernorm = DeepseekV3RMSNorm(self.head_dim, eps=config.rms_norm_eps)
            self.key_layernorm = DeepseekV3RMSNorm(self.head_dim, eps=config.rms_norm_eps)

    def project(self, hidden_states: torch.Tensor, rotary: Rotary) -> tuple[torch.Tensor, ...]:
        """Maps [B, T, hidden] to queries, keys and values, each [B, heads, T, D]."""
        heads = self.query_key_value(hidden_states).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        query, key, value = heads.split(self.heads, dim=1)
        if self.config.use_qk_norm:
            query, key = self.query_layernorm(query), self.key_layernorm(key)
        return (*_rotate(query, key, rotary), value)


class RingLightningAttention(Projections):
    """Lightning attention."""

    def __init__(self, config: RingConfig, layer_idx: int) -> None:
        super().__init__(config, config.num_attention_heads)
        self.layer_idx = layer_idx
        self.g_proj = nn.Linear(config.hidden_size, self.o_proj.in_features, bias=False)
        self.g_norm = GroupNorm(self.o_proj.in_features, config.group_norm_size, config.rms_norm_eps)

    def decays(self) -> torch.Tensor:
        """The logarithms of the layer's decays; see the function `decays`."""
        return decays(self.heads[0], self.layer_idx, self.config.num_hidden_layers)

    def forward(
        self, hidden_states: torch.Tensor, position_embeddings: Rotary, **kwargs: Any
    ) -> tuple[torch.Tensor, None]:
        """Maps [B, T, hidden] to the same shape."""
        q, k, v = (x.transpose(1, 2) for x in self.project(hidden_states, position_embeddings))
        out = lightning_attention(q, k, v, self.decays(), **kwargs)
        return self.o_proj(self.g_norm(out.flatten(2), self.g_proj(hidden_states))), None


class RingAttention(Projections):
    """Grouped-query attention."""

    def __init__(self, config: RingConfig, layer_idx: int) -> None:
        super().__init__(config, config.num_key_value_heads)
        self.layer_idx = layer_idx
        self.num_key_value_groups = config.num_attention_heads // config.num_key_value_heads
        self.is_causal = True

    def forward(
        self,
        hidden_states: torch.Tensor,
        position_embeddings: Rotary,
        attention_mask: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Maps [B, T, hidden] to the same shape; also returns the weights if the implementation does."""
        q, k, v = self.project(hidden_states, position_embeddings)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention_forward
        )
        out, weights = attend(self, q, k, v, attention_mask, scaling=self.scaling, dropout=0.0, **kwargs)
        return self.o_proj(out.flatten(2)), weights


class RingExperts(DeepseekV3MoE):  # type: ignore[misc]
    """Experts that are chosen in groups, and shared experts, which may have a different size."""

    def __init__(self, config: RingConfig) -> None:
        super().__init__(config)
        inner = config.moe_shared_expert_intermediate_size or config.moe_intermediate_size
        self.shared_experts = DeepseekV3MLP(config, intermediate_size=inner * config.n_shared_experts)


class RingDecoderLayer(nn.Module):
    """A mixer, then an MLP or (after the first layers) experts."""

    def __init__(self, config: RingConfig, layer_idx: int) -> None:
        super().__init__()
        mixer: type[nn.Module] = RingLightningAttention
        if (layer_idx + 1) % config.layer_group_size == 0:
            mixer = RingAttention if config.kv_lora_rank is None else DeepseekV3Attention
        self.self_attn = mixer(config, layer_idx)
        is_dense = layer_idx < config.first_k_dense_replace
        self.mlp = DeepseekV3MLP(config) if is_dense else RingExperts(config)
        self.input_layernorm = DeepseekV3RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = DeepseekV3RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, hidden_states: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        """Maps [B, T, hidden] to the same shape; the other arguments are passed to the mixer."""
        mixed, _ = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **kwargs)
        hidden_states = hidden_states + mixed
        return cast("torch.Tensor", hidden_states + self.mlp(self.post_attention_layernorm(hidden_states)))


class RingModel(DeepseekV3PreTrainedModel):  # type: ignore[misc]
    """Embeddings, layers and the last normalisation."""

    config_class = RingConfig
    _can_record_outputs: ClassVar[dict[str, Any]] = {}

    def __init__(self, config: RingConfig) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, config.pad_token_id)
        self.layers = nn.ModuleList(RingDecoderLayer(config, i) for i in range(config.num_hidden_layers))
        self.norm = DeepseekV3RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        rotated = {"linear": int(cast("int", config.head_dim) * config.partial_rotary_factor)}
        if config.kv_lora_rank is not None:
            rotated["latent"] = config.qk_rope_head_dim
        self.rotary_emb = nn.ModuleDict({name: _rotary(config, size) for name, size in rotated.items()})
        self.post_init()

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Maps token ids [B, T] to [B, T, hidden]. Caches of transformers are not supported."""
        hidden_states = self.embed_tokens(input_ids)
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
        mask = create_causal_mask(
            config=self.config,
            inputs_embeds=hidden_states,
            attention_mask=attention_mask,
            past_key_values=None,
            position_ids=position_ids,
        )
        rotary = {name: part(hidden_states, position_ids) for name, part in self.rotary_emb.items()}
        for layer in self.layers:
            kind = "latent" if isinstance(layer.self_attn, DeepseekV3Attention) else "linear"
            hidden_states = layer(
                hidden_states, position_embeddings=rotary[kind], attention_mask=mask, **kwargs
            )
        return cast("torch.Tensor", self.norm(hidden_states))


def _rotary(config: RingConfig, size: int) -> LlamaRotaryEmbedding:
    """The rotary embedding of `size` channels of a head."""
    own = copy.copy(config)
    own.head_dim = size
    own.rope_parameters = {**config.rope_parameters, "partial_rotary_factor": 1.0}
    return LlamaRotaryEmbedding(own)


class RingForCausalLM(DeepseekV3PreTrainedModel, GenerationMixin):  # type: ignore[misc]
    """The model with its head."""

    config_class = RingConfig
    _can_record_outputs: ClassVar[dict[str, Any]] = {}
    _tied_weights_keys: ClassVar[dict[str, str]] = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config: RingConfig) -> None:
        super().__init__(config)
        self.model = RingModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        first = config.num_hidden_layers
        drafts = range(first, first + config.num_mtp_layers)
        self._keys_to_ignore_on_load_unexpected = [rf"^model\.layers\.{layer}\." for layer in drafts]
        self.post_init()

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        past_key_values: None = None,
        use_cache: bool = False,
        logits_to_keep: int | torch.Tensor = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Maps token ids [B, T] to logits. `logits_to_keep`: the number of last rows, or the rows."""
        if past_key_values is not None or use_cache:
            raise ValueError("this definition has no cache; valid: use_cache=False, without past_key_values")
        rows = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        hidden_states = self.model(input_ids, attention_mask, position_ids, **kwargs)
        return CausalLMOutputWithPast(logits=self.lm_head(hidden_states[:, rows]))


AutoConfig.register(RingConfig.model_type, RingConfig)
AutoModel.register(RingConfig, RingModel)
AutoModelForCausalLM.register(RingConfig, RingForCausalLM)
register_checkpoint_conversion_mapping(
    RingConfig.model_type,
    [
        *(get_checkpoint_conversion_mapping("deepseek_v3") or ()),
        WeightRenaming(r"^model\.word_embeddings\.", "model.embed_tokens."),
        WeightRenaming(r"\.attention\.", ".self_attn."),
        WeightRenaming(r"\.self_attn\.dense\.", ".self_attn.o_proj."),
        WeightRenaming(r"\.mlp\.gate\.expert_bias", ".mlp.gate.e_score_correction_bias"),
    ],
)
