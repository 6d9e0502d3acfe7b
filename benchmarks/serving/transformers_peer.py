"""Times the `generate` method of transformers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from benchmarks.serving.slices import make_prompts, pad_left

NEW_TOKENS = 16


@torch.inference_mode()
def measure(folder: Path, batches: Sequence[int], device: str) -> list[dict[str, Any]]:
    """Time greedy decoding with transformers' cache, on prompts padded to one length, after a warm-up.

    transformers uses flash-linear-attention and causal_conv1d if they are installed. Stops at the first batch
    that is too large for the device's memory.
    """
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval().to(device)
    rows = []
    for batch in batches:
        prompts = make_prompts(batch)
        ids, mask = pad_left(prompts, device)

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
