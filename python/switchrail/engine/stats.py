"""What an engine has done."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class Stats:
    """Counts since the engine was made.

    The seconds of a step with rows of both kinds are shared between them by their number.

    Attributes:
        steps: Forward passes.
        failed_steps: Forward passes that raised, which `steps` does not count.
        prefill_tokens: Prompt tokens run.
        decode_tokens: Tokens run in decoding, one a sequence and step.
        prefill_seconds: Time that prefill took, sampling included.
        decode_seconds: Time that decoding took, sampling included.
    """

    steps: int = 0
    failed_steps: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0

    @property
    def prefill_tokens_per_s(self) -> float:
        """Prompt tokens a second of prefill; 0 where there was none."""
        return self.prefill_tokens / self.prefill_seconds if self.prefill_tokens else 0.0

    @property
    def decode_tokens_per_s(self) -> float:
        """Tokens a second of decoding; 0 where there was none."""
        return self.decode_tokens / self.decode_seconds if self.decode_tokens else 0.0

    def add(self, *, prefill: int, decode: int, seconds: float) -> None:
        """Counts a step of so many rows of each kind."""
        share = prefill / (prefill + decode)
        self.steps += 1
        self.prefill_tokens += prefill
        self.decode_tokens += decode
        self.prefill_seconds += seconds * share
        self.decode_seconds += seconds * (1 - share)
