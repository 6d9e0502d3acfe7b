"""Counters of an engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class Stats:
    """Counts and times since the engine was made.

    The time of a step that runs prompts and decodes is divided in proportion to the prompt tokens and the
    decoded tokens.

    Attributes:
        steps: Forward passes of the model.
        failed_steps: Steps that raised an exception.
        prefill_tokens: Prompt tokens that were run.
        decode_tokens: Tokens generated in decoding: one per sequence and step, plus accepted drafts.
        prefill_seconds: Time spent on prefill, sampling included.
        decode_seconds: Time spent on decoding, sampling included.
        verifications: Verifications of drafted tokens, one per sequence and step.
        drafted_tokens: Tokens proposed by drafts.
        accepted_tokens: Drafted tokens that requests received.
    """

    steps: int = 0
    failed_steps: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    verifications: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0

    @property
    def prefill_tokens_per_s(self) -> float:
        """Prompt tokens per second of prefill; 0 if there was none."""
        return self.prefill_tokens / self.prefill_seconds if self.prefill_tokens else 0.0

    @property
    def decode_tokens_per_s(self) -> float:
        """Tokens per second of decoding; 0 if there was none."""
        return self.decode_tokens / self.decode_seconds if self.decode_tokens else 0.0

    @property
    def accepted_per_verification(self) -> float:
        """Mean number of accepted drafts per verification; 0 without verifications."""
        return self.accepted_tokens / self.verifications if self.verifications else 0.0

    def add(self, *, prefill: int, decode: int, seconds: float) -> None:
        """Count a step with these numbers of prompt tokens and of decoded tokens."""
        share = prefill / (prefill + decode)
        self.steps += 1
        self.prefill_tokens += prefill
        self.decode_tokens += decode
        self.prefill_seconds += seconds * share
        self.decode_seconds += seconds * (1 - share)

    def add_drafts(self, drafted: Sequence[int], accepted: int) -> None:
        """Count a step's verifications.

        Args:
            drafted: Each sequence's number of drafts. A sequence without drafts adds no verification.
            accepted: The number of accepted drafts of all sequences.
        """
        self.verifications += sum(map(bool, drafted))
        self.drafted_tokens += sum(drafted)
        self.accepted_tokens += accepted
