"""Makes checkpoints and prompts. A checkpoint is a slice of Qwen3-Next: fewer layers and experts at the real
widths, with random weights."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from switchrail.engine import checkpoint
from transformers import AutoModelForCausalLM, Qwen3NextConfig

SHORTEST, LONGEST, LONG = 200, 600, 8192
"""The least and the greatest number of tokens of a prompt, and the number of tokens of the long prompt."""

TRAINED = Path(__file__).parents[2] / "tests/checkpoints/kjv-qwen3-next"
"""The repository's trained checkpoint, whose tokenizer the slices have."""

WIDTHS: dict[str, Any] = {
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_value_heads": 32,
    "linear_num_key_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "num_experts_per_tok": 10,
    "max_position_embeddings": 32768,
    "eos_token_id": 0,
    "pad_token_id": 1,
}
"""Sizes of the published model, with a shorter context and the tokenizer's special tokens."""

TINY: dict[str, Any] = {
    **WIDTHS,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "head_dim": 32,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
}
"""Sizes for a trial without a GPU."""


class Work(NamedTuple):
    """Prompts to continue.

    Attributes:
        prompts: The tokens of each prompt.
        new_tokens: The number of new tokens of each.
        sampling: Sampling parameters.
    """

    prompts: Sequence[list[int]]
    new_tokens: int
    sampling: Mapping[str, Any]


def make_checkpoint(
    folder: Path,
    layers: int,
    experts: int,
    vocabulary: int,
    *,
    widths: dict[str, Any] = WIDTHS,
    device: str = "cuda",
    stored: bool = True,
) -> Path:
    """Save a slice of Qwen3-Next with random weights and the trained checkpoint's tokenizer.

    Without `stored` the folder has no weights, and can only be loaded within `random_weights`.
    """
    config = Qwen3NextConfig(
        num_hidden_layers=layers, num_experts=experts, vocab_size=vocabulary, dtype="bfloat16", **widths
    )
    if stored:
        save_random(config, folder, device)
    else:
        config.save_pretrained(folder)
        _copy_tokenizer(folder)
    add_published_names(folder / "config.json")
    return folder


def save_random(config: Any, folder: Path, device: str) -> None:
    """Save a model with random bfloat16 weights, and the trained checkpoint's tokenizer."""
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
    model.save_pretrained(folder)
    _copy_tokenizer(folder)
    del model
    if device == "cuda":
        torch.cuda.empty_cache()


def _copy_tokenizer(folder: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TRAINED / name, folder)


@contextmanager
def random_weights(device: str) -> Iterator[None]:
    """In the block, engines make random weights on the device instead of reading weight files.

    This takes seconds; writing and reading the weights of a large slice would take minutes.
    """

    def make(path: Path, *, config: Any, dtype: torch.dtype, attn_implementation: str, **_: Any) -> Any:
        torch.manual_seed(0)
        with torch.device(device):
            model = AutoModelForCausalLM.from_config(
                config, dtype=dtype, attn_implementation=attn_implementation
            )
        return model, dict.fromkeys(("missing_keys", "unexpected_keys", "mismatched_keys"), ())

    def make_skeleton(path: Path, config: Any, model_config: Any, *_: Any) -> Any:
        return checkpoint._make_skeleton(path, model_config)

    with (
        patch.object(checkpoint, "read_weights", lambda path: {}),
        patch.object(checkpoint, "_skeleton", make_skeleton),
        patch.object(AutoModelForCausalLM, "from_pretrained", make),
    ):
        yield


def add_published_names(path: Path) -> None:
    """Add the config's published names, which SGLang needs and transformers does not save."""
    config = json.loads(path.read_text())
    rope = config.get("rope_parameters") or {}
    config |= {
        "full_attention_interval": 4,
        "rope_theta": rope.get("rope_theta", 10000.0),
        "partial_rotary_factor": rope.get("partial_rotary_factor", 0.25),
        "rope_scaling": None,
        "torch_dtype": "bfloat16",
    }
    path.write_text(json.dumps(config, indent=1) + "\n")


def make_prompts(count: int, seed: int = 0) -> list[list[int]]:
    """Prompts of random tokens and lengths."""
    draw = random.Random(seed)
    return [[draw.randrange(2, 3000) for _ in range(draw.randint(SHORTEST, LONGEST))] for _ in range(count)]


def make_long_prompt() -> list[int]:
    """One prompt of `LONG` tokens."""
    draw = random.Random(1)
    return [draw.randrange(2, 3000) for _ in range(LONG)]


def pad_left(prompts: Sequence[list[int]], device: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The prompts padded on the left with token 1, and the attention mask: both int64 [B, longest]."""
    width = max(map(len, prompts))
    ids = [[1] * (width - len(prompt)) + prompt for prompt in prompts]
    mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    return torch.tensor(ids, device=device), torch.tensor(mask, device=device)
