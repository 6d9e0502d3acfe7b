"""Small checkpoints of other families in the form that SGLang reads, and their greedy tokens."""

import json
from pathlib import Path
from typing import Any

import torch
from checkpoint import NEAR
from safetensors.torch import load_file, save_file
from switchrail.engine.models import ring
from switchrail.engine.models.families import family_of
from transformers import AutoModelForCausalLM

from tests.families.made import make

LAYERS = {"linear_attention": "mamba", "full_attention": "attention"}
"""By layer type in Transformers' configurations: its name in published configurations of Mamba2 hybrids."""
CHANGES: dict[str, dict[str, Any]] = {
    "kimi_linear": {"routed_scaling_factor": 1.0},  # which SGLang does not apply on a CPU
    "bailing_moe_v2_5": {"routed_scaling_factor": 1.0, "moe_shared_expert_intermediate_size": 16},
    "deepseek_v3": {"moe_layer_freq": 1, "topk_method": "noaux_tc", "scoring_func": "sigmoid"},
    "nemotron_h": {"mamba_num_heads": 8},
}
"""Keys of the configurations that differ from those of `tests.families.made`.

SGLang expects shared experts of the same size as the others, and Mamba2 layers of twice the hidden size.
"""


def save(name: str, folder: Path) -> Any:
    """Save a checkpoint in float16, and return its model in float32."""
    make(name, folder, **CHANGES.get(name, {}))
    file = folder / "config.json"
    config = json.loads(file.read_text())
    weights = {each: weight.half() for each, weight in load_file(folder / "model.safetensors").items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    family = family_of(config)
    given = {"config": family.config_class().from_pretrained(folder)} if family.config else {}
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **given).eval()
    if name == "bailing_moe_v2_5":
        for layer in model.model.layers:
            if isinstance(layer.self_attn, ring.RingLightningAttention):
                # SGLang gives a layer the decays that Switchrail's definition gives the next layer.
                layer.self_attn.layer_idx += 1
    # The names of published checkpoints, which SGLang reads and transformers converts.
    for key in {"layer_types", "layers_block_type"} & config.keys():
        config[key] = [LAYERS.get(each, each) for each in config[key]]
    if name == "nemotron_h":
        config["mamba_n_groups"] = config["n_groups"]
    if name == "kimi_linear":
        config |= _kimi(config)
        weights = {each.replace(".0.block_sparse_moe.", ".0.mlp."): w for each, w in weights.items()}
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    file.write_text(json.dumps({**config, "dtype": "float16", "torch_dtype": "float16"}))
    return model


def _kimi(config: dict[str, Any]) -> dict[str, Any]:
    linear, full = (
        [number for number, each in enumerate(config["layer_types"], 1) if (each == "mamba") == wanted]
        for wanted in (True, False)
    )
    sizes = {
        "num_heads": config["linear_num_heads"],
        "head_dim": config["linear_head_dim"],
        "short_conv_kernel_size": config["linear_conv_kernel_dim"],
    }
    layers = {"kda_layers": linear, "full_attn_layers": full, **sizes}
    return {"linear_attn_config": layers, "first_k_dense_replace": 1, "mla_use_nope": True}


@torch.inference_mode()
def greedy(model: Any, prompt: list[int], new_tokens: int) -> tuple[list[int], int]:
    """The greedy tokens, each computed from the whole text, and their number before the first near tie."""
    text, sure = list(prompt), new_tokens
    for number in range(new_tokens):
        best = model(torch.tensor([text]), use_cache=False).logits[0, -1].topk(2)
        if sure == new_tokens and best.values[0] - best.values[1] < NEAR:
            sure = number
        text.append(int(best.indices[0]))
    return text[len(prompt) :], sure
