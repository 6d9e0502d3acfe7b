"""A trial run on small pools, which measures the working memory of an engine's steps and graphs."""

from __future__ import annotations

import gc
import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import torch

from switchrail.checks import shown
from switchrail.engine.core import EngineCore
from switchrail.engine.draft_model import LoadedDraft
from switchrail.engine.drafts import Drafted, Drafts
from switchrail.engine.graphs import Graphs
from switchrail.engine.keys import Key
from switchrail.engine.memory import memory_in_use
from switchrail.engine.options import EngineOptions
from switchrail.engine.runner import Capture, Runner
from switchrail.engine.sampling import Choose
from switchrail.engine.task import Task
from switchrail.params import SamplingParams
from switchrail.platforms import Platform
from switchrail.pools import pages_of

_log = logging.getLogger("switchrail")

_SAMPLED: Final = SamplingParams(
    max_new_tokens=2, ignore_eos=True, temperature=1.0, top_p=0.9, top_k=40, min_p=0.01
)
_PLENTY: Final = 0.5
"""If pools take less than this fraction of the free memory, no trial is needed."""

_MEASURED: Final = 2
"""Graphs to capture per kind: the largest shows the working memory, the second the increase per graph."""


def try_out(
    make: Callable[[EngineOptions], Runner],
    options: EngineOptions,
    *,
    platform: Platform,
    max_length: int,
    capture: Capture | None,
    choose_tokens: Choose,
    draft: LoadedDraft | None = None,
) -> int | None:
    """Run the largest steps and capture the largest graphs, on pools with few pages.

    Args:
        make: Makes a runner with the given options.
        options: The engine's options.
        platform: The platform, which keeps freed memory.
        max_length: Maximum tokens per sequence.
        capture: The steps to capture; None to capture nothing.
        choose_tokens: See `EngineCore`.
        draft: The draft model or head; None without one.

    Returns:
        Bytes that steps and graphs need in addition to the pools. 0, without a trial, if pools with all pages
        that the sequences can use take less than half of the free memory. None, with a warning, if the trial
        failed.
    """
    params = _params(options, max_length)
    rounds = _rounds(options, max_length, params.max_new_tokens)
    pages = max(
        sum(pages_of(length + params.max_new_tokens, options.page_size) for length in lengths)
        for lengths in rounds
    )
    before = memory_in_use(platform)
    try:
        runner = make(replace(options, num_pages=pages + 1, compile="off"))
        runners, pools = [runner], [runner.pools]
        drafts: Drafts | None = None
        try:
            if draft is not None:
                drafts = made = draft.make(runner)
                runners.append(made.runner)
                pools += [each.pools for each in made.runners]
            elif options.draft is not None:
                drafts = _Zeros(runner)
            most = options.max_sequences * pages_of(max_length, options.page_size) + 1
            total = platform.hardware.total_memory()
            largest = sum(each.nbytes_of(most) for each in pools)
            if total is not None and largest < _PLENTY * (total - before):
                return 0
            core = EngineCore(
                runner,
                runner.sequences,
                options,
                hardware=platform.hardware,
                choose_tokens=choose_tokens,
                drafts=drafts,
            )
            for lengths in rounds:
                _run(core, lengths, params, options.page_size)
            more = 0.0
            if capture is not None:
                graphs = [runner.prepare_graphs(capture, choose_tokens)]
                if draft is not None and draft.capture is not None:
                    graphs.append(made.prepare_graphs(draft.capture))
                more = sum(_capture(each, lambda: memory_in_use(platform, cached=True)) for each in graphs)
            peak = memory_in_use(platform, cached=True) + more
            allocated = runner.nbytes + sum(each.nbytes for each in pools[1:])
        finally:
            for each in runners:
                each.disconnect()
        return max(0, int(peak - before - allocated))
    except Exception as error:
        problem = shown(error, None)
    gc.collect()  # frees the frames of the error, and their pools
    _log.warning("the trial run, which measures the memory of steps, failed: %s", problem)
    return None


class _Zeros(Drafts):
    """Proposes token 0 as often as allowed, as if drawn: drawn drafts take the most memory."""

    def __init__(self, runner: Runner) -> None:
        self._vocab_size = runner.vocab_size
        self._device = runner.sequences.last_tokens.device

    def propose(self, tasks: Sequence[Task], limits: Sequence[int]) -> Drafted:
        odds = torch.zeros(sum(limits), self._vocab_size, dtype=torch.float64, device=self._device)
        odds[:, 0] = 1
        return Drafted([[0] * limit for limit in limits], odds)


def _params(options: EngineOptions, max_length: int) -> SamplingParams:
    """Parameters with enough new tokens for one step that verifies as many drafts as possible.

    A draft model may need two steps before it proposes for all requests. In these steps a request gets up to
    2 + `draft_tokens` tokens.
    """
    if options.draft is None:
        return _SAMPLED
    return replace(_SAMPLED, max_new_tokens=min(3 + 2 * options.draft_tokens, max_length - 1))


def _rounds(options: EngineOptions, max_length: int, new: int) -> list[list[int]]:
    """Lengths of prompts for two rounds: as long as possible, then as many as possible."""
    rows = options.max_tokens_per_step
    longest = max(1, min(rows, max_length - new))
    few = min(options.max_sequences, -(-rows // longest))
    share = max(1, min(longest, rows // options.max_sequences))
    return [[longest] * few, [share] * options.max_sequences]


def _run(core: EngineCore, lengths: Sequence[int], params: SamplingParams, page_size: int) -> None:
    core.add(
        Task(
            ids=np.zeros(length, dtype=np.int64),
            params=params,
            end_tokens=frozenset(),
            draws=random.Random(0),
            needed_pages=pages_of(length + params.max_new_tokens - 1, page_size),
        )
        for length in lengths
    )
    while core.busy:
        core.step()


def _capture(graphs: Graphs, in_use: Callable[[], float]) -> float:
    """Capture the largest keys of each kind. Return the estimated bytes of all other keys' graphs."""
    more = 0.0
    for kind in ("decode", "propose", "verify", "mixed"):
        keys: list[Key] = [key for key in graphs.in_order if key.kind == kind]
        graphs.capture(keys[:1])
        before = in_use()
        tried = keys[1:_MEASURED]
        graphs.capture(tried)
        if tried:
            more += max(0.0, in_use() - before) / len(tried) * len(keys[_MEASURED:])
    return more
