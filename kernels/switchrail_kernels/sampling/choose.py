"""The operation `choose_tokens` of `switchrail.platforms` in Triton, for compute capability 8.0 and later."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from itertools import chain
from typing import Final

import torch
import triton
from switchrail.params import SamplingParams, numbers_of

from switchrail_kernels.launch import Launcher, padded
from switchrail_kernels.sampling.draw import draw

_launch = Launcher(draw)

_UNUSED: Final = {torch.float32: 0, torch.float16: 13, torch.bfloat16: 16}
"""The low bits that are always 0 in a logit converted to float32."""

BLOCK, WARPS = 8192, 16
"""Columns that a program sums at a time: equal for all batches, so that sums are rounded equally."""


def choose_tokens(
    logits: torch.Tensor, params: Sequence[SamplingParams], draws: Sequence[random.Random]
) -> torch.Tensor:
    """Choose a token for each row, without waiting for the device; see `switchrail.engine.sampling.choose`.

    Args:
        logits: [R, vocabulary].
        params: Each row's sampling parameters.
        draws: Each row's source of random numbers; a sampled row takes one number.

    Returns:
        [R] int64 token ids; -1 for rows whose largest logit is not finite.
    """
    if not any(param.temperature for param in params):
        best, tokens = logits.max(dim=-1)
        return tokens.where(best.isfinite(), -1)
    rows, size = logits.shape
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    values = array("d", chain.from_iterable(numbers_of(params, draws)))
    host = torch.frombuffer(values, dtype=torch.float64)
    if logits.is_cuda:
        host = host.pin_memory()
    numbers = host.to(logits.device, non_blocking=True)
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    block = min(padded(size), BLOCK)
    _launch(
        (rows, 1, 1),
        (logits, numbers, tokens),
        (logits.stride(0), size),
        (padded(triton.cdiv(size, block), 2), block, _UNUSED[logits.dtype]),
        num_warps=min(max(block // 512, 1), WARPS),
    )
    return tokens


__all__ = ["choose_tokens"]
