"""SGLang's engine as a contender of the benchmark."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from benchmarks.serving.slices import LONG, LONGEST, Work

_SCRIPT = Path(__file__).parent / "peers/sglang_engine.py"

_SHOWN = 2000
"""How many of the last characters of SGLang's output an error shows."""

_EXIT_SECONDS = 30
"""Seconds that SGLang may take to exit."""


class SGLang(AbstractContextManager["SGLang"]):
    """SGLang's engine in a child process, run by the interpreter of another environment.

    Attributes:
        name: The contender's name in the results.
        seconds: Seconds from the start of the process to a request's first token.
        version: SGLang's version.
    """

    def __init__(
        self,
        checkpoint: Path,
        *,
        python: str,
        sequences: int,
        new_tokens: int,
        options: Mapping[str, Any],
        log: Path,
        name: str = "SGLang",
    ) -> None:
        """Start the process.

        Args:
            checkpoint: The checkpoint to serve.
            python: The interpreter of an environment with SGLang, or a script that runs it.
            sequences: Maximum concurrent sequences.
            new_tokens: Maximum new tokens per sequence.
            options: Further arguments of SGLang's engine.
            log: The file for SGLang's output.
            name: The contender's name in the results.
        """
        self.name = name
        self._log = log
        read, write = os.pipe()
        start = time.perf_counter()
        with log.open("w") as output:
            self._process = subprocess.Popen(
                [python, _SCRIPT, str(write)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(write,),
                text=True,
            )
        os.close(write)
        self._answers = os.fdopen(read)
        self.version = self._ask(
            {
                "model_path": str(checkpoint),
                "skip_tokenizer_init": True,
                # The radix cache would reuse repeated prompts, and for some models turn off SGLang's overlap
                # schedule.
                "disable_radix_cache": True,
                "grammar_backend": "none",
                "mem_fraction_static": 0.5,
                "max_running_requests": sequences,
                "max_total_tokens": max(sequences * (LONGEST + new_tokens), LONG + new_tokens) + 4096,
                "context_length": LONG + 2 * new_tokens,
                "random_seed": 0,
                "log_level": "info",
                **options,
            }
        )
        self.run(Work([[2, 3, 4]], 1, {}))
        self.seconds = time.perf_counter() - start

    def run(self, work: Work) -> float:
        """Seconds until all prompts, submitted together, have all their new tokens."""
        found: float = self._ask({"call": "run", "prompts": work.prompts, "params": _params(work)})
        return found

    def serve(self, work: Work, arrivals: Sequence[float]) -> list[list[float]]:
        """The times in seconds of each token of each prompt, with prompts submitted at `arrivals`."""
        found: list[list[float]] = self._ask(
            {"call": "serve", "prompts": work.prompts, "arrivals": arrivals, "params": _params(work)}
        )
        return found

    def tokens(self, work: Work) -> list[dict[str, Any]]:
        """For each prompt: new `tokens`, number of `cached` prompt tokens, number of `accepted` drafts."""
        found: list[dict[str, Any]] = self._ask(
            {"call": "tokens", "prompts": work.prompts, "params": _params(work)}
        )
        return found

    def scores(self, prompts: Sequence[list[int]]) -> list[dict[str, Any]]:
        """For each prompt: the `scores` (log-probabilities) of its tokens after the first, and the `best`
        tokens at the same positions."""
        found: list[dict[str, Any]] = self._ask({"call": "scores", "prompts": prompts})
        return found

    def _ask(self, request: Mapping[str, Any]) -> Any:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the process has ended; the error below shows its output
        line = self._answers.readline()
        if not line:
            self._end()
            raise RuntimeError(f"SGLang has ended: {self._log.read_text(errors='replace')[-_SHOWN:]}")
        return json.loads(line)

    def __exit__(self, *_: object) -> None:
        """End the process."""
        self._end()

    def _end(self) -> None:
        try:
            self._process.communicate(timeout=_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._answers.close()


def _params(work: Work) -> dict[str, Any]:
    return {"max_new_tokens": work.new_tokens, "ignore_eos": True, "temperature": 0, **work.sampling}
