"""Decodes tokens to text incrementally."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tokenizers.decoders import ByteLevel

CONTEXT = 6  # the number of the prompt's last tokens that are decoded together with the first output token
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"  # decoders write it for incomplete characters


def decoder(tokenizer: Any) -> Callable[[list[int]], str]:
    """The function that converts a tokenizer's ids to text without special tokens."""
    fast = getattr(tokenizer, "backend_tokenizer", None)
    if fast is None:
        return lambda ids: str(
            tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        )

    def decode(ids: list[int]) -> str:
        return str(fast.decode(ids, skip_special_tokens=True))

    return ByteTexts(decode) if isinstance(fast.decoder, ByteLevel) else decode


class ByteTexts(dict[int, str]):
    """Decodes ids by concatenating the bytes of all tokens. Caches the texts of single tokens.

    The text of whole characters does not depend on the tokens before them.
    """

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        """Start without texts; `decode` converts ids to text."""
        super().__init__()
        self._decode = decode

    def __call__(self, ids: list[int]) -> str:
        """The text of several tokens."""
        return self._decode(ids)

    def __missing__(self, token: int) -> str:
        """Decode a token, and keep its text."""
        text = self[token] = self._decode([token])
        return text


class TextStream:
    """The text of one request. It grows by whole characters, and ends before a stop string.

    A token may end inside a character, and its text may depend on the token before it (for example by a
    leading space). So new tokens are decoded together with the previous ones, and text that ends in an
    unfinished character is held back until the next token. Text that may be the beginning of a stop string is
    held back, too.

    Attributes:
        stopped: Whether a stop string was found; then no more text is added.
    """

    def __init__(
        self, decode: Callable[[list[int]], str], prompt_tokens: Sequence[int], stop: tuple[str, ...]
    ) -> None:
        """Start after a prompt.

        Args:
            decode: Converts token ids to text; must keep a leading space that belongs to the text.
            prompt_tokens: The prompt, whose end is the context of the first token.
            stop: Strings that end the text.
        """
        self.stopped = False
        self._decode = decode
        self._stop = stop
        self._window = list(prompt_tokens[-CONTEXT:])
        self._context = len(self._window)
        self._shown = decode(self._window)
        self._is_whole = REPLACEMENT not in self._shown  # whether all characters are whole
        self._held = ""
        self._parts: list[str] = []
        self._tail: str | None = None

    @property
    def text(self) -> str:
        """The text so far, except an end that later tokens may change."""
        return "".join(self._parts) + (self._tail or "")

    def push(self, token: int) -> str:
        """Add a token. Return the text that becomes final with this token, often an empty string."""
        decode = self._decode
        if self._is_whole and isinstance(decode, ByteTexts) and REPLACEMENT not in decode[token]:
            window, context = [token], 1
            new = shown = decode[token]
        else:
            window = [*self._window, token]
            text = decode(window)
            if len(text) <= len(self._shown) or text.endswith(REPLACEMENT):
                self._window, self._is_whole = window, False
                return ""
            new = text[len(self._shown) :]
            window = window[self._context :]
            context, shown = len(window), decode(window)
        certain, held, stopped = self._cut(self._held + new) if self._stop else (new, "", False)
        self._window, self._context, self._shown = window, context, shown
        self._is_whole = REPLACEMENT not in shown
        self._held, self.stopped = held, stopped
        self._parts += (certain,)
        return certain

    def finish(self) -> str:
        """Return the text held back after the last token. Further calls return the same text."""
        if self._tail is not None:
            return self._tail
        if self.stopped:
            return ""
        new = self._decode(self._window)[len(self._shown) :]
        certain, held, stopped = self._cut(self._held + new) if self._stop else (new, "", False)
        self._tail, self.stopped = certain + held, stopped
        return self._tail

    def _cut(self, text: str) -> tuple[str, str, bool]:
        """The certain part of the text, the part to hold back, and whether a stop string was found."""
        for stop in self._stop:
            if stop[0] in text:
                break
        else:
            return text, "", False
        found = [text.find(stop) for stop in self._stop if stop in text]
        if found:
            return text[: min(found)], "", True
        certain = len(text) - max([_overlap(text, stop) for stop in self._stop])
        return text[:certain], text[certain:], False


def _overlap(text: str, stop: str) -> int:
    """The length of the longest suffix of `text` that is a proper prefix of `stop`."""
    start = text.find(stop[0], max(0, len(text) - len(stop) + 1))
    while start >= 0:
        if stop.startswith(text[start:]):
            return len(text) - start
        start = text.find(stop[0], start + 1)
    return 0
