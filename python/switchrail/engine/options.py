"""The options of an engine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from switchrail.checks import is_count, is_number, refuse
from switchrail.engine.drafts import Drafts
from switchrail.errors import ConfigError, PlatformError
from switchrail.nearest import unknown

if TYPE_CHECKING:
    from switchrail.platforms import Platform


MAX_SEQUENCES: Final = 32
DRAFT_TOKENS: Final = 4
NGRAM: Final = "ngram"
MTP: Final = "mtp"
"""Values of `draft` that name no checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """The options of an engine. Everything that depends on them is allocated once, when the engine is made.

    For options that are None, or missing in a mapping, the platform's `Serving.engine_defaults` apply.

    Attributes:
        max_sequences: Maximum concurrent sequences; each has one slot in the model's state pool, and two in
            the state pools of a draft model or MTP head. If a mapping has `max_tokens_per_step` but not
            `max_sequences`, the default is lowered to fit.
        max_tokens_per_step: Maximum rows of one forward pass, decode rows included; at least `max_sequences`,
            so that decoding never waits for prefill.
        prefill_chunk: Maximum prompt tokens of one request per step; None for as many as fit in the step.
        prompt_pause: How long queued prompts wait after a step with prompt tokens, as a multiple of that
            step's duration. They wait only while other sequences decode, and no longer once they fill a step.
            So more prompts share a step, and the steps in between are decodes only. 0 or None for no wait.
        page_size: Page size of the key-value pool in tokens.
        num_pages: Pages of the key-value pool, the reserved page 0 included. None for as many as
            `max_sequences` sequences of `max_length` tokens can need, or as fit, if these are fewer.
        max_length: Maximum tokens per sequence, prompt and output together; None for the model's limit.
        memory_fraction: The fraction of free memory that the engine may use, measured after the weights are
            loaded. The pools get this memory, less the memory that steps need if a trial run has measured it.
            None for 0.95 with a trial run and 0.85 without; 0.25 on a CPU.
        capture: The steps captured in graphs, if the platform supports graphs: `decode` for steps without
            prompt tokens, `all` for these and, if the platform captures steps in pieces, for steps of up to
            2,048 rows with prompt tokens, or `off`.
        compile: Whether torch.compile compiles the decoder layers: `blocks` if so, or `off`, the only valid
            value with a draft.
        overlap: Whether the host reads a step's tokens while the device runs the next step, if the device
            supports this. A request that ends early (by an end token or a stop string) then wastes one row of
            one step. No effect with `draft`, since proposals continue the last step's tokens.
        draft: The source of drafted tokens, several of which the model verifies in one step. `ngram` for the
            sequence's own earlier tokens, `mtp` for the MTP (NEXTN) head in the checkpoint's own weights, a
            checkpoint for a second model with the same vocabulary (a name or a path, as for `Engine`), or a
            `Drafts`. None for no drafts.
        draft_tokens: Maximum tokens proposed per sequence and step. A step must have rows for all of them:
            `max_tokens_per_step` is at least `max_sequences * (1 + draft_tokens)`.
        draft_branches: Above 1, drafts of a second model or of an MTP head are trees. The trees of a second
            model have this many branches, which begin with different tokens and share `draft_tokens` as
            evenly as possible. A head proposes this many tokens for each position of a chain, which continues
            with the first of them.
        ragged_prefill: Whether an MLA prefill may expand keys and values of the new tokens and attend to them
            as ragged tensors, instead of attending to latents. None allows this if the backend has the
            optional step `plan_chunked_prefix`; with True, a backend without it is an error.
        chunked_prefix: Whether an MLA prefill may also expand the cached prefix of a sequence, in chunks;
            None and True as for `ragged_prefill`. If False, a prefill with a prefix attends to latents. No
            effect with `ragged_prefill=False`.
        state_dtype: The dtype of recurrent states, `float32` or `bfloat16`; only backends that support it are
            used. Convolution windows, keys and values have the model's dtype.
        seed: Seed of torch's random number generators on host and device, which backends may use; None leaves
            the generators unchanged. Sampling has its own seeds, in SamplingParams.

    Raises:
        ConfigError: A value is invalid; the error lists all invalid values.
    """

    max_sequences: int = MAX_SEQUENCES
    max_tokens_per_step: int = 2048
    prefill_chunk: int | None = None
    prompt_pause: float | None = None
    page_size: int = 16
    num_pages: int | None = None
    max_length: int | None = None
    memory_fraction: float | None = None
    capture: Literal["all", "decode", "off"] = "all"
    compile: Literal["blocks", "off"] = "off"
    overlap: bool = True
    draft: str | os.PathLike[str] | Drafts | None = None
    draft_tokens: int = DRAFT_TOKENS
    draft_branches: int = 1
    ragged_prefill: bool | None = None
    chunked_prefix: bool | None = None
    state_dtype: Literal["float32", "bfloat16"] = "float32"
    seed: int | None = None

    def __post_init__(self) -> None:
        def optional(value: object, least: int = 1) -> bool:
            return value is None or is_count(value, least)

        draft, pause, fraction = self.draft, self.prompt_pause, self.memory_fraction
        has_branches = isinstance(draft, str | os.PathLike) and draft != NGRAM
        least, per_step = self._least_rows()
        positive, from_two = "an integer of at least 1", "None or an integer of at least 2"
        checks = {
            "max_sequences": (is_count(self.max_sequences), positive),
            "max_tokens_per_step": (is_count(self.max_tokens_per_step, least), per_step),
            "prefill_chunk": (optional(self.prefill_chunk), f"None or {positive}"),
            "prompt_pause": (
                pause is None or (is_number(pause) and pause >= 0),
                "None or a number of at least 0",
            ),
            "page_size": (is_count(self.page_size), positive),
            "num_pages": (optional(self.num_pages, 2), from_two),
            "max_length": (optional(self.max_length, 2), from_two),
            "memory_fraction": (
                fraction is None or (is_number(fraction) and 0 < fraction <= 1),
                "None or a number above 0 and at most 1",
            ),
            "capture": (self.capture in ("all", "decode", "off"), "'all', 'decode' or 'off'"),
            "compile": (
                self.compile in (("blocks", "off") if draft is None else ("off",)),
                "'blocks' or 'off'" if draft is None else "'off' with a draft",
            ),
            "draft": (
                draft is None
                or (isinstance(draft, str) and draft != "")
                or isinstance(draft, os.PathLike | Drafts),
                "None, 'ngram', 'mtp', a checkpoint or a Drafts",
            ),
            "draft_tokens": (is_count(self.draft_tokens), positive),
            "draft_branches": (
                self.draft_branches == 1
                or (
                    is_count(self.draft_branches)
                    and is_count(self.draft_tokens, self.draft_branches)
                    and has_branches
                ),
                "1; with 'mtp' or a checkpoint as draft, an integer from 1 to draft_tokens",
            ),
            "overlap": (isinstance(self.overlap, bool), "True or False"),
            "ragged_prefill": (isinstance(self.ragged_prefill, bool | None), "None, True or False"),
            "chunked_prefix": (isinstance(self.chunked_prefix, bool | None), "None, True or False"),
            "state_dtype": (self.state_dtype in ("float32", "bfloat16"), "'float32' or 'bfloat16'"),
            "seed": (optional(self.seed, 0), "None or an integer of at least 0"),
        }
        refuse(ConfigError, self, checks)

    def _least_rows(self) -> tuple[int, str]:
        """The least `max_tokens_per_step`, and the description of valid values."""
        if not is_count(self.max_sequences):
            return 1, "an integer of at least 1"
        if self.draft is None or not is_count(self.draft_tokens):
            return self.max_sequences, f"an integer of at least max_sequences ({self.max_sequences})"
        least = self.max_sequences * (1 + self.draft_tokens)
        return least, (
            f"an integer of at least {least} (max_sequences * (1 + draft_tokens), for the drafts of all "
            "sequences)"
        )

    @property
    def step_flags(self) -> dict[str, bool]:
        """The flags for backends' optional steps; see `switchrail.ops.steps`."""
        return {"ragged": self.ragged_prefill is not False, "chunked": self.chunked_prefix is not False}

    @classmethod
    def of(
        cls,
        values: EngineOptions | Mapping[str, Any] | None,
        defaults: Mapping[str, Any] | None = None,
    ) -> EngineOptions:
        """Make options from requested values and defaults.

        Args:
            values: The requested options, also as a mapping of names to values; None requests none.
            defaults: Values for options that are None or missing.

        Raises:
            ConfigError: A name is not an option (the nearest names are given), or a value is invalid.
        """
        if isinstance(values, EngineOptions):
            left = {name: value for name, value in (defaults or {}).items() if getattr(values, name) is None}
            return replace(values, **left)
        if not isinstance(values, Mapping | None):
            raise ConfigError(
                f"options must be EngineOptions or a mapping of names to values, got {values!r:.80}",
                problems={"options": f"found a {type(values).__name__}"},
                valid={"options": "EngineOptions or a mapping"},
            )
        valid = tuple(field.name for field in fields(cls))
        for name in values or {}:
            if name not in valid:
                raise unknown(ConfigError, f"EngineOptions has no option {name!r}", name, valid, name=name)
        given = {name: value for name, value in (values or {}).items() if value is not None}
        left = {name: value for name, value in (defaults or {}).items() if name not in given}
        rows = given.get("max_tokens_per_step")
        # `max_sequences` was not requested, so its default is lowered to fit `rows`
        if is_count(rows) and "max_sequences" not in given:
            drafts = given.get("draft_tokens", DRAFT_TOKENS) if given.get("draft") is not None else 0
            each = 1 + drafts if is_count(drafts) else 1
            most = left.get("max_sequences", MAX_SEQUENCES)
            left["max_sequences"] = max(1, min(most, rows // each))
        return cls(**left, **given)


def options_on(platform: Platform, values: EngineOptions | Mapping[str, Any] | None) -> EngineOptions:
    """The requested options, with a platform's defaults for the options that were not requested.

    Raises:
        ConfigError: As in `EngineOptions.of`.
        PlatformError: The platform's defaults are not valid options.
    """
    defaults = platform.serving.engine_defaults()
    if not isinstance(defaults, Mapping):
        raise PlatformError(
            f"platform {platform.kind!r} gives {defaults!r:.80} for engine_defaults(); valid: a mapping of "
            "names in EngineOptions to values",
            found=defaults,
        )
    defaults = {name: value for name, value in defaults.items() if value is not None}
    try:
        EngineOptions.of(defaults)
    except ConfigError as error:
        raise PlatformError(
            f"the engine defaults of platform {platform.kind!r} are wrong: {error}", found=defaults
        ) from error
    return EngineOptions.of(values, defaults)
