"""Requests and their outputs."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from switchrail.engine.task import FinishReason, Task
from switchrail.engine.text import TextStream


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """The result of a finished request.

    Attributes:
        prompt: The prompt as given; None if it was given as token ids.
        prompt_tokens: The prompt's token ids.
        tokens: The generated token ids, including the one that ended the output.
        text: The text of the tokens, without special tokens and without the end token. If a stop string was
            found, the text ends before it.
        finish_reason: `stop` (an end token or stop string), `length` (`max_new_tokens` tokens), `cancelled`
            or `error`.
        error: The exception, if `finish_reason` is `error`.
    """

    prompt: str | None
    prompt_tokens: tuple[int, ...]
    tokens: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    error: BaseException | None = None


class Event(NamedTuple):
    """A new token of a request, the end of the request, or both.

    Attributes:
        request: The request.
        token: The new token's id; None if a request ends without one.
        text: The text that became final with this event. The texts of all events of a request together are
            the request's text.
        finish_reason: Why the request ended; None while it is active.
    """

    request: Request
    token: int | None
    text: str
    finish_reason: FinishReason | None


@dataclass(eq=False, slots=True, kw_only=True)
class Request(Task):
    """One sample of a submitted prompt. Its attributes change while it runs.

    Attributes:
        id: Number of the request in its engine, from 0.
        prompt: The prompt as given; None if it was given as token ids.
        prompt_tokens: The prompt's token ids.
        params: The request's sampling parameters and end conditions.
        tokens: The token ids generated so far.
        finish_reason: Why the request ended; None while it waits or runs.
        error: The exception, if `finish_reason` is `error`.
    """

    id: int
    prompt: str | None
    prompt_tokens: tuple[int, ...]
    # The attributes below are only for the engine.
    owner: object
    stream: TextStream
    events: deque[Event]
    siblings: tuple[Request, ...] = ()

    @property
    def samples(self) -> tuple[Request, ...]:
        """The requests of all samples of the prompt, including this one."""
        return self.siblings or (self,)

    @property
    def text(self) -> str:
        """The text so far, except an end that later tokens may change."""
        return self.stream.text

    @property
    def output(self) -> Output:
        """The output; only for finished requests."""
        assert self.finish_reason is not None, "the request is not finished"
        return Output(
            prompt=self.prompt,
            prompt_tokens=self.prompt_tokens,
            tokens=tuple(self.tokens),
            text=self.text,
            finish_reason=self.finish_reason,
            error=self.error,
        )

    def note(
        self, token: int | None, reason: FinishReason | None, error: BaseException | None = None
    ) -> None:
        """Record a new token, the end of the request, or both, as an event with the text that became final.

        An exception of `TextStream.finish` becomes the request's error.
        """
        text = ""
        if token is not None and reason != "stop":
            text = self.stream.push(token)
            if self.stream.stopped:
                reason = "stop"
        if reason is not None and reason != "error":
            try:
                text += self.stream.finish()
            except Exception as failure:
                reason, error = "error", failure
        event = Event(self, token, text, reason)
        # as in `Sequences.admit`, no signal handler can raise between these statements
        if token is not None:
            self.tokens += (token,)
        self.error, self.finish_reason = error, reason
        self.events += (event,)

    def __repr__(self) -> str:
        state = self.finish_reason or ("running" if self.slot else "waiting")
        return f"<Request {self.id}: {len(self.prompt_tokens)} + {len(self.tokens)} tokens, {state}>"


__all__ = ["Event", "FinishReason", "Output", "Request"]
