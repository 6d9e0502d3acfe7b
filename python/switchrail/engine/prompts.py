"""Converts prompts to tokens, and checks that a model can serve them."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence, Set, Sized
from contextlib import contextmanager
from typing import Any

from switchrail.checks import shown
from switchrail.errors import RequestError
from switchrail.params import SamplingParams


@contextmanager
def prompt_named(index: int, prompts: Sequence[Any]) -> Iterator[None]:
    """If one of several prompts is refused, the error says which one, and has the field `index`."""
    try:
        yield
    except RequestError as error:
        if len(prompts) == 1:
            raise
        start = f" ({prompts[index]!r:.40})" if isinstance(prompts[index], str) else ""
        where = f"prompt {index + 1} of {len(prompts)}{start}"
        raise RequestError(f"{where}: {error}", **error.fields, index=index) from error


def listed(found: Any, expected: str) -> list[Any]:
    """The items of a sequence.

    Args:
        found: An object with a length and items, such as a list, a tuple or an array.
        expected: The requirement on `found` as a sentence; the error message starts with it.

    Raises:
        RequestError: `found` is no such object, or is a string, bytes, a mapping or a set.
    """
    others = (str, bytes, bytearray, memoryview, Mapping, Set)
    try:
        if isinstance(found, Sized) and not isinstance(found, others):
            return list(found)  # type: ignore[call-overload, no-any-return]
    except TypeError:  # raised by an array without dimensions
        pass
    raise RequestError(f"{expected}, got {shown(found)}", found=found)


def token_ids(prompt: Any) -> tuple[int, ...]:
    """Check token ids that were passed as a prompt.

    Raises:
        RequestError: The prompt is not a sequence of token ids, or is empty.
    """
    tokens = listed(prompt, "a prompt must be a string or token ids")
    if not tokens:
        raise RequestError("the prompt has no tokens; at least one is needed")
    try:
        if bool not in map(type, tokens):
            return tuple(map(operator.index, tokens))
    except TypeError:
        pass
    raise RequestError(f"a prompt must be a string or token ids, got {shown(prompt)}", found=prompt)


def tokenize(tokenizer: Any, prompt: str) -> tuple[int, ...]:
    """The token ids of a string.

    Raises:
        RequestError: The string has no tokens, or the tokenizer fails.
    """
    try:
        tokens = tuple(tokenizer(prompt)["input_ids"])
    except Exception as error:  # raised for example by a lone surrogate
        raise RequestError(f"the prompt {prompt!r:.80} can't be tokenized: {error}") from error
    if not tokens:
        raise RequestError("the prompt has no tokens; at least one is needed")
    return tokens


def check_length(prompt_tokens: int, params: SamplingParams, max_length: int) -> None:
    """Check that a prompt and its longest possible output fit in a sequence.

    Raises:
        RequestError: The prompt and the output don't fit.
    """
    length = prompt_tokens + params.max_new_tokens
    if length > max_length:
        raise RequestError(
            f"{prompt_tokens} prompt tokens and {params.max_new_tokens} new tokens are {length}; a sequence "
            f"can have at most {max_length}",
            prompt_tokens=prompt_tokens,
            max_new_tokens=params.max_new_tokens,
            max_length=max_length,
        )
