"""Converts the repository's trained checkpoint to a form that SGLang can serve."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from benchmarks.serving.slices import TRAINED, add_published_names


def for_sglang(folder: Path) -> Path:
    """Save the checkpoint in one file, with experts in every layer and an output layer; logits stay the same.

    SGLang's Qwen3-Next ignores `decoder_sparse_step` and `tie_word_embeddings`. So each dense MLP becomes a
    set of identical experts, whose routing weights sum to 1. The checkpoint's own experts are smaller than
    its dense MLPs, and are padded with zeros to the same size.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for file in TRAINED.iterdir():
        if file.suffix != ".safetensors":
            shutil.copy(file, folder)
    config = json.loads((TRAINED / "config.json").read_text())
    weights = load_file(TRAINED / "model.safetensors") | load_file(TRAINED / "mtp.safetensors")
    found = {"lm_head.weight": weights["model.embed_tokens.weight"].clone()}
    for name, weight in weights.items():
        layer, _, part = name.partition(".mlp.")
        if part.startswith("experts."):
            found[name] = _padded(weight, config["intermediate_size"], axis=int("down" in part))
        elif part in ("gate_proj.weight", "up_proj.weight", "down_proj.weight"):
            for expert in range(config["num_experts"]):
                found[f"{layer}.mlp.experts.{expert}.{part}"] = weight.clone()
        else:
            found[name] = weight
    sparse = {name.partition(".mlp.")[0] for name in weights if name.endswith(".mlp.gate.weight")}
    example = min(sparse)
    parts = [
        name.removeprefix(example)
        for name in weights
        if name.startswith(f"{example}.mlp.") and ".experts." not in name
    ]
    for layer in {name.partition(".mlp.")[0] for name in weights if ".mlp." in name} - sparse:
        # A router that prefers no expert, and a shared expert that adds nothing.
        found |= {layer + part: torch.zeros_like(weights[example + part]) for part in parts}
    save_file(found, folder / "model.safetensors", metadata={"format": "pt"})
    config |= {
        "decoder_sparse_step": 1,
        "tie_word_embeddings": False,
        "moe_intermediate_size": config["intermediate_size"],
    }
    (folder / "config.json").write_text(json.dumps(config))
    add_published_names(folder / "config.json")
    return folder


def _padded(weight: torch.Tensor, size: int, *, axis: int) -> torch.Tensor:
    shape = list(weight.shape)
    shape[axis] = size - shape[axis]
    return torch.cat([weight, weight.new_zeros(shape)], axis)
