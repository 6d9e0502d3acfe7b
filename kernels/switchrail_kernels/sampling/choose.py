"""The operation `choose_tokens` of `switchrail.platforms` in Triton, for compute capability 8.0 and later."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
import triton
from switchrail.params import SamplingParams, capturable, filters_of, seed_of

from switchrail_kernels.launch import Launcher, padded
from switchrail_kernels.sampling.best import best
from switchrail_kernels.sampling.draw import draw

_launch, _launch_best = Launcher(draw), Launcher(best)

_UNUSED: Final = {torch.float32: 0, torch.float16: 13, torch.bfloat16: 16}
"""By dtype of the logits: the number of low bits that are always 0 in a logit converted to float32."""

BLOCK, WARPS = 8192, 16
"""Maximum number of columns that a program sums at a time, and maximum number of its warps.

Neither depends on the batch, so that sums are always rounded equally.
"""

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Batch:
    """The parameters of a batch.

    Attributes:
        params: Each row's sampling parameters.
        constants: [R, 5], `params` as numbers, with zeros in place of the random numbers.
        sampled: The rows with a temperature above 0.
    """

    params: list[SamplingParams]
    constants: Numbers
    sampled: list[int]


_last = _Batch([], np.empty((0, 5)), [])


@capturable
def choose_tokens(
    logits: torch.Tensor, params: Sequence[SamplingParams], draws: Sequence[random.Random]
) -> torch.Tensor:
    """Choose a token for each row, without waiting for the device; see `switchrail.engine.sampling.choose`.

    Args:
        logits: [R, vocabulary].
        params: Each row's sampling parameters.
        draws: Each row's source of random numbers; a sampled row takes one number.

    Returns:
        [R] int64 token ids; -1 for rows with a NaN or whose largest logit is not finite.
    """
    rows, size = logits.shape
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    block = min(padded(size), BLOCK)
    values = _numbers(params, draws)
    if values is None:
        arguments = (logits, tokens), (logits.stride(0), size), (block,)
        _launch_best((rows, 1, 1), *arguments, num_warps=min(max(block // 256, 1), 2 * WARPS))
        return tokens
    host = torch.from_numpy(values)
    if logits.is_cuda:
        host = host.pin_memory()
    numbers = host.to(logits.device, non_blocking=True)
    _launch(
        (rows, 1, 1),
        (logits, numbers, tokens),
        (logits.stride(0), size),
        (padded(triton.cdiv(size, block), 2), block, _UNUSED[logits.dtype]),
        num_warps=min(max(block // 512, 1), WARPS),
    )
    return tokens


def _numbers(params: Sequence[SamplingParams], draws: Sequence[random.Random]) -> Numbers | None:
    """[R, 5], the results of `switchrail.params.numbers_of` for each row; None if no row is sampled.

    The parameters of the last call are kept, since a batch rarely changes from step to step.
    """
    global _last
    last = _last
    if last.params != params:
        constants = np.array([(*filters_of(one), 0.0) for one in params], dtype=np.float64)
        sampled = [row for row, param in enumerate(params) if param.temperature > 0]
        last = _last = _Batch(list(params), constants, sampled)
    if not last.sampled:
        return None
    values: Numbers = last.constants.copy()
    values[last.sampled, 4] = [seed_of(draws[row]) for row in last.sampled]
    return values
