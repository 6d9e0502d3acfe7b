"""The sampling parameters of a request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final, TypeVar

from switchrail.checks import is_count, is_integer, is_number, refuse
from switchrail.errors import RequestError

MOST_SAMPLES = 1024
MOST_STOP_STRINGS = 64
LONGEST_STOP_STRING = 1024

_ALL: Final = 1 << 53  # as top_k, more than any vocabulary; floats represent all integers up to it
_GREEDY: Final = (0.0, 0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How a request's tokens are chosen, and when it ends. The defaults decode greedily.

    The filters apply in the same order as in transformers: temperature, top_k, top_p, min_p.

    Attributes:
        n: Number of samples of the prompt, at most 1,024. The samples equal those of n requests with the
            seeds `seed`, `seed` + 1 and so on. Samples that run together share the prompt's prefill and
            pages.
        max_new_tokens: Maximum number of tokens to generate.
        temperature: 0 takes the most likely token. With any other temperature, the logits are divided by it
            and a token is drawn.
        top_k: Draw among the k most likely tokens; None means all.
        top_p: Draw among the fewest most likely tokens whose probabilities add up to at least this value.
        min_p: Draw among tokens whose probability is at least this fraction of the greatest probability.
        seed: Seed of the request's own random numbers, which other requests do not affect. None means a seed
            from the operating system.
        stop: Strings that end the output: at most 64, each of at most 1,024 characters. The text is cut
            before the first occurrence, even if it spans several tokens. Each string makes each step slower,
            more so the longer it is.
        stop_token_ids: Token ids that end the output, in addition to the checkpoint's end tokens.
        ignore_eos: Continue after the checkpoint's end tokens.

    Raises:
        RequestError: Values are out of range; the error lists all of them.
    """

    n: int = 1
    max_new_tokens: int = 128
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        positive = "an integer of at least 1"
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        for name in ("stop", "stop_token_ids"):
            value = getattr(self, name)
            if isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping)):
                object.__setattr__(self, name, tuple(value))
        n, seed, stop = self.n, self.seed, self.stop
        samples = n if is_count(n) and n <= MOST_SAMPLES else 1
        checks = {
            "n": (is_count(n) and n <= MOST_SAMPLES, f"an integer from 1 to {MOST_SAMPLES}"),
            "max_new_tokens": (is_count(self.max_new_tokens), positive),
            "temperature": (
                is_number(self.temperature) and self.temperature >= 0,
                "a finite number of at least 0",
            ),
            "top_k": (self.top_k is None or is_integer(self.top_k, 1), f"None or {positive}"),
            "top_p": (is_number(self.top_p) and 0 < self.top_p <= 1, "a number above 0 and at most 1"),
            "min_p": (is_number(self.min_p) and 0 <= self.min_p <= 1, "a number from 0 to 1"),
            "seed": (
                seed is None or (is_count(seed, 0) and is_count(seed + samples - 1, 0)),
                f"None or an integer from 0 to 2**64 - {samples}, as n={samples} uses {samples} seeds"
                if samples > 1
                else "None or an integer from 0",
            ),
            "stop": (
                isinstance(stop, tuple)
                and len(stop) <= MOST_STOP_STRINGS
                and all(isinstance(text, str) and 0 < len(text) <= LONGEST_STOP_STRING for text in stop),
                f"a non-empty string of at most {LONGEST_STOP_STRING:,} characters, or a sequence of at most "
                f"{MOST_STOP_STRINGS} of them",
            ),
            "stop_token_ids": (
                isinstance(self.stop_token_ids, tuple)
                and all(is_count(token, 0) for token in self.stop_token_ids),
                "a sequence of integers from 0",
            ),
            "ignore_eos": (isinstance(self.ignore_eos, bool), "True or False"),
        }
        refuse(RequestError, self, checks)

    def samples(self) -> list[SamplingParams]:
        """The parameters of each of the `n` samples, as for separate prompts."""
        if self.n == 1:
            return [self]
        seeds = range(self.n) if self.seed is None else range(self.seed, self.seed + self.n)
        return [replace(self, n=1, seed=None if self.seed is None else seed) for seed in seeds]


def filters_of(params: SamplingParams) -> tuple[float, float, float, float]:
    """Temperature, top_k, top_p and min_p as numbers."""
    top_k = _ALL if params.top_k is None or params.top_k > _ALL else params.top_k
    return params.temperature, top_k, params.top_p, params.min_p


def numbers_of(params: Iterable[SamplingParams], draws: Iterable[Random]) -> list[tuple[float, ...]]:
    """Sampling parameters of each row, as numbers.

    Args:
        params: Each row's sampling parameters.
        draws: Each row's source of random numbers; a sampled row takes one number.

    Returns:
        For each row temperature, top_k, top_p, min_p and an integer from 0 to 2**53 - 1; if the temperature
        is 0, the others are ignored.
    """
    return [
        (*filters_of(one), seed_of(draw)) if one.temperature > 0 else _GREEDY
        for one, draw in zip(params, draws, strict=True)
    ]


def seed_of(draw: Random) -> float:
    """A random integer from 0 to 2**53 - 1, as a float, from one number of the source."""
    return draw.random() * _ALL  # `random()` is a multiple of 2**-53


F = TypeVar("F", bound=Callable[..., Any])


def capturable(choose: F) -> F:
    """Marks a function that chooses tokens, so that graphs of greedy decodes and verifications contain it.

    For greedy rows, the function must only launch work on the device, and this work may depend on the logits
    only. The function is called when a graph is captured, with parameters for greedy rows and without sources
    of random numbers. A replay does not call it.
    """
    choose.capturable = True  # type: ignore[attr-defined]
    return choose
