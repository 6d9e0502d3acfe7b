"""Builds small models of all families with Transformers, and reads the kinds and sizes of their layers.

They are read from the modules that Transformers created, never from the config. Run as a program, this file
writes the fixtures of the Rust tests:

    python tests/layouts/families.py
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FIXTURES = Path(__file__).parents[2] / "rust" / "switchrail" / "tests" / "fixtures" / "layouts"

# By mixer's class: its kind. Attention is full or sliding, depending on its window. A layer with both a
# state-space mixer and attention is a hybrid layer.
MIXERS = {
    "Qwen3NextGatedDeltaNet": "gated_delta",
    "Qwen3_5GatedDeltaNet": "gated_delta",
    "Qwen3_5MoeGatedDeltaNet": "gated_delta",
    "OlmoHybridGatedDeltaNet": "gated_delta",
    "KimiLinearDeltaAttention": "kda",
    "BailingHybridDeltaAttention": "kda",
    "KimiLinearAttention": "mla",
    "BailingHybridAttention": "mla",
    "DeepseekV3Attention": "mla",
    "MiniMaxLightningAttention": "lightning",
    "RingLightningAttention": "lightning",
    "BambaMixer": "mamba2",
    "GraniteMoeHybridMambaLayer": "mamba2",
    "NemotronHMamba2Mixer": "mamba2",
    "FalconH1Mixer": "mamba2",
    "Zamba2MambaMixer": "mamba2",
    "Mamba2Mixer": "mamba2",
    "JambaMambaMixer": "mamba1",
    "ZambaMambaMixer": "mamba1",
    "MambaMixer": "mamba1",
    "FalconMambaMixer": "mamba1",
    "Lfm2ShortConv": "short_conv",
    "Lfm2MoeShortConv": "short_conv",
    "Lfm3ShortConv": "short_conv",
    "RecurrentGemmaRecurrentBlock": "rg_lru",
    "NemotronHMoE": "moe",
    "NemotronHMLP": "mlp",
    "Qwen3NextAttention": "attention",
    "Qwen3_5Attention": "attention",
    "Qwen3_5MoeAttention": "attention",
    "OlmoHybridAttention": "attention",
    "MiniMaxAttention": "attention",
    "RingAttention": "attention",
    "BambaAttention": "attention",
    "GraniteMoeHybridAttention": "attention",
    "NemotronHAttention": "attention",
    "FalconH1Attention": "attention",
    "Zamba2Attention": "attention",
    "JambaAttention": "attention",
    "ZambaAttention": "attention",
    "Lfm2Attention": "attention",
    "Lfm2MoeAttention": "attention",
    "Lfm3Attention": "attention",
    "RecurrentGemmaAttention": "attention",
    "LlamaAttention": "attention",
    "Qwen3Attention": "attention",
    "Gemma2Attention": "attention",
    "Gemma3Attention": "attention",
    "GptOssAttention": "attention",
}

_COMMON = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_QWEN = {
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "linear_conv_kernel_dim": 3,
}
_QWEN_MOE = {**_QWEN, **_EXPERTS, "shared_expert_intermediate_size": 16}
_LATENTS = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "q_lora_rank": None,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "num_experts": 4,
    "num_experts_per_token": 2,
    "moe_intermediate_size": 16,
    "num_expert_group": 1,
    "topk_group": 1,
}
_MAMBA2 = {
    "mamba_n_heads": 8,
    "mamba_n_groups": 2,
    "mamba_d_state": 12,
    "mamba_d_head": "auto",
    "mamba_d_conv": 4,
    "mamba_expand": 2,
}
_NEMOTRON = {
    "head_dim": 16,
    "mamba_num_heads": 4,
    "mamba_head_dim": 8,
    "n_groups": 2,
    "ssm_state_size": 12,
    "conv_kernel": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "moe_shared_expert_intermediate_size": 16,
}
_ZAMBA2 = {"n_mamba_heads": 8, "mamba_ngroups": 2, "mamba_d_state": 12, "mamba_d_conv": 4, "mamba_expand": 2}

LINEAR, FULL, SLIDING = "linear_attention", "full_attention", "sliding_attention"


def _config(model_type: str, layers: int | None, *parts: dict[str, Any], **values: Any) -> dict[str, Any]:
    config: dict[str, Any] = {"model_type": model_type, **_COMMON}
    if layers is not None:
        config["num_hidden_layers"] = layers
    for part in parts:
        config |= part
    return config | values


# Small configs with each published way of naming layers, in each family that uses it.
CONFIGS: dict[str, dict[str, Any]] = {
    "qwen3_next": _config("qwen3_next", 5, _QWEN_MOE, layer_types=[FULL, LINEAR, LINEAR, FULL, LINEAR]),
    "qwen3_next_interval": _config("qwen3_next", 7, _QWEN_MOE, full_attention_interval=3),
    "qwen3_next_interval_beside_types": _config(
        "qwen3_next", 3, _QWEN_MOE, full_attention_interval=4, layer_types=[LINEAR, FULL, LINEAR]
    ),
    "qwen3_next_older_words": _config(
        "qwen3_next", 3, _QWEN_MOE, layer_types=["mamba", "attention", "mamba"]
    ),
    "qwen3_5_text": _config("qwen3_5_text", 4, _QWEN, layer_types=[LINEAR, FULL, FULL, LINEAR]),
    "qwen3_5_text_interval": _config("qwen3_5_text", 6, _QWEN, full_attention_interval=2),
    "qwen3_5_moe_text": _config("qwen3_5_moe_text", 3, _QWEN_MOE, layer_types=[FULL, LINEAR, LINEAR]),
    "qwen3_5_nested": {
        "model_type": "qwen3_5",
        "text_config": _config("qwen3_5_text", 4, _QWEN, layer_types=[LINEAR, LINEAR, FULL, LINEAR]),
        "vision_config": {
            "model_type": "qwen3_5_vision",
            "depth": 1,
            "hidden_size": 32,
            "intermediate_size": 32,
            "num_heads": 2,
            "out_hidden_size": 32,
        },
    },
    "qwen3_5_moe_nested": {
        "model_type": "qwen3_5_moe",
        "text_config": _config("qwen3_5_moe_text", 4, _QWEN_MOE, full_attention_interval=2),
        "vision_config": {
            "model_type": "qwen3_5_moe_vision",
            "depth": 1,
            "hidden_size": 32,
            "intermediate_size": 32,
            "num_heads": 2,
            "out_hidden_size": 32,
        },
    },
    "olmo_hybrid": _config(
        "olmo_hybrid",
        4,
        layer_types=[LINEAR, LINEAR, FULL, LINEAR],
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=8,
        linear_value_head_dim=16,
    ),
    "kimi_linear": _config(
        "kimi_linear",
        4,
        _LATENTS,
        layer_types=[FULL, LINEAR, LINEAR, FULL],
        linear_num_heads=2,
        linear_head_dim=12,
        linear_conv_kernel_dim=3,
    ),
    "kimi_linear_from_one": _config(
        "kimi_linear",
        5,
        _LATENTS,
        linear_attn_config={
            "full_attn_layers": [3, 5],
            "kda_layers": [1, 2, 4],
            "num_heads": 2,
            "head_dim": 12,
            "short_conv_kernel_size": 4,
        },
    ),
    "bailing_hybrid": _config(
        "bailing_hybrid", 4, _LATENTS, head_dim=12, layer_types=[LINEAR, FULL, LINEAR, LINEAR]
    ),
    "bailing_hybrid_groups": _config("bailing_hybrid", 7, _LATENTS, head_dim=12, layer_group_size=3),
    "bailing_moe_linear": _config(
        "bailing_moe_linear",
        6,
        _EXPERTS,
        architectures=["BailingMoeLinearV2ForCausalLM"],
        head_dim=12,
        layer_group_size=3,
        n_group=1,
        topk_group=1,
    ),
    "bailing_moe_v2_5": _config(
        "bailing_hybrid",
        4,
        _LATENTS,
        architectures=["BailingMoeV2_5ForCausalLM"],
        head_dim=12,
        layer_group_size=2,
        n_group=1,
    ),
    "minimax": _config(
        "minimax", 4, num_local_experts=4, layer_types=[LINEAR, LINEAR, FULL, LINEAR], head_dim=12
    ),
    "minimax_window": _config(
        "minimax", 3, num_local_experts=4, layer_types=[LINEAR, FULL, FULL], sliding_window=8
    ),
    "bamba": _config("bamba", 5, _MAMBA2, attn_layer_indices=[1, 4]),
    "bamba_without_attention": _config("bamba", 2, _MAMBA2, attn_layer_indices=None),
    "granitemoehybrid": _config(
        "granitemoehybrid", 4, _MAMBA2, layer_types=["mamba", "attention", "mamba", "mamba"]
    ),
    "granitemoehybrid_alias": _config(
        "granitemoehybrid", 3, _MAMBA2, layers_block_type=[FULL, LINEAR, LINEAR]
    ),
    "nemotron_h": _config(
        "nemotron_h", None, _NEMOTRON, layers_block_type=[LINEAR, "moe", FULL, "mlp", LINEAR]
    ),
    "nemotron_h_older_words": _config(
        "nemotron_h", 4, _NEMOTRON, layers_block_type=["mamba", "moe", "attention", "mlp"]
    ),
    "nemotron_h_pattern": _config("nemotron_h", 6, _NEMOTRON, hybrid_override_pattern="M-M*E-"),
    "falcon_h1": _config("falcon_h1", 3, _MAMBA2, mamba_d_ssm=48),
    "zamba2": _config("zamba2", 4, _ZAMBA2, layers_block_type=["mamba", "hybrid", "mamba", "hybrid"]),
    "zamba2_ids": _config(
        "zamba2",
        4,
        _ZAMBA2,
        layers_block_type=["mamba", "mamba", "hybrid", "mamba"],
        hybrid_layer_ids=[2],
        num_key_value_heads=None,
    ),
    "jamba": _config(
        "jamba", 6, num_experts=2, num_experts_per_tok=1, attn_layer_period=3, attn_layer_offset=1
    ),
    "zamba": _config("zamba", 4, n_mamba_heads=2, layers_block_type=["mamba", "hybrid", "mamba", "hybrid"]),
    "zamba_period": _config("zamba", 9, n_mamba_heads=2, attn_layer_period=3, attn_layer_offset=1),
    "mamba": _config("mamba", 2, expand=2, conv_kernel=4, state_size=8, intermediate_size=64),
    "falcon_mamba": _config("falcon_mamba", 2, expand=2, conv_kernel=4, state_size=8, intermediate_size=64),
    "mamba2": _config("mamba2", 2, num_heads=8, head_dim=8, expand=2, n_groups=2, state_size=12),
    "llama": _config("llama", 2),
    "qwen3": _config("qwen3", 2, head_dim=16, sliding_window=8),
    "qwen3_window": _config(
        "qwen3", 2, head_dim=16, sliding_window=8, use_sliding_window=True, layer_types=[SLIDING, FULL]
    ),
    "gemma2": _config("gemma2", 3, head_dim=16, sliding_window=8),
    "gemma2_without_cap": _config("gemma2", 2, head_dim=16, sliding_window=8, attn_logit_softcapping=None),
    "gemma3_text": _config("gemma3_text", 7, head_dim=16, sliding_window=8),
    "gemma3_text_pattern": _config("gemma3_text", 4, head_dim=16, sliding_window=8, sliding_window_pattern=3),
    "gpt_oss": _config("gpt_oss", 3, head_dim=16, sliding_window=8, num_local_experts=4),
    # without a head size, so the default of transformers' class applies
    "qwen3_head_size": _config("qwen3", 1),
    "gemma2_head_size": _config("gemma2", 1, sliding_window=8),
    "gemma3_text_head_size": _config("gemma3_text", 1, sliding_window=8),
    "gpt_oss_head_size": _config("gpt_oss", 1, sliding_window=8, num_local_experts=4),
    "deepseek_v3": _config(
        "deepseek_v3",
        2,
        _LATENTS,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=1,
        first_k_dense_replace=1,
    ),
    "lfm2": _config("lfm2", 4, layer_types=["conv", FULL, "conv", FULL]),
    "lfm2_ids": _config("lfm2", 4, full_attn_idxs=[1, 2]),
    "lfm2_moe": _config("lfm2_moe", 3, _EXPERTS, num_dense_layers=1, layer_types=["conv", "conv", FULL]),
    "lfm3": _config(
        "lfm3", 4, layer_types=["conv", "sliding_attention", FULL, "conv"], head_dim=16, sliding_window=8
    ),
    "recurrent_gemma": _config(
        "recurrent_gemma",
        5,
        block_types=["recurrent", "recurrent", "attention"],
        lru_width=40,
        attention_window_size=8,
    ),
    "recurrent_gemma_pattern": _config(
        "recurrent_gemma", 5, block_types=["attention", "recurrent"], attention_window_size=8
    ),
}


@dataclass(frozen=True)
class Built:
    """A model built by transformers.

    Attributes:
        saved: Its config as written by `save_pretrained`.
        mixers: The mixer classes of each layer.
        kinds: The kind of each layer, from those classes.
        shapes: The sizes of each layer's ops, from the modules.
    """

    saved: dict[str, Any]
    mixers: list[list[str]]
    kinds: list[str]
    shapes: list[dict[str, dict[str, Any]]]


def build(config: dict[str, Any]) -> Built:
    """Build the model of a config without allocating its weights, and inspect its layers."""
    import torch
    import transformers
    from switchrail.engine.models.families import family_of

    family = family_of(config)
    is_own = family is not None and family.config is not None
    own = family.config_class() if is_own else transformers.CONFIG_MAPPING[config["model_type"]]
    loaded = own.from_dict(dict(config))
    with torch.device("meta"):
        model = transformers.AutoModel.from_config(loaded)
    with tempfile.TemporaryDirectory() as folder:
        loaded.save_pretrained(folder)
        saved = json.loads((Path(folder) / "config.json").read_text())
    layers = getattr(model, "language_model", model).layers
    found = [list(_mixers(layer)) for layer in layers]
    return Built(
        saved,
        [sorted({type(mixer).__name__ for mixer in mixers}) for mixers in found],
        [_kind(mixers) for mixers in found],
        [_shapes(mixers) for mixers in found],
    )


def _mixers(module: Any) -> Iterator[Any]:
    if type(module).__name__ in MIXERS:  # modules inside a mixer don't count
        yield module
    else:
        for child in module.children():
            yield from _mixers(child)


def _window(mixer: Any) -> int | None:
    if type(mixer).__name__ == "MiniMaxAttention":  # its window is read from the config in each call
        return mixer.config.sliding_window
    return getattr(mixer, "sliding_window", None)


def _kind(mixers: list[Any]) -> str:
    kinds = {MIXERS[type(mixer).__name__] for mixer in mixers}
    if len(kinds) > 1:
        assert kinds in ({"attention", "mamba1"}, {"attention", "mamba2"}), kinds
        return "hybrid"
    (kind,) = kinds
    if kind != "attention":
        return kind
    (mixer,) = mixers
    return "full_attention" if _window(mixer) is None else "sliding_attention"


def _shapes(mixers: list[Any]) -> dict[str, dict[str, Any]]:
    shapes: dict[str, dict[str, Any]] = {}
    for mixer in mixers:
        kind = MIXERS[type(mixer).__name__]
        if kind == "attention":
            joined = getattr(mixer, "query_key_value", None)
            keys = mixer.heads[1] if joined else mixer.k_proj.out_features // mixer.head_dim
            queries = keys * mixer.num_key_value_groups
            shapes["attention"] = _heads(queries, keys, keys, mixer.head_dim, mixer.head_dim)
            if (window := _window(mixer)) is not None:
                shapes["attention"]["window"] = window
            if type(mixer).__name__ == "Gemma2Attention" and mixer.attn_logit_softcapping is not None:
                shapes["attention"]["soft_cap"] = True
            if hasattr(mixer, "sinks"):
                shapes["attention"]["sinks"] = True
        elif kind == "mla":
            rank = mixer.kv_lora_rank
            shapes["mla"] = _heads(mixer.num_heads, 1, 1, rank + mixer.qk_rope_head_dim, rank)
        elif kind == "gated_delta":
            keys, values = mixer.num_k_heads, mixer.num_v_heads
            shapes[kind] = _heads(keys, keys, values, mixer.head_k_dim, mixer.head_v_dim)
        elif kind == "kda":
            heads = mixer.num_heads
            shapes[kind] = _heads(heads, heads, heads, mixer.head_dim, mixer.head_dim)
        elif kind == "lightning":
            out = mixer.o_proj if hasattr(mixer, "o_proj") else mixer.out_proj
            heads = out.in_features // mixer.head_dim
            shapes[kind] = _heads(heads, heads, heads, mixer.head_dim, mixer.head_dim)
        elif kind == "mamba2":
            groups = mixer.n_groups
            shapes[kind] = _heads(groups, groups, mixer.num_heads, mixer.ssm_state_size, mixer.head_dim)
        for _, module in mixer.named_modules():
            if type(module).__name__ == "Conv1d":
                shapes["short_conv"] = {"channels": module.in_channels, "width": module.kernel_size[0]}
    return shapes


def _heads(q_heads: int, k_heads: int, v_heads: int, head_size_k: int, head_size_v: int) -> dict[str, Any]:
    return {
        "q_heads": q_heads,
        "k_heads": k_heads,
        "v_heads": v_heads,
        "head_size_k": head_size_k,
        "head_size_v": head_size_v,
    }


def main() -> None:
    """Write a fixture for each config."""
    FIXTURES.mkdir(parents=True, exist_ok=True)
    for name, config in CONFIGS.items():
        built = build(config)
        layers = [
            {"kind": kind, "mixers": mixers, "shapes": shapes}
            for kind, mixers, shapes in zip(built.kinds, built.mixers, built.shapes, strict=True)
        ]
        fixture = {"published": config, "saved": built.saved, "layers": layers}
        (FIXTURES / f"{name}.json").write_text(json.dumps(fixture, indent=1, sort_keys=True) + "\n")
        print(f"{name}: {' '.join(built.kinds)}")


if __name__ == "__main__":
    main()
