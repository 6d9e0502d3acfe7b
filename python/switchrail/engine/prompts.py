"""Prompts: their tokens, and whether a model can serve them."""

from __future__ import annotations

from typing import Any

from switchrail.engine.params import SamplingParams
from switchrail.errors import RequestError


def tokenize(tokenizer: Any, prompt: str) -> tuple[int, ...]:
    """The token ids of a text.

    Raises:
        RequestError: It has none, or the tokenizer fails.
    """
    try:
        tokens = tuple(tokenizer(prompt)["input_ids"])
    except Exception as error:  # a lone surrogate, say
        raise RequestError(f"the prompt {prompt!r:.80} can't be tokenized: {error}") from error
    if not tokens:
        raise RequestError("the prompt has no tokens; at least one is needed")
    return tokens


def check_length(prompt_tokens: int, params: SamplingParams, max_length: int) -> None:
    """Checks that a prompt and what it may become fit in a sequence.

    Raises:
        RequestError: They don't.
    """
    length = prompt_tokens + params.max_new_tokens
    if length > max_length:
        raise RequestError(
            f"{prompt_tokens} prompt tokens and {params.max_new_tokens} new ones are {length}; "
            f"a sequence can have {max_length}",
            prompt_tokens=prompt_tokens,
            max_new_tokens=params.max_new_tokens,
            max_length=max_length,
        )


__all__ = ["check_length", "tokenize"]
