"""Splits a batch into blocks of rows, each computed by one attention call, for plain-torch backends."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import accumulate

import torch

from switchrail.ops.backend import check_plan, foreign
from switchrail.ops.batch import PagedBatch, PagedTreeBatch, Phase
from switchrail.ops.contract import Contract
from switchrail.ops.slots import indices

WASTE = 512
"""The maximum number of padding tokens in a group of single-row sequences."""

BLOCK = 256
"""Query rows per call if a mask is needed. Bounds the size of the mask and the number of masked products."""


@dataclass(frozen=True, slots=True)
class SingleRows:
    """Sequences of similar length with one row each.

    Attributes:
        rows: [B] int64, the packed row of each sequence.
        tokens: [B * L] int64, the cache index of each visible position, counted in tokens. Past a sequence's
            end, the index of its first visible position is repeated.
        mask: [B, 1, 1, L] bool, True before a sequence's end; None if it is known to be True everywhere.
    """

    rows: torch.Tensor
    tokens: torch.Tensor
    mask: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class _Rows:
    """Consecutive rows of one sequence.

    Attributes:
        start: The first packed row.
        stop: The last packed row + 1.
    """

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Block(_Rows):
    """Rows of one sequence that are computed by one call.

    Attributes:
        first: The first position of the call's keys.
        seen: The last position of the call's keys, plus 1.
        mask: [rows, seen - first] bool, the positions visible to each row; None if plain causal
            attention does: the last row sees all keys, and each earlier row one key fewer.
    """

    first: int
    seen: int
    mask: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class ManyRows(_Rows):
    """One sequence with several rows.

    Attributes:
        past: The number of cached tokens before the rows; if the host doesn't know it, a lower bound.
        tokens: [L] int64, the cache index of each position, counted in tokens.
        blocks: The sequence's rows, in blocks.
    """

    past: int
    tokens: torch.Tensor
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Parts:
    """The calls that a batch is split into."""

    single: tuple[SingleRows, ...]
    many: tuple[ManyRows, ...]


class PagedBatchPlan:
    """A plan of a checked batch.

    Args:
        contract: The op's contract.
        phase: The phase.
        batch: The batch.
        features: The features that the batch may use.

    Raises:
        ContractError: The batch breaks the contract.
    """

    def __init__(
        self, contract: Contract, phase: Phase, batch: PagedBatch, features: Collection[str] = ()
    ) -> None:
        contract.check_batch(phase, batch, features)
        check_lengths(contract, batch)
        self.phase = phase
        self._contract = contract
        self._batch = batch

    @property
    def seqlens(self) -> tuple[int, ...]:
        """The lengths of the batch's sequences."""
        return self._batch.seqlens

    @property
    def kv_seqlens(self) -> tuple[int, ...]:
        """The numbers of cached tokens of the batch's sequences; with `kv_bounds`, upper bounds of them."""
        return self._batch.kv_seqlens


class PagedPlan(PagedBatchPlan):
    """The calls for each page size and window: the data that all layers of a step share."""

    def __init__(self, contract: Contract, phase: Phase, batch: PagedBatch) -> None:
        super().__init__(contract, phase, batch, contract.features)
        self._parts: dict[tuple[int, int | None, bool, bool], Parts] = {}
        self._starts = [0, *accumulate(batch.seqlens)]
        self._padding_rows: torch.Tensor | None = None
        """[T] bool, which rows are padding; None if it is known that none are."""
        if batch.kv_bounds or 0 in batch.kv_seqlens:
            lengths = indices(batch.seqlens, batch.kv_lens.device)
            self._padding_rows = torch.repeat_interleave(
                batch.kv_lens == 0, lengths, output_size=self._starts[-1]
            )

    def clear_padding(self, out: torch.Tensor, lse: torch.Tensor | None) -> None:
        """Write the results of padding rows: zeros, and log-sum-exps of -inf."""
        if self._padding_rows is not None:
            out.masked_fill_(self._padding_rows[:, None, None], 0)
            if lse is not None:
                lse.masked_fill_(self._padding_rows[:, None], -torch.inf)

    def parts(
        self, page: int, *, window: int | None = None, causal: bool = True, longer: bool = False
    ) -> Parts:
        """The calls for a page size, determined on first use in a step.

        Args:
            page: Page size in tokens.
            window: The maximum number of positions that a row attends to, including its own; None for no
                limit.
            causal: Whether the caller supports causal attention without a mask.
            longer: Whether the caller supports causal attention without a mask if cached tokens precede the
                rows.
        """
        if isinstance(self._batch, PagedTreeBatch):
            if window is not None:
                raise self._contract.error("window", f"{window} with trees", "None with trees")
            causal = False
        causal &= not self._batch.kv_bounds
        key = (page, window, causal, longer)
        if key not in self._parts:
            batch = self._batch
            device = batch.page_table.device
            check_pages(self._contract, batch, page)
            live = [n for n in range(len(batch.seqlens)) if batch.seqlens[n] and batch.kv_seqlens[n]]
            single = sorted((n for n in live if batch.seqlens[n] == 1), key=lambda n: batch.kv_seqlens[n])
            self._parts[key] = Parts(
                tuple(
                    self._single_rows(members, page, window, device)
                    for members in self._groups(single, window)
                ),
                tuple(self._many_rows(n, *key, device) for n in live if batch.seqlens[n] > 1),
            )
        return self._parts[key]

    def _seen(self, n: int, window: int | None) -> int:
        """The number of positions visible to the last row of a sequence."""
        kv = self._batch.kv_seqlens[n]
        return kv if window is None else min(kv, window)

    def _groups(self, sequences: list[int], window: int | None) -> list[list[int]]:
        """Splits sequences, longest last, into groups with at most `WASTE` padding tokens each."""
        groups: list[list[int]] = []
        wasted = WASTE + 1
        for n in reversed(sequences):
            if wasted <= WASTE:
                wasted += self._seen(groups[-1][0], window) - self._seen(n, window)
            if wasted > WASTE:
                groups.append([])
                wasted = 0
            groups[-1].append(n)
        return groups

    def _single_rows(
        self, members: list[int], page: int, window: int | None, device: torch.device
    ) -> SingleRows:
        counts = torch.tensor([self._seen(n, window) for n in members])[:, None]
        ends = torch.tensor([self._batch.kv_seqlens[n] for n in members])[:, None]
        place = torch.arange(int(counts.max()))
        chosen = indices(members, device)
        if self._batch.kv_bounds:
            place = place.to(device, non_blocking=True)
            ends = self._batch.kv_lens.index_select(0, chosen)[:, None].long()
            counts = ends if window is None else ends.clamp_max(window)
        mask = place < counts
        positions = (ends - counts + place * mask).to(device, non_blocking=True)
        table = self._batch.page_table[chosen].long()
        tokens = table.gather(1, positions // page) * page + positions % page
        if self._batch.kv_bounds:  # padding has no pages
            tokens = torch.where(ends > 0, tokens, 0)
        is_full = not self._batch.kv_bounds and bool(mask.all())
        return SingleRows(
            indices([self._starts[n] for n in members], device),
            tokens.flatten(),
            None if is_full else mask[:, None, None].to(device, non_blocking=True),
        )

    def _ancestors(self, start: int, length: int, device: torch.device) -> torch.Tensor | None:
        """The ancestors of each row, including itself, [length, length] bool; None without trees."""
        if not isinstance(self._batch, PagedTreeBatch):
            return None
        follows = torch.eye(length, dtype=torch.bool, device=device)
        if self._batch.parent_rows is None:
            parents = self._batch.parents[start : start + length].long()
            follows |= parents[:, None] == torch.arange(length, device=device)
            for _ in range((length - 1).bit_length()):  # each iteration doubles the length of the paths
                follows = (follows.float() @ follows.float()) > 0
            return follows
        follows = follows.cpu()
        for row, parent in enumerate(self._batch.parent_rows[start : start + length]):
            if parent >= 0:
                follows[row] |= follows[parent]
        return follows.to(device, non_blocking=True)

    def _many_rows(
        self, n: int, page: int, window: int | None, causal: bool, longer: bool, device: torch.device
    ) -> ManyRows:
        length, kv, start = self._batch.seqlens[n], self._batch.kv_seqlens[n], self._starts[n]
        positions = torch.arange(kv, device=device)
        tokens = self._batch.page_table[n].long().index_select(0, positions // page) * page + positions % page
        if self._batch.kv_bounds:
            return self._bounded_rows(n, tokens, positions, window)
        if causal and (longer or length == kv) and (window is None or window >= kv):
            whole = Block(start, start + length, 0, kv, None)
            return ManyRows(start, start + length, kv - length, tokens, (whole,))
        ancestors = self._ancestors(start, length, device)
        blocks = []
        for low in range(0, length, BLOCK):
            high = min(low + BLOCK, length)
            seen = kv - length + high
            own = torch.arange(seen - (high - low), seen, device=device)[:, None]
            first = 0 if window is None else max(0, seen - (high - low) - window + 1)
            mask = positions[first:seen] <= own
            if window is not None:
                mask &= positions[first:seen] > own - window
            if ancestors is not None:
                mask[:, kv - length :] = ancestors[low:high, :high]
            blocks.append(Block(start + low, start + high, first, seen, mask))
        return ManyRows(start, start + length, kv - length, tokens, tuple(blocks))

    def _bounded_rows(
        self, n: int, tokens: torch.Tensor, positions: torch.Tensor, window: int | None
    ) -> ManyRows:
        """The calls for a sequence whose length the host knows only as an upper bound.

        Past the sequence's end, its first cache index is repeated.
        """
        length, start = self._batch.seqlens[n], self._starts[n]
        kv = self._batch.kv_lens[n].long()
        tokens = torch.where(positions < kv, tokens, torch.where(kv > 0, tokens[0], 0))
        row_of = positions - (kv - length)
        ancestors = self._ancestors(start, length, positions.device)
        blocks = []
        for low in range(0, length, BLOCK):
            high = min(low + BLOCK, length)
            rows = torch.arange(low, high, device=positions.device)[:, None]
            mask = row_of <= rows
            if window is not None:
                mask &= row_of > rows - window
            if ancestors is not None:
                seen = ancestors[low:high].index_select(1, row_of.clamp(0, length - 1))
                mask &= (row_of < 0) | seen
            blocks.append(Block(start + low, start + high, 0, len(positions), mask))
        return ManyRows(start, start + length, -length, tokens, tuple(blocks))


def take(cache: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Gathers entries [L, ...] of a cache [pages, page, ...] by their indices, which are counted in tokens.

    The cache may have gaps between pages and between tokens.
    """
    page = cache.shape[1]
    if cache.stride(0) == page * cache.stride(1) or cache.is_contiguous():
        return cache.flatten(0, 1).index_select(0, tokens)
    return cache[tokens // page, tokens % page]


def check_lengths(contract: Contract, batch: PagedBatch) -> None:
    """Checks that each sequence has at least as many cached tokens as rows, or none if it is padding.

    Raises:
        ContractError: A sequence has fewer cached tokens than rows.
    """
    for n, (length, kv) in enumerate(zip(batch.seqlens, batch.kv_seqlens, strict=True)):
        if 0 < kv < length:
            raise contract.error(
                "batch.kv_seqlens",
                f"{kv} for sequence {n} of {length} rows",
                "at least the sequence's number of rows, or 0",
            )


def check_pages(contract: Contract, batch: PagedBatch, page: int) -> None:
    """Checks that the page table has enough pages for the longest sequence.

    Args:
        contract: The op's contract.
        batch: The batch.
        page: Page size in tokens.

    Raises:
        ContractError: The table has too few pages.
    """
    longest = max(batch.kv_seqlens, default=0)
    if longest > page * batch.page_table.shape[1]:
        raise contract.error(
            "batch.page_table",
            f"{batch.page_table.shape[1]} pages of {page} tokens per sequence",
            f"enough for the longest sequence, {longest} tokens",
        )


def check_paged_plan(plan: PagedPlan, batch: PagedBatch, made: type[PagedPlan] = PagedPlan) -> None:
    """Refuse a plan of another backend, or for other lengths of sequences or caches.

    Args:
        plan: The plan.
        batch: The batch.
        made: The type of the backend's plans.

    Raises:
        ArgumentError: The plan doesn't match.
    """
    check_plan(plan, batch, (made,))
    if plan.kv_seqlens != batch.kv_seqlens:
        raise foreign("plan", plan)
