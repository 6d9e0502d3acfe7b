"""The engine: serves many requests to a hybrid model concurrently."""

from __future__ import annotations

import itertools
import logging
import os
import random
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from switchrail import garbage
from switchrail._core import Layout
from switchrail.checks import shown
from switchrail.current import current_runtime
from switchrail.engine.capture import GraphState, has_trees
from switchrail.engine.checkpoint import Checkpoint, read_config
from switchrail.engine.core import EngineCore
from switchrail.engine.draft_model import DraftCheckpoint, LoadedDraft, find_draft, load_draft
from switchrail.engine.drafts import Drafts
from switchrail.engine.dtypes import choose_dtype
from switchrail.engine.graphs import Progress, capture_all
from switchrail.engine.heads import find_mtp
from switchrail.engine.hub import find_checkpoint
from switchrail.engine.loading import LoadedModel, load_model
from switchrail.engine.memory import Pools
from switchrail.engine.models.blocks import BlockState
from switchrail.engine.models.families import Family
from switchrail.engine.mtp import load_mtp
from switchrail.engine.ngram import NgramDrafts
from switchrail.engine.options import MTP, NGRAM, EngineOptions, options_on
from switchrail.engine.prompts import check_length, listed, prompt_named, token_ids, tokenize
from switchrail.engine.request import Event, Output, Request
from switchrail.engine.routes import layout_of
from switchrail.engine.runner import Runner
from switchrail.engine.sampling import Choose, choose
from switchrail.engine.stats import Stats
from switchrail.engine.text import TextStream, decoder
from switchrail.engine.trial import try_out
from switchrail.errors import (
    ArgumentError,
    ConfigError,
    EngineError,
    RequestError,
)
from switchrail.params import SamplingParams
from switchrail.platforms import Platform
from switchrail.platforms.operations import ChooseTokens
from switchrail.pools import pages_of
from switchrail.runtime import Runtime

Prompt = str | Sequence[int]

_log = logging.getLogger("switchrail")


class Engine(AbstractContextManager["Engine"]):
    """Runs the model of a checkpoint, each layer on the backends that its route names.

    Requests can be submitted at any time and run together. `generate` and `stream` do everything for simple
    programs; `submit`, `step` and `cancel` are for programs with their own loop. All methods can be called
    from any thread; steps run one at a time, in the thread that calls `step`, `generate` or `stream`. From
    within a step (a hook, a signal handler, a backend) only `submit` and `cancel` can be called. Any
    exception leaves the engine consistent, including one from Ctrl-C.

    Example:
        >>> with Engine("tests/checkpoints/kjv-qwen3-next") as engine:  # doctest: +SKIP
        ...     print(engine.generate(["In the beginning"])[0].text)

    Attributes:
        options: The options.
        platform: The platform of the model.
        plan: The routes of the model's ops.
        bound: The routes, bound to their backends.
        max_length: Maximum tokens per sequence, prompt and output together.
    """

    def __init__(
        self,
        checkpoint: str | Path,
        *,
        runtime: Runtime | None = None,
        device: Platform | str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        backends: Mapping[str, str] | None = None,
        options: EngineOptions | Mapping[str, Any] | None = None,
        progress: Progress = lambda done, total: None,
    ) -> None:
        """Plan the routes, log the backends' names, load the model, allocate the pools and capture steps.

        Args:
            checkpoint: A folder in transformers' format, with tokenizer and safetensors weights; or the name
                of a model on the Hugging Face hub that is in the local cache.
            runtime: The runtime with the backends; None for the current one, with the installed plugins
                loaded.
            device: The device, as for `Runtime.find_platform`; None for the runtime's platform.
            dtype: `float32`, `float16` or `bfloat16`; None for the checkpoint's own, or for float32
                if the checkpoint names none or the device is a CPU.
            backends: Chosen backends by op, by op and phase (`gated_delta.decode`), or for the linear family
                (`linear`).
            options: The options, also as a mapping of names to values; None for the platform's defaults.
            progress: Called during the capture with the number of captured steps and the number of all steps
                to capture. If it raises, the exception propagates and no engine is created.

        Raises:
            CheckpointError: The folder is not a checkpoint that the engine runs.
            PlatformError: There is no such device, or the platform returns something invalid.
            NotProvidedError: The platform does not provide something that the engine needs.
            ConfigError: An option is unknown or invalid, the model can't use the draft, or there is not
                enough memory.
            UnknownDtypeError: `dtype`, or the checkpoint's dtype if `dtype` is None, is not supported.
            NoBackendError: No backend supports one of the model's ops.
            UnknownBackendError: A chosen backend is not registered.
            PreferenceError: A chosen backend does not apply to this model.
            BackendUnfitError: A chosen backend doesn't support the calls that it was chosen for.
        """
        self._thaw: Callable[[], object] = lambda: None
        self._unhook_draft: Callable[[], object] = lambda: None
        path = find_checkpoint(checkpoint)
        if runtime is None:
            runtime = current_runtime()
            runtime.load()
        config, family = read_config(path, runtime.family_of)
        self.platform: Platform = runtime.find_platform(device)
        self.device = torch.device(self.platform.device)
        self.options = options_on(self.platform, options)
        self.dtype: torch.dtype = getattr(torch, choose_dtype(dtype, config, self.platform.hardware))
        self.platform.initialize()
        choose_tokens = runtime.forward_of(ChooseTokens, self.platform) or choose
        found = self._find_drafts(runtime, path, config)
        with self.platform.hardware.active():
            loaded = self._load(runtime, path, config, family, backends)
            make = partial(loaded.make, max_length=self.max_length)
            capture = loaded.capture(self.options, max_length=self.max_length, preferences=backends)
            drafts, draft = None, None
            if found is None or isinstance(found, Drafts):
                drafts = found
            else:
                draft = self._load_draft(runtime, found, loaded.checkpoint, choose_tokens)
            working = None
            if self.options.num_pages is None and self.platform.hardware.keeps_freed_memory():
                working = try_out(
                    make,
                    self.options,
                    platform=self.platform,
                    max_length=self.max_length,
                    capture=capture,
                    choose_tokens=choose_tokens,
                    draft=draft,
                )
            self._runner = make(self.options, working=working, beside=None if draft is None else draft.needs)
            self._unhook = weakref.finalize(self, self._runner.disconnect)
            try:
                if draft is not None:
                    drafts = made = draft.make(self._runner)
                    self._unhook_draft = weakref.finalize(self, made.runner.disconnect)
                if capture is not None:
                    graphs = [self._runner.prepare_graphs(capture, choose_tokens)]
                    if draft is not None and draft.capture is not None:
                        graphs.append(made.prepare_graphs(draft.capture))
                    capture_all(graphs, progress)
                    self.platform.hardware.empty_cache()  # frees memory that eager runs used before captures
                    garbage.freeze()
                    self._thaw = weakref.finalize(self, garbage.thaw)
            except BaseException:
                self._unhook()
                self._unhook_draft()
                raise
        self._core = EngineCore(
            self._runner,
            self._runner.sequences,
            self.options,
            hardware=self.platform.hardware,
            choose_tokens=choose_tokens,
            drafts=drafts,
        )
        self._events: deque[Event] = deque()
        self._ids = itertools.count()
        self._owner = object()  # identifies the engine that made a request
        self._process = os.getpid()
        self._lock = threading.RLock()

    def _load(
        self,
        runtime: Runtime,
        path: Path,
        config: dict[str, Any],
        family: Family,
        backends: Mapping[str, str] | None,
    ) -> LoadedModel:
        """Plan the routes and load the model."""
        if self.options.seed is not None:
            self.platform.hardware.seed(self.options.seed)
        found = load_model(
            runtime,
            path,
            config,
            family,
            platform=self.platform,
            dtype=self.dtype,
            options=self.options,
            max_length=self.options.max_length,
            backends=backends,
            are_trees=has_trees(self.options),
        )
        loaded = found.checkpoint
        self.plan, self.bound = found.routes, found.bound
        self.max_length = self.options.max_length or loaded.max_length
        if self.max_length > loaded.max_length:
            raise ConfigError(
                f"max_length is {self.max_length}, but the model supports at most {loaded.max_length} tokens",
                problems={"max_length": f"found {self.max_length}"},
                valid={"max_length": f"an integer from 2 to {loaded.max_length}"},
            )
        self._tokenizer = loaded.tokenizer
        self._end_tokens = loaded.end_tokens
        self._vocab_size = loaded.vocab_size
        self._decode = decoder(loaded.tokenizer)
        return found

    def _find_drafts(
        self, runtime: Runtime, path: Path, config: dict[str, Any]
    ) -> Drafts | DraftCheckpoint | list[Layout] | None:
        """The drafts, a draft model's checkpoint, or the layouts of the MTP head; None without drafts."""
        draft = self.options.draft
        if draft == NGRAM:
            return NgramDrafts()
        if draft == MTP:
            return find_mtp(path, config, layout_of(runtime, path, lambda: config))
        if draft is None or isinstance(draft, Drafts):
            return draft
        return find_draft(runtime, draft, config, self.options.max_length)

    def _load_draft(
        self,
        runtime: Runtime,
        draft: DraftCheckpoint | list[Layout],
        target: Checkpoint,
        choose_tokens: Choose,
    ) -> LoadedDraft:
        common: Any = {
            "platform": self.platform,
            "dtype": self.dtype,
            "options": self.options,
            "max_length": self.max_length,
            "choose_tokens": choose_tokens,
        }
        if isinstance(draft, DraftCheckpoint):
            return load_draft(runtime, draft, vocab_size=self._vocab_size, **common)
        return load_mtp(runtime, target, draft, **common)

    @property
    def pools(self) -> Pools:
        """The memory for keys, values and states.

        Raises:
            EngineError: The engine is closed.
        """
        return self._open_runner().pools

    @property
    def graphs(self) -> tuple[GraphState, ...]:
        """The state of each kind and size of step to capture; empty if nothing is captured.

        Raises:
            EngineError: The engine is closed.
        """
        graphs = self._open_runner().graphs
        return () if graphs is None else graphs.states()

    @property
    def blocks(self) -> tuple[BlockState, ...]:
        """The state of each group of decoder layers to compile; empty if compiling is off.

        Raises:
            EngineError: The engine is closed.
        """
        blocks = self._open_runner().blocks
        return () if blocks is None else blocks.states()

    @property
    def stats(self) -> Stats:
        """A copy of the engine's counters."""
        return replace(self._core.stats)

    @property
    def busy(self) -> bool:
        """Whether any request waits or runs."""
        return self._core.busy

    def generate(
        self, prompts: Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> list[Output]:
        """Run prompts to their ends.

        Args:
            prompts: Texts or token ids.
            params: Parameters for all prompts, or a sequence with one `SamplingParams` per prompt; None for
                greedy defaults.

        Returns:
            For each prompt, in order, `SamplingParams.n` adjacent outputs. An output that ended with `error`
            includes the exception.

        Raises:
            RequestError: A prompt can't be served; then no prompt is run.
            EngineError: The engine is closed, was made before a fork, or runs a step in this thread.
            BaseException: The exception of a step with one of these prompts, even if another thread ran the
                step; all requests of this call have then ended.
        """
        requests: list[Request] = []
        try:
            self._enqueue(requests, prompts, params, deque())
            self._run(requests)
        finally:
            self._core.unwanted += requests  # done first, without a call, so that no exception can prevent it
            self._settle()
        return [request.output for request in requests]

    def stream(
        self, prompts: Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> Iterator[Event]:
        """Run prompts and yield their events as they occur. Leaving early cancels the remaining prompts.

        The prompts are checked and queued when the first event is requested.

        Args:
            prompts: Texts or token ids.
            params: Parameters for all prompts, or a sequence with one `SamplingParams` per prompt; None for
                greedy defaults.

        Yields:
            The events of all prompts. The requests' ids increase in the order of the prompts.

        Raises:
            RequestError: A prompt can't be served; then no prompt is run.
            EngineError: The engine is closed, was made before a fork, or runs a step in this thread.
            BaseException: The exception of a step with one of these prompts, even if another thread ran the
                step; all requests of this call have then ended.
        """
        requests: list[Request] = []
        events: deque[Event] = deque()
        try:
            self._enqueue(requests, prompts, params, events)
            yield from self._events_of(requests, events)
        finally:
            self._core.unwanted += requests  # as in `generate`
            self._settle()

    def submit(self, prompt: Prompt, params: SamplingParams | None = None) -> Request:
        """Add a prompt to the queue; `step` runs it.

        Args:
            prompt: A text or token ids.
            params: None for greedy defaults.

        Returns:
            The request, whose attributes change while it runs. If `SamplingParams.n` is more than 1, this is
            the request of the first sample, and its `samples` are the requests of all samples.

        Raises:
            RequestError: The prompt can't be served.
            EngineError: The engine is closed, or was made before a fork.
        """
        requests: list[Request] = []
        try:
            self._enqueue(requests, [prompt], params, self._events)
            return requests[0]
        except BaseException:
            self._core.unwanted += requests  # the caller never gets these requests
            self._settle()
            raise

    def step(self) -> list[Event]:
        """Run one forward pass, if any request waits or runs.

        Returns:
            The events of submitted requests since the last call.

        Raises:
            EngineError: The engine was made before a fork, or runs a step in this thread.
            BaseException: The exception that ended the step, for example from a backend. The requests of the
                step have then ended with reason `error`; the other requests continue with the next step,
                unless the device can't be activated: then all requests have ended.
        """
        self._check_process()
        events: list[Event] = []
        try:
            with self._lock:
                self._core.step()
                events += self._events
                self._events.clear()
            return events
        except BaseException:
            self._events.extendleft(reversed(events))
            raise

    def cancel(self, request: Request) -> bool:
        """End a request and free its memory; if called within a step, after this step.

        Returns:
            Whether the request was still active.

        Raises:
            ArgumentError: `request` is not a Request.
            RequestError: The request belongs to another engine.
            EngineError: The engine was made before a fork.
        """
        self._check_process()
        if not isinstance(request, Request):
            raise ArgumentError(
                f"cancel takes a Request, got {shown(request)}", argument="request", found=request
            )
        if request.owner is not self._owner:
            raise RequestError(f"{request!r} belongs to another engine; cancel it there")
        with self._lock:
            if request.finish_reason is not None:
                return False
            self._core.unwanted += (request,)
            self._core.settle()
            return True

    def close(self) -> None:
        """Cancel everything, free model and pools, and remove the engine's hooks.

        Does nothing in a process that was forked after the engine was made, since everything belongs to the
        parent process.

        Raises:
            EngineError: The engine runs a step in this thread.
        """
        if os.getpid() != self._process:
            return
        with self._lock:
            if self._core.inside:
                raise EngineError("the engine can't be closed from within its own step")
            self._core.unwanted += self._core.tasks
            self._core.settle()
            self._unhook()
            self._unhook_draft()
            if self._core.runner is not None:
                self._core.runner = self._core.drafts = None
                del self._runner
                self._thaw()
                self.platform.hardware.empty_cache()

    def __exit__(self, *_: object) -> None:
        """Close the engine."""
        self.close()

    def _check_process(self) -> None:
        """Refuse calls in a forked process, which lacks torch's threads and may never get the lock."""
        process = os.getpid()
        if process != self._process:
            raise EngineError(
                f"the engine was made in process {self._process}, and this is process {process}, forked "
                "from it; make an engine in each process",
                process=self._process,
                found=process,
            )

    def _open_runner(self) -> Runner:
        runner = self._core.runner
        if runner is None:
            raise EngineError("the engine is closed")
        return runner

    def _settle(self) -> None:
        if os.getpid() == self._process:
            with self._lock:
                self._core.settle()

    # From Python 3.13 on, an exception from a signal handler at the end of a `while` loop skips a `finally`
    # of the same function. So such loops are in separate functions.
    def _run(self, requests: Sequence[Request]) -> None:
        while self._go_on(requests):
            self._advance()

    def _events_of(self, requests: Sequence[Request], events: deque[Event]) -> Iterator[Event]:
        while self._go_on(requests) or events:
            with self._lock:
                if not events:
                    self._advance()
            while events:
                yield events.popleft()

    def _advance(self) -> None:
        """Run the next step.

        If the step fails, its requests get the error, which `_go_on` raises in the callers' threads.
        """
        with self._lock:
            failed = self._core.stats.failed_steps
            try:
                self._core.step()
            except Exception:
                if self._core.stats.failed_steps == failed:
                    raise

    def _go_on(self, requests: Sequence[Request]) -> bool:
        """Whether any of a caller's requests is still active.

        Raises:
            BaseException: The exception that ended the step of one of these requests.
        """
        for request in requests:
            if request.step_failed and request.error is not None:
                raise request.error
        return any(request.finish_reason is None for request in requests)

    def _enqueue(
        self,
        requests: list[Request],
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None,
        events: deque[Event],
    ) -> None:
        """Add the requests of all prompts (of none if one is refused) to `requests`, and to the queue."""
        self._check_process()
        if isinstance(prompts, str):
            raise RequestError(f"prompts must be a sequence of prompts, got one string: {prompts[:40]!r}")
        prompts = listed(prompts, "prompts must be a sequence of prompts")
        if params is None or isinstance(params, SamplingParams):
            params = [params or SamplingParams()] * len(prompts)
        params = listed(params, "params must be SamplingParams, or a sequence with one for each prompt")
        if len(params) != len(prompts):
            raise RequestError(
                f"{len(prompts)} prompts, but {len(params)} SamplingParams; valid: one for all prompts, or "
                "one for each"
            )
        made: list[Request] = []
        for index, (prompt, param) in enumerate(zip(prompts, params, strict=True)):
            with prompt_named(index, prompts):
                made += self._prepare(prompt, param, events)
        requests += made
        with self._lock:
            self._open_runner()
            self._core.add(requests)

    def _prepare(self, prompt: Prompt, params: SamplingParams, events: deque[Event]) -> list[Request]:
        """Make the requests of a prompt, one per sample."""
        if not isinstance(params, SamplingParams):
            raise RequestError(f"params must be SamplingParams, got {shown(params)}", found=params)
        capacity = self.pools.pages.capacity
        tokens = self._tokens_of(prompt)
        check_length(len(tokens), params, self.max_length)
        length = len(tokens) + params.max_new_tokens
        # the last token's key and value are never read, so they are never written
        needed = pages_of(length - 1, self.options.page_size)
        if needed > capacity:
            raise RequestError(
                f"{len(tokens)} prompt tokens and {params.max_new_tokens} new tokens need {needed} pages of "
                f"{self.options.page_size} tokens; the pool has {capacity} pages",
                prompt_tokens=len(tokens),
                max_new_tokens=params.max_new_tokens,
                needed_pages=needed,
                pages=capacity,
            )
        ends = frozenset() if params.ignore_eos else self._end_tokens
        ends |= frozenset(params.stop_token_ids)
        ids = np.array(tokens, dtype=np.int64)
        numbers = [next(self._ids) for _ in range(params.n)]
        requests = [
            Request(
                id=number,
                prompt=prompt if isinstance(prompt, str) else None,
                prompt_tokens=tokens,
                params=sample,
                ids=ids,
                end_tokens=ends,
                stream=TextStream(self._decode, tokens, tuple(params.stop)),
                draws=random.Random(sample.seed),
                events=events,
                owner=self._owner,
                needed_pages=needed,
                group=numbers[0] if params.n > 1 else None,
            )
            for number, sample in zip(numbers, params.samples(), strict=True)
        ]
        if params.n > 1:
            for request in requests:
                request.siblings = tuple(requests)
        return requests

    def _tokens_of(self, prompt: Prompt) -> tuple[int, ...]:
        tokens = tokenize(self._tokenizer, prompt) if isinstance(prompt, str) else token_ids(prompt)
        wrong = next((token for token in tokens if not 0 <= token < self._vocab_size), None)
        if wrong is not None:
            raise RequestError(
                f"the prompt has {shown(wrong)} as a token id; valid: 0 to {self._vocab_size - 1}",
                found=wrong,
                valid=(0, self._vocab_size - 1),
            )
        return tokens
