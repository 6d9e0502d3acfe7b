"""A small checkpoint of each family, made by transformers from a seed, whose logits depend on earlier tokens.

With plain random weights, logits would depend only on the newest token, so an engine that forgets everything
would pass. Here, embeddings are small compared with the mixers' outputs, and states decay slowly.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from switchrail.engine.models.families import family_of

from tests.engine.conftest import byte_tokenizer
from tests.sizes import GATED_DELTA

LINEAR, FULL, SLIDING = "linear_attention", "full_attention", "sliding_attention"

_COMMON: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": False,
    "pad_token_id": 256,
    "bos_token_id": None,
    "eos_token_id": 256,
    "dtype": "float32",
}
_GATED_DELTA: dict[str, Any] = {
    **GATED_DELTA,
    "layer_types": [LINEAR, FULL, LINEAR],
}
_EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
}
_LATENTS: dict[str, Any] = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "q_lora_rank": None,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "num_experts": 4,
    "num_experts_per_token": 2,
    "moe_intermediate_size": 16,
    "num_expert_group": 1,
    "topk_group": 1,
}
_LINEAR: dict[str, Any] = {
    "num_hidden_layers": 4,
    "head_dim": 16,
    "group_norm_size": 2,
    "first_k_dense_replace": 1,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "num_shared_experts": 1,
    "moe_intermediate_size": 16,
    "moe_shared_expert_intermediate_size": 24,
    "n_group": 2,
    "topk_group": 1,
    "routed_scaling_factor": 2.5,
    "score_function": "sigmoid",
    "moe_router_enable_expert_bias": True,
    "use_qk_norm": True,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e4,
    "rope_scaling": None,
    "partial_rotary_factor": 0.5,
}
_MAMBA2: dict[str, Any] = {
    "mamba_n_heads": 8,
    "mamba_n_groups": 2,
    "mamba_d_state": 16,
    "mamba_d_head": "auto",
    "mamba_d_conv": 4,
    "mamba_expand": 2,
}
_WINDOW: dict[str, Any] = {"head_dim": 16, "sliding_window": 20}

_ALL: dict[str, dict[str, Any]] = {
    "qwen3_5_text": _GATED_DELTA,
    "qwen3_5_moe_text": {**_GATED_DELTA, **_EXPERTS},
    "olmo_hybrid": {
        **_GATED_DELTA,
        "num_key_value_heads": 4,
        "linear_num_key_heads": 4,
        "linear_allow_neg_eigval": True,
    },
    "kimi_linear": {
        **_LATENTS,
        "layer_types": [LINEAR, FULL, LINEAR],
        "linear_num_heads": 2,
        "linear_head_dim": 16,
        "linear_conv_kernel_dim": 4,
        "first_k_dense_replace": 1,
    },
    "bailing_hybrid": {**_LATENTS, "head_dim": 16, "layer_types": [LINEAR, FULL, LINEAR]},
    "bailing_moe_linear": {**_LINEAR, "layer_group_size": 2},
    "bailing_moe_v2_5": {
        **_LINEAR,
        **_LATENTS,
        "q_lora_rank": 12,
        "rope_interleave": True,
        "num_kv_heads_for_linear_attn": 4,
        "layer_group_size": 3,
        "num_hidden_layers": 6,
    },
    "minimax": {
        "num_local_experts": 4,
        "layer_types": [LINEAR, FULL, LINEAR],
        "head_dim": 16,
        "block_size": 16,
    },
    "nemotron_h": {
        "head_dim": 16,
        "mamba_num_heads": 4,
        "mamba_head_dim": 16,
        "n_groups": 2,
        "ssm_state_size": 16,
        "conv_kernel": 4,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "moe_shared_expert_intermediate_size": 16,
        "layers_block_type": [LINEAR, "moe", FULL, "mlp", LINEAR],
    },
    "bamba": {**_MAMBA2, "attn_layer_indices": [1], "num_hidden_layers": 3},
    "granitemoehybrid": {
        **_MAMBA2,
        "layer_types": ["mamba", "attention", "mamba"],
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 32,
    },
    "falcon_h1": {**_MAMBA2, "mamba_d_ssm": 128, "num_hidden_layers": 2},
    "zamba2": {
        "n_mamba_heads": 8,
        "mamba_ngroups": 2,
        "mamba_d_state": 16,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "num_key_value_heads": 4,
        "layers_block_type": ["mamba", "hybrid", "hybrid", "hybrid"],
        "num_mem_blocks": 2,
        "use_shared_attention_adapter": True,
        "adapter_rank": 4,
        "use_mem_rope": True,
    },
    "mamba2": {
        "num_heads": 8,
        "head_dim": 16,
        "expand": 2,
        "n_groups": 2,
        "state_size": 16,
        "num_hidden_layers": 2,
    },
    "lfm2": {"layer_types": ["conv", FULL, "conv", "conv"], "conv_L_cache": 3},
    "lfm2_moe": {**_EXPERTS, "num_dense_layers": 1, "layer_types": ["conv", "conv", FULL], "conv_L_cache": 3},
    "lfm3": {**_WINDOW, "layer_types": ["conv", SLIDING, FULL, "conv"]},
    "deepseek_v3": {
        **_LATENTS,
        "q_lora_rank": 12,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "first_k_dense_replace": 1,
        "num_hidden_layers": 2,
    },
    "llama": {"num_hidden_layers": 2},
    "qwen3": {**_WINDOW, "use_sliding_window": True, "layer_types": [SLIDING, FULL]},
    "gemma2": {**_WINDOW, "num_hidden_layers": 2, "query_pre_attn_scalar": 16, "attn_logit_softcapping": 2.0},
    "gemma3_text": {**_WINDOW, "layer_types": [SLIDING, FULL], "query_pre_attn_scalar": 16},
    "gpt_oss": {**_WINDOW, "num_hidden_layers": 2, "num_local_experts": 4, "num_experts_per_tok": 2},
}

_PUBLISHED = {
    "bailing_moe_linear": {"architectures": ["BailingMoeLinearV2ForCausalLM"]},
    "bailing_moe_v2_5": {"model_type": "bailing_hybrid", "architectures": ["BailingMoeV2_5ForCausalLM"]},
}
"""Keys of published configs, for models whose definition is Switchrail's own."""


def _published(name: str) -> dict[str, Any]:
    """The keys that determine the family of a config."""
    return {"model_type": name, **_PUBLISHED.get(name, {})}


CONFIGS = {
    name: config
    for name, config in _ALL.items()
    if (since := getattr(family_of(_published(name)), "since", None)) is None
    or [*map(int, transformers.__version__.split(".")[:2])] >= [*map(int, since.split("."))]
}
"""Model type -> its config, without the keys that all configs share; only families that the installed
transformers has."""


_MEMORY = {"A_log": (-4, -1), "dt_bias": (-1, 1)}

MEMORIES = {"bailing_hybrid": {"A_log": (0, 0.5), "dt_bias": (-7, -3)}}
"""Ranges of the gates' parameters, if they differ from `_MEMORY`. The log decay of bailing_hybrid is
lower_bound * sigmoid(exp(A_log) * (x + dt_bias))."""


def make(model_type: str, folder: Path, seed: int = 0, **changes: object) -> Path:
    """Save a model whose logits depend on tokens before the newest one, and a tokenizer."""
    torch.manual_seed(seed)
    values = {**_COMMON, **_ALL[model_type], **changes}
    words = values.get("layer_types") or values.get("layers_block_type")
    if words is not None and model_type != "nemotron_h":  # the layer names determine the number of layers
        values["num_hidden_layers"] = len(words)
    family = family_of(_published(model_type))
    assert family is not None
    own = transformers.CONFIG_MAPPING[model_type] if family.config is None else family.config_class()
    config = own.from_dict(values)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    embedding = model.get_input_embeddings().weight
    head = model.get_output_embeddings().weight
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight is embedding:
                weight.normal_(0, 0.1)
            elif weight is head:
                weight.normal_(0, 2 * weight.shape[-1] ** -0.5)
            elif "conv" in name and weight.dim() == 3:
                weight.normal_(0, 0.5)
            elif name.endswith(("A_log", "dt_bias")):  # layers remember a few to a few hundred tokens
                low, high = MEMORIES.get(model_type, _MEMORY)[name.rpartition(".")[2]]
                weight.copy_(torch.linspace(low, high, weight.numel()).view(weight.shape))
            elif name.endswith("sinks"):
                weight.normal_(0, 1)
            elif weight.dim() > 1:
                gain = 1.5 if name.endswith(("out_proj.weight", "o_proj.weight")) else 1
                if "adapter" in name:  # with larger weights, rounding would affect the tokens
                    gain = 0.5
                weight.normal_(0, gain * weight.shape[-1] ** -0.5)
            elif "norm" in name:
                weight.add_(torch.randn_like(weight) * 0.1)
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    if family.config is not None:
        (folder / "config.json").write_text(json.dumps({**values, **_published(model_type)}))
    return folder
