"""Adapters for model definitions: one file per kind of module, and a table of the model families."""

from __future__ import annotations

from typing import Final

MODEL_TYPES: Final = (
    "qwen3_next",
    "qwen3_5_text",
    "qwen3_5_moe_text",
    "olmo_hybrid",
    "kimi_linear",
    "bailing_hybrid",
    "bailing_moe_linear",
    "minimax",
    "nemotron_h",
    "bamba",
    "granitemoehybrid",
    "falcon_h1",
    "zamba2",
    "mamba2",
    "lfm2",
    "lfm2_moe",
    "lfm3",
    "deepseek_v3",
    "llama",
    "qwen3",
    "gemma2",
    "gemma3_text",
    "gpt_oss",
)
"""The model types that the engine runs. `families.FAMILIES`, which imports torch, has the details."""
