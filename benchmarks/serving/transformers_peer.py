"""The `generate` method of transformers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from benchmarks.serving.slices import make_prompts

NEW_TOKENS = 16


@torch.inference_mode()
def measure(folder: Path, batches: Sequence[int], device: str) -> list[dict[str, Any]]:
    """Greedy decoding with transformers' cache, on prompts padded to one length; the second of two runs.

    Uses flash-linear-attention and causal_conv1d if they are installed. Batches for which the memory of the
    device is too small have no row.
    """
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval().to(device)
    rows = []
    for batch in batches:
        prompts = make_prompts(batch)
        width = max(map(len, prompts))
        ids = torch.tensor([[1] * (width - len(p)) + p for p in prompts], device=device)
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=device)

        def seconds(count: int, ids: torch.Tensor = ids, mask: torch.Tensor = mask) -> float:
            start = time.perf_counter()
            model.generate(
                ids, attention_mask=mask, do_sample=False, max_new_tokens=count, min_new_tokens=count
            ).cpu()
            return time.perf_counter() - start

        try:
            seconds(2)
            first, whole = seconds(1), seconds(NEW_TOKENS)
        except torch.OutOfMemoryError as error:
            print(f"transformers: {batch} sequences don't fit: {error}")
            break
        rows.append(
            {
                "name": "transformers",
                "batch": batch,
                "prompt_tokens": sum(map(len, prompts)),
                "prefill_ms": first * 1e3,
                "step_ms": (whole - first) / (NEW_TOKENS - 1) * 1e3,
            }
        )
    return rows
