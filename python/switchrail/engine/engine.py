"""The engine: a hybrid model that serves many requests at one time."""

from __future__ import annotations

import logging
import operator
import random
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from switchrail._core import BoundPlan, Layout, RoutePlan
from switchrail.current import current_runtime
from switchrail.engine.checkpoint import load, read_config
from switchrail.engine.dtypes import STATE_DTYPE, choose_dtype
from switchrail.engine.hub import find_checkpoint
from switchrail.engine.options import EngineOptions, options_on
from switchrail.engine.params import SamplingParams
from switchrail.engine.pools import pages_of
from switchrail.engine.prompts import check_length, tokenize
from switchrail.engine.request import Event, FinishReason, Output, Request
from switchrail.engine.routes import plan_routes
from switchrail.engine.runner import Runner
from switchrail.engine.sampling import choose
from switchrail.engine.scheduler import Schedule, Scheduler
from switchrail.engine.stats import Stats
from switchrail.engine.text import TextStream
from switchrail.errors import ConfigError, RequestError
from switchrail.platforms import Platform
from switchrail.platforms.operations import ChooseTokens
from switchrail.runtime import Runtime

Prompt = str | Sequence[int]

_log = logging.getLogger("switchrail")


class Engine(AbstractContextManager["Engine"]):
    """Runs a checkpoint: transformers' model definition, each layer's attention on the backend of its route.

    Requests are submitted at any time and run together. `generate` and `stream` do all that is needed;
    `submit`, `step` and `cancel` are for a program that has a loop of its own. All methods can be called
    from any thread; steps run one at a time, in whichever thread asks for one.

    Example:
        >>> with Engine("tests/checkpoints/kjv-qwen3-next") as engine:  # doctest: +SKIP
        ...     print(engine.generate(["In the beginning"])[0].text)

    Attributes:
        options: The sizes.
        platform: What the model runs on.
        plan: The route plan.
        bound: The plan's backends.
        pools: The memory for keys, values and states.
        max_length: The most tokens of a sequence, prompt and output together.
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
    ) -> None:
        """Plans the routes, logs their backends' names, loads the model and allocates the pools.

        Args:
            checkpoint: A folder in transformers' format, with tokenizer and safetensors weights; or the name
                of a model on the Hugging Face hub that is in the local cache.
            runtime: Whose backends may serve; None: the current one, with the installed plugins loaded.
            device: Where to run, as `Runtime.find_platform` takes it; None: the runtime's platform.
            dtype: `float32`, `float16` or `bfloat16`; None: the checkpoint's own, on a CPU float32.
            backends: Choices by op, by op and phase (`gated_delta.decode`), or for the linear family
                (`linear`).
            options: Sizes.

        Raises:
            CheckpointError: The folder is not a checkpoint that the engine runs.
            PlatformError: There is no such device, or the platform gives something else than it must.
            NotProvidedError: The platform does not provide what the engine needs.
            ConfigError: An option is unknown or out of range, or there is not enough memory.
            UnknownDtypeError: The dtype is none of those above.
            NoBackendError: No backend serves one of the model's ops.
            UnknownBackendError: A chosen backend is not registered.
            PreferenceError: A choice of a backend can have no effect on this model.
            BackendUnfitError: A chosen backend can't serve what it was chosen for.
        """
        path = find_checkpoint(checkpoint)
        config = read_config(path)
        if runtime is None:
            runtime = current_runtime()
            runtime.load()
        self.platform: Platform = runtime.platform if device is None else runtime.find_platform(device)
        self.device = torch.device(self.platform.device)
        self.options = options_on(self.platform, options)
        self.dtype: torch.dtype = getattr(torch, choose_dtype(dtype, config, self.platform.hardware))
        self.platform.initialize()
        self._choose = self.platform.serving.forward_of(ChooseTokens)
        with self.platform.hardware.active():
            self._make(runtime, path, config, backends)
        self.pools = self._runner.pools
        self._scheduler = Scheduler(self.pools.pages, self.pools.slots, self.options)
        self._stats = Stats()
        self._events: deque[Event] = deque()
        self._submitted = 0
        self._lock = threading.RLock()
        self._stepping = False
        self._held_up: list[Request] = []  # to be cancelled when the step is over

    def _make(
        self, runtime: Runtime, path: Path, config: dict[str, Any], backends: Mapping[str, str] | None
    ) -> None:
        """Plans the routes, loads the model and makes what runs it."""
        if self.options.seed is not None:
            self.platform.hardware.seed(self.options.seed)
        self.plan: RoutePlan = plan_routes(
            runtime,
            Layout.from_config(path),
            platform=self.platform,
            dtype=str(self.dtype),
            page_size=self.options.page_size,
            preferences=backends,
        )
        names = dict.fromkeys(f"{op}.{phase}={name}" for _, op, phase, name in self.plan.table)
        _log.info("backends: %s", " ".join(names))
        self.bound: BoundPlan = runtime.bind(self.plan)

        loaded = load(path, config, device=self.device, dtype=self.dtype)
        self.platform.serving.after_weights_loaded(loaded.model)
        self.max_length = self.options.max_length or loaded.max_length
        if self.max_length > loaded.max_length:
            raise ConfigError(
                f"max_length is {self.max_length}, but the model was made for {loaded.max_length} tokens",
                problems={"max_length": f"found {self.max_length}"},
                valid={"max_length": f"an integer from 2 to {loaded.max_length}"},
            )
        self._tokenizer = loaded.tokenizer
        self._end_tokens = loaded.end_tokens
        self._vocab_size = loaded.vocab_size
        self._decode = _decoder(loaded.tokenizer)
        self._runner = Runner(
            loaded,
            self.bound,
            self.options,
            platform=self.platform,
            dtype=self.dtype,
            state_dtype=getattr(torch, STATE_DTYPE),
            max_length=self.max_length,
        )
        self._unhook = weakref.finalize(self, self._runner.hooks.clear)

    @property
    def stats(self) -> Stats:
        """What the engine has done so far."""
        return replace(self._stats)

    @property
    def busy(self) -> bool:
        """Whether any request waits or runs."""
        return self._scheduler.busy

    def generate(
        self, prompts: Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> list[Output]:
        """Runs prompts to their ends.

        Args:
            prompts: Texts or token ids.
            params: For all of them, or one for each; None: greedy defaults.

        Returns:
            An output for each prompt, in their order. One that ended with `error` has the reason beside it.

        Raises:
            RequestError: A prompt can't be served; then none is.
            BaseException: What a backend raised in a step that ran one of these prompts; then all of them
                have ended.
        """
        requests, _ = self._submit_all(prompts, params)
        try:
            while any(request.finish_reason is None for request in requests):
                with self._lock:
                    self._advance(requests)
        finally:
            self._cancel_all(requests)
        return [request.output for request in requests]

    def stream(
        self, prompts: Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> Iterator[Event]:
        """Runs prompts and yields their events as they come; leaving it early cancels what still runs.

        Args:
            prompts: Texts or token ids.
            params: For all of them, or one for each; None: greedy defaults.

        Yields:
            Events; `event.request.id` counts up in the order of the prompts.

        Raises:
            RequestError: A prompt can't be served; then none is. Raised when the first event is asked for.
            BaseException: What a backend raised in a step that ran one of these prompts; then all of them
                have ended.
        """
        requests, events = self._submit_all(prompts, params)
        try:
            while events or any(request.finish_reason is None for request in requests):
                with self._lock:
                    if not events:
                        self._advance(requests)
                while events:
                    yield events.popleft()
        finally:
            self._cancel_all(requests)

    def submit(self, prompt: Prompt, params: SamplingParams | None = None) -> Request:
        """Puts a prompt in line; `step` runs it.

        Args:
            prompt: A text or token ids.
            params: None: greedy defaults.

        Returns:
            The request, whose attributes follow its progress.

        Raises:
            RequestError: The prompt can't be served, now or ever.
        """
        with self._lock:
            request = self._prepare(prompt, params or SamplingParams(), self._events)
            self._scheduler.waiting.append(request)
            return request

    def step(self) -> list[Event]:
        """Runs one forward pass, if any request waits or runs.

        Returns:
            What happened to requests that were submitted with `submit`, since the last call.

        Raises:
            BaseException: What a backend raised. The requests of the step have then ended with reason
                `error`; all others go on with the next step.
        """
        with self._lock:
            self._advance()
            events = list(self._events)
            self._events.clear()
            return events

    def cancel(self, request: Request) -> bool:
        """Ends a request where it is and frees what it held; from within a step, when the step is over.

        Returns:
            Whether it had not ended yet.
        """
        with self._lock:
            if request.finish_reason is not None:
                return False
            if self._stepping:  # this thread's own: the garbage collector closes a stream, say
                self._held_up.append(request)
            else:
                self._finish(request, "cancelled")
            return True

    def close(self) -> None:
        """Cancels everything, frees model and pools, and takes the engine's hooks out."""
        with self._lock:
            if self._unhook.alive:
                scheduler = self._scheduler
                self._cancel_all([*scheduler.waiting, *scheduler.prefilling, *scheduler.decoding])
                self._unhook()
                del self._runner, self.pools
                self.platform.hardware.empty_cache()

    def __exit__(self, *_: object) -> None:
        """Closes the engine."""
        self.close()

    def _submit_all(
        self, prompts: Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None
    ) -> tuple[list[Request], deque[Event]]:
        """Submits all prompts or none; their events go to a queue of their own."""
        if isinstance(prompts, str):
            raise RequestError(f"prompts must be a sequence of prompts, found one text: {prompts[:40]!r}")
        if params is None or isinstance(params, SamplingParams):
            params = [params or SamplingParams()] * len(prompts)
        if len(params) != len(prompts):
            raise RequestError(
                f"{len(prompts)} prompts, but {len(params)} SamplingParams; valid: one, or one each"
            )
        events: deque[Event] = deque()
        with self._lock:
            requests = [
                self._prepare(prompt, param, events) for prompt, param in zip(prompts, params, strict=True)
            ]
            self._scheduler.waiting.extend(requests)
        return requests, events

    def _cancel_all(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self.cancel(request)

    def _prepare(self, prompt: Prompt, params: SamplingParams, events: deque[Event]) -> Request:
        if not self._unhook.alive:
            raise RequestError("the engine is closed")
        if not isinstance(params, SamplingParams):
            raise RequestError(f"params must be SamplingParams, found {params!r:.80}")
        tokens = self._tokens_of(prompt)
        check_length(len(tokens), params, self.max_length)
        length = len(tokens) + params.max_new_tokens
        # the last token's key and value are never read, so they are never written
        needed = pages_of(length - 1, self.options.page_size)
        if needed > self.pools.pages.capacity:
            raise RequestError(
                f"{len(tokens)} prompt tokens and {params.max_new_tokens} new ones need {needed} pages of "
                f"{self.options.page_size} tokens; the pool has {self.pools.pages.capacity}",
                prompt_tokens=len(tokens),
                max_new_tokens=params.max_new_tokens,
                needed_pages=needed,
                pages=self.pools.pages.capacity,
            )
        ends = frozenset() if params.ignore_eos else self._end_tokens
        request = Request(
            id=self._submitted,
            prompt=prompt if isinstance(prompt, str) else None,
            prompt_tokens=tokens,
            params=params,
            ids=np.array(tokens, dtype=np.int64),
            end_tokens=ends | frozenset(params.stop_token_ids),
            stream=TextStream(self._decode, tokens, tuple(params.stop)),
            draws=random.Random(params.seed),
            events=events,
            needed_pages=needed,
        )
        self._submitted += 1
        return request

    def _tokens_of(self, prompt: Prompt) -> tuple[int, ...]:
        if isinstance(prompt, str):
            tokens = tokenize(self._tokenizer, prompt)
        else:
            try:
                tokens = tuple(operator.index(token) for token in prompt)
            except TypeError:
                raise RequestError(f"a prompt is a text or token ids, found {prompt!r:.80}") from None
            if not tokens:
                raise RequestError("the prompt has no tokens; at least one is needed")
        wrong = next((token for token in tokens if not 0 <= token < self._vocab_size), None)
        if wrong is not None:
            raise RequestError(
                f"the prompt has token id {wrong}; valid: 0 to {self._vocab_size - 1}",
                found=wrong,
                valid=(0, self._vocab_size - 1),
            )
        return tokens

    def _advance(self, own: Sequence[Request] | None = None) -> None:
        """Runs the next step, if there is one, then the cancellations that it held up.

        Args:
            own: The caller's requests; None: all.

        Raises:
            BaseException: What ended the step, if one of the caller's requests ran in it.
        """
        schedule, admitted = self._scheduler.schedule()
        if not schedule.requests:
            return
        self._stepping = True
        try:
            self._run_step(schedule, admitted)
        except BaseException as error:
            for request in schedule.requests:
                if request.finish_reason is None:
                    self._finish(request, "error", error)
            if (
                own is None
                or not isinstance(error, Exception)
                or any(request in own for request in schedule.requests)
            ):
                raise
        finally:
            self._stepping = False
            while self._held_up:
                self.cancel(self._held_up.pop())

    def _run_step(self, schedule: Schedule, admitted: Sequence[Request]) -> None:
        start = time.perf_counter()
        ready, tokens = self._choose_tokens(schedule, admitted)
        seconds = time.perf_counter() - start
        self._stats.add(
            prefill=sum(count for _, count in schedule.prefill), decode=len(schedule.decode), seconds=seconds
        )
        self._runner.builder.append(ready, [token or 0 for token in tokens])
        for request, token in zip(ready, tokens, strict=True):
            try:
                if token is None:
                    raise RequestError("the model's logits are not finite")
                self._accept(request, token)
            except Exception as error:  # a tokenizer's, say: it ends this request and no other
                self._finish(request, "error", error)

    @torch.inference_mode()
    def _choose_tokens(
        self, schedule: Schedule, admitted: Sequence[Request]
    ) -> tuple[list[Request], list[int | None]]:
        """Runs the model; returns the requests that got a token, and their tokens."""
        with self.platform.hardware.active():
            logits = self._runner.run(schedule, admitted)
            ready = self._scheduler.advance(schedule)
            if not ready:
                return [], []
            params = [request.params for request in ready]
            return ready, (self._choose or choose)(logits, params, [request.draws for request in ready])

    def _accept(self, request: Request, token: int) -> None:
        """Adds a token to a request, ends the request where it must, and tells about it."""
        request.tokens.append(token)
        reason: FinishReason | None = None
        text = ""
        if token in request.end_tokens:
            reason = "stop"
        else:
            text = request.stream.push(token)
            if request.stream.stopped:
                reason = "stop"
            elif len(request.tokens) == request.params.max_new_tokens:
                reason = "length"
        if reason is None:
            request.events.append(Event(request=request, token=token, text=text, finish_reason=None))
        else:
            self._finish(request, reason, token=token, text=text)

    def _finish(
        self,
        request: Request,
        reason: FinishReason,
        error: BaseException | None = None,
        *,
        token: int | None = None,
        text: str = "",
    ) -> None:
        """Ends a request and frees what it held, also where its last text can't be decoded."""
        if reason != "error":
            try:
                text += request.stream.finish()
            except Exception as failure:
                reason, error = "error", failure
        self._scheduler.remove(request)
        request.finish_reason = reason
        request.error = error
        request.events.append(Event(request=request, token=token, text=text, finish_reason=reason))


def _decoder(tokenizer: Any) -> Callable[[list[int]], str]:
    """Ids to text without special tokens; the tokenizers library is called directly, which is faster."""
    fast = getattr(tokenizer, "backend_tokenizer", None)
    if fast is not None:
        return lambda ids: str(fast.decode(ids, skip_special_tokens=True))
    return lambda ids: str(
        tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    )


__all__ = ["Engine", "Prompt"]
