"""The sizes of the layers in `ring.safetensors`."""

from __future__ import annotations

from typing import Any

LAYERS, LAYER = 8, 2
CONFIG: dict[str, Any] = {
    "hidden_size": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "num_hidden_layers": LAYERS,
    "head_dim": 32,
    "group_norm_size": 2,
    "use_qk_norm": True,
    "partial_rotary_factor": 0.5,
    "rope_theta": 1e4,
    "rope_scaling": None,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-6,
    "use_bias": False,
    "use_qkv_bias": False,
    "hidden_act": "silu",
    "moe_intermediate_size": 16,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "num_shared_experts": 1,
    "n_group": 4,
    "topk_group": 2,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "score_function": "sigmoid",
    "moe_router_enable_expert_bias": True,
}
LATENT: dict[str, Any] = {
    "q_lora_rank": 12,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
}
