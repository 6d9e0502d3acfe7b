"""Runs prompts so that an engine compiles all kernels before its first request."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from switchrail import garbage
from switchrail.engine.engine import Engine
from switchrail.params import SamplingParams

_LENGTHS: Final = (1, 2, 3, 15, 16, 17, 63, 64, 65, 129, 250, 500, 1000, 2000, 4000, 8000)

_MIXTURES: Final = ((33, (65,)), (33, (97, 1)), (1000, ()))
"""Pairs: the common length of many prompts, and the lengths of a few other prompts that run with them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """The times of prompts that were run twice.

    Attributes:
        prompts: The number of prompts.
        longest: Tokens of the longest prompt.
        first: Seconds of the first run, in which kernels are compiled or loaded from disk.
        second: Seconds of the second run.
    """

    prompts: int
    longest: int
    first: float
    second: float


def warm_up(
    engine: Engine, progress: Callable[[list[list[int]]], Iterable[list[int]]] = iter
) -> Iterator[Round]:
    """Run prompts of many lengths, alone and together, on an engine without other users.

    Afterwards, Python's garbage collector no longer visits the objects that these runs have left.

    Args:
        engine: The engine.
        progress: Wraps the list of rounds, for example in a progress bar. A round is a list of prompt
            lengths.

    Yields:
        The times of each round.
    """
    for lengths in progress(rounds(engine)):
        prompts = [[number % 2 for number in range(length)] for length in lengths]
        first, second = (_run(engine, prompts) for _ in range(2))
        yield Round(prompts=len(prompts), longest=max(lengths), first=first, second=second)
    garbage.refreeze()  # covers objects that the runs made and that stay, such as loaded kernels


def rounds(engine: Engine) -> list[list[int]]:
    """The rounds: lists of the lengths of prompts that run together."""
    options = engine.options
    new = _new_tokens(engine)
    most = engine.max_length - new
    capacity = engine.pools.pages.capacity * options.page_size
    fits = [length for length in (*_LENGTHS, min(options.max_tokens_per_step, most)) if length <= most]
    alone = [[length] for length in dict.fromkeys(fits) if length + new <= capacity]
    together = [*fits[:8], *[min(9, most)] * (options.max_sequences - 8)][: options.max_sequences]
    rows = options.max_tokens_per_step
    limits = options.max_sequences, rows, most, capacity, new
    return [*alone, together, *_crowds(*limits), *_mixtures(*limits), *_overflows(*limits)]


def _new_tokens(engine: Engine) -> int:
    """The number of new tokens per prompt: enough for a step that verifies the maximum of drafts."""
    drafts = 0 if engine.options.draft is None else engine.options.draft_tokens
    return min(3 + 2 * drafts, engine.max_length - 1)


def _crowds(sequences: int, rows: int, most: int, capacity: int, new: int) -> Iterator[list[int]]:
    """Rounds of equally long prompts that together fill a step: 2, 8, 32 prompts, and so on."""
    count = min(2, sequences)
    while True:
        length = min(rows // count, most, capacity // count - new)
        if length > 0:
            yield [length] * count
        if count == sequences:
            return
        count = min(4 * count, sequences)


def _mixtures(sequences: int, rows: int, most: int, capacity: int, new: int) -> Iterator[list[int]]:
    """Rounds that fill a step with as many prompts of the lengths in `_MIXTURES` as possible.

    The choice of a kernel may depend on the number of prompts together with their mean and shortest lengths.
    """
    for length, others in _MIXTURES:
        count = min(
            sequences - len(others),
            (rows - sum(others)) // length,
            (capacity - sum(others) - new * len(others)) // (length + new),
        )
        if count > 0 and max((length, *others)) <= most:
            yield [*others, *[length] * count]


def _overflows(sequences: int, rows: int, most: int, capacity: int, new: int) -> Iterator[list[int]]:
    """Rounds that don't fit in a step, so that the first sequences decode while other prompts run.

    In a step with prompts, kernels for decodes are not captured, and may be launched in other forms than in
    captured decodes, for example without splitting short caches. There are no such rounds if the prompts of
    all sequences fit into a step.
    """
    last = min(rows, most, capacity - new)
    for length, count in dict.fromkeys(((1, 1), (1, sequences - 1), (min(1000, last), 1))):
        needed = max(1, (rows - length * count) // last + 1) if last > 0 else sequences
        if 0 < count <= sequences - needed:
            yield [length] * count + [last] * needed


def _run(engine: Engine, prompts: list[list[int]]) -> float:
    """Run prompts, of odd lengths with sampling and of even lengths greedily; return the seconds."""
    params = [
        SamplingParams(max_new_tokens=_new_tokens(engine), ignore_eos=True, temperature=len(prompt) % 2)
        for prompt in prompts
    ]
    start = time.perf_counter()
    engine.generate(prompts, params)
    return time.perf_counter() - start
