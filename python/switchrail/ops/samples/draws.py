"""The arguments that all generators of samples share, and the tensors that are made from them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from switchrail.ops.batch import PagedBatch, Phase, StateBatch
from switchrail.ops.contract import Contract
from switchrail.ops.samples.pages import paged_batch
from switchrail.ops.samples.random import Initial, Random, compute_dtype, state_batch, unread
from switchrail.ops.samples.sample import Sample


@dataclass(kw_only=True)
class Draws:
    """The arguments of a sample that is being made.

    Attributes:
        contract: The op's contract.
        lengths: Rows per sequence; 1 each in decode.
        phase: The phase.
        dtype: The dtype of the inputs and of out.
        device: The device of all tensors.
        strided: Whether inputs are views of fused buffers. Some generators accept other values too;
            `short_conv` accepts `"time"`.
        padding: The indices of the padding sequences.
        norm: A factor on some inputs, and on the contents of the cache or state; each op's generator says
            which.
        seed: The random seed.
    """

    contract: Contract
    lengths: Sequence[int]
    phase: Phase = "prefill"
    dtype: torch.dtype = torch.float32
    device: torch.device | str = "cpu"
    strided: Any = True
    padding: Collection[int] = ()
    norm: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.count = sum(self.lengths)
        self.compute = compute_dtype(self.dtype)

    def rows(self, *shape: int) -> torch.Tensor:
        """Normally distributed numbers for each row: [T, shape]."""
        return self.random.normal(self.count, *shape)

    def unset(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """An output tensor [T, shape], filled with NaN; by default with the dtype of the inputs."""
        return torch.full((self.count, *shape), torch.nan, dtype=dtype or self.dtype)

    def _sample(
        self,
        batch: PagedBatch | StateBatch,
        tensors: Mapping[str, torch.Tensor | None],
        options: Mapping[str, Any],
    ) -> Sample:
        return Sample(
            contract=self.contract,
            phase=self.phase,
            tensors=dict(tensors),
            options=dict(options),
            batch=batch,
            padding=frozenset(self.padding),
        ).to(self.device)


@dataclass(kw_only=True)
class PagedDraws(Draws):
    """The arguments of a sample for an op with a paged cache.

    Attributes:
        kv_lengths: Cached tokens per sequence, including its own rows; `lengths` by default. Padding
            sequences always have 0.
        page: Page size in tokens.
        window: The maximum number of tokens that a row attends to; None means no limit.
    """

    kv_lengths: Sequence[int] | None = None
    page: int = 16
    window: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._batch, self._seen = paged_batch(
            self.random, self.lengths, self.kv_lengths, self.padding, self.page, self.window
        )

    def cache(self, *shape: int) -> torch.Tensor:
        """A random cache [pages, page, shape]; entries that no row attends to are NaN."""
        cache = self.random.normal(*self._seen.shape, *shape)
        cache[~self._seen] = torch.nan
        return cache

    def sample(self, tensors: Mapping[str, torch.Tensor | None], **options: Any) -> Sample:
        """Makes the sample."""
        return self._sample(self._batch, tensors, options)


@dataclass(kw_only=True)
class StateDraws(Draws):
    """The arguments of a sample for an op with a state.

    Attributes:
        state_dtype: The dtype of the state; the default depends on the op.
        initial: Which sequences start from a state. In decode, all but padding do.
        in_place: Whether each sequence reads the slot that it writes.
    """

    state_dtype: torch.dtype | None = None
    initial: Initial = "some"
    in_place: bool = True

    def pool(self, *shape: int, dtype: torch.dtype, factor: float = 1.0) -> torch.Tensor:
        """Random states [slots, shape]; slots that are not read are NaN.

        Their dtype is `state_dtype`, or the argument `dtype` if that is None.
        """
        self._batch, slots = state_batch(
            self.random, self.lengths, self.phase, self.initial, self.in_place, self.padding
        )
        states = self.random.normal(slots, *shape) * factor
        states[unread(self._batch, slots)] = torch.nan
        return states.to(self.state_dtype or dtype)

    def sample(self, tensors: Mapping[str, torch.Tensor | None], **options: Any) -> Sample:
        """Makes the sample. Call `pool` first, which also makes the batch."""
        return self._sample(self._batch, tensors, options)
