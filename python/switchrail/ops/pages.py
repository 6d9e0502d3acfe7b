"""Splitting a batch into calls for the plain-torch backends over a paged cache."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from switchrail.ops.backend import check_plan, foreign
from switchrail.ops.batch import PagedBatch, PagedTreeBatch, Phase
from switchrail.ops.contract import Contract
from switchrail.ops.slots import indices

WASTE = 512
"""The maximum of padding tokens in a group of single rows before another group is started."""

BLOCK = 256
"""Query rows per call if a mask is needed. Bounds the size of the mask and the wasted products."""


@dataclass(frozen=True, slots=True)
class SingleRows:
    """Sequences of similar length with one row each.

    Attributes:
        rows: [B] int64, their packed rows.
        tokens: [B * L] int64, the cache place of each visible position; places past the end repeat the first.
        mask: [B, 1, 1, L] bool, the positions before the end; None if all are.
    """

    rows: torch.Tensor
    tokens: torch.Tensor
    mask: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class Block:
    """Rows of one sequence.

    Attributes:
        start: The first packed row.
        stop: The last packed row + 1.
        first: The first position visible to the first row.
        seen: The last position visible to the last row + 1.
        mask: [rows, seen - first] bool, the positions visible to each row; None if plain causality with the
            last row attending to all positions is enough.
    """

    start: int
    stop: int
    first: int
    seen: int
    mask: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class ManyRows:
    """One sequence with several rows.

    Attributes:
        start: The first packed row.
        stop: The last packed row + 1.
        tokens: [L] int64, the place in the cache of each position.
        blocks: Its rows.
    """

    start: int
    stop: int
    tokens: torch.Tensor
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Parts:
    """The calls that a batch is split into."""

    single: tuple[SingleRows, ...]
    many: tuple[ManyRows, ...]


class PagedPlan:
    """The data that all layers of a step share.

    Args:
        contract: The op's contract.
        phase: The phase.
        batch: The batch.

    Raises:
        ContractError: The batch breaks the contract.
    """

    def __init__(self, contract: Contract, phase: Phase, batch: PagedBatch) -> None:
        contract.check_batch(phase, batch, ("trees",))
        self._contract = contract
        self._batch = batch
        self._parts: dict[tuple[int, int | None, bool, bool], Parts] = {}
        self._starts = [0]
        for length in batch.seqlens:
            self._starts.append(self._starts[-1] + length)
        check_lengths(contract, batch)
        padding = [
            row
            for n, kv in enumerate(batch.kv_seqlens)
            if kv == 0
            for row in range(self._starts[n], self._starts[n + 1])
        ]
        self._padding_rows: torch.Tensor | None = None
        """int64; None if there is no padding."""
        if padding:
            self._padding_rows = indices(padding, batch.page_table.device)

    @property
    def seqlens(self) -> tuple[int, ...]:
        """The lengths of the batch's sequences."""
        return self._batch.seqlens

    @property
    def kv_seqlens(self) -> tuple[int, ...]:
        """The cached tokens of the batch's sequences."""
        return self._batch.kv_seqlens

    def clear_padding(self, out: torch.Tensor, lse: torch.Tensor | None) -> None:
        """Write the results of padding rows: zeros, and log-sum-exps of -inf."""
        if self._padding_rows is not None:
            out.index_fill_(0, self._padding_rows, 0)
            if lse is not None:
                lse.index_fill_(0, self._padding_rows, -torch.inf)

    def parts(
        self, page: int, *, window: int | None = None, causal: bool = True, longer: bool = False
    ) -> Parts:
        """The calls for a page size, made on first use in a step.

        Args:
            page: Page size in tokens.
            window: The maximum number of positions a row attends to, its own included; None for no limit.
            causal: Whether the caller supports causal attention without a mask.
            longer: Whether the caller supports this with cached tokens before the rows.
        """
        if isinstance(self._batch, PagedTreeBatch):
            if window is not None:
                raise self._contract.error("window", f"{window} with trees", "None with trees")
            causal = False
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
        """Split sequences, longest last, into groups with at most `WASTE` tokens of padding each."""
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
        mask = place < counts
        positions = (ends - counts + place * mask).to(device, non_blocking=True)
        table = self._batch.page_table[indices(members, device)].long()
        tokens = table.gather(1, positions // page) * page + positions % page
        return SingleRows(
            indices([self._starts[n] for n in members], device),
            tokens.flatten(),
            None if mask.all() else mask[:, None, None].to(device, non_blocking=True),
        )

    def _ancestors(self, start: int, length: int) -> torch.Tensor | None:
        """The ancestors of each row, itself included, [length, length] bool; None for a chain."""
        if not isinstance(self._batch, PagedTreeBatch):
            return None
        follows = torch.eye(length, dtype=torch.bool)
        for row, parent in enumerate(self._batch.parent_rows[start : start + length]):
            if parent >= 0:
                follows[row] |= follows[parent]
        return follows

    def _many_rows(
        self, n: int, page: int, window: int | None, causal: bool, longer: bool, device: torch.device
    ) -> ManyRows:
        length, kv, start = self._batch.seqlens[n], self._batch.kv_seqlens[n], self._starts[n]
        positions = torch.arange(kv, device=device)
        tokens = self._batch.page_table[n].long().index_select(0, positions // page) * page + positions % page
        if causal and (longer or length == kv) and (window is None or window >= kv):
            whole = Block(start, start + length, 0, kv, None)
            return ManyRows(start, start + length, tokens, (whole,))
        ancestors = self._ancestors(start, length)
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
                mask[:, kv - length :] = ancestors[low:high, :high].to(device, non_blocking=True)
            blocks.append(Block(start + low, start + high, first, seen, mask))
        return ManyRows(start, start + length, tokens, tuple(blocks))


def check_lengths(contract: Contract, batch: PagedBatch) -> None:
    """Check that each sequence has at least its own rows in the cache, or nothing.

    Raises:
        ContractError: A sequence has fewer cached tokens than rows.
    """
    for n, (length, kv) in enumerate(zip(batch.seqlens, batch.kv_seqlens, strict=True)):
        if 0 < kv < length:
            raise contract.error(
                "batch.kv_seqlens",
                f"{kv} for sequence {n} of {length} rows",
                "at least its number of rows, or 0",
            )


def check_pages(contract: Contract, batch: PagedBatch, page: int) -> None:
    """Check that the table has the pages of the longest sequence.

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
            f"{batch.page_table.shape[1]} pages of {page} tokens a sequence",
            f"enough for the longest, {longest} tokens",
        )


def check_paged_plan(plan: PagedPlan, batch: PagedBatch) -> None:
    """Refuse a plan of another backend, or for other lengths of sequences or caches.

    Raises:
        ArgumentError: The plan doesn't match.
    """
    check_plan(plan, batch, (PagedPlan,))
    if plan.kv_seqlens != batch.kv_seqlens:
        raise foreign("plan", plan)


__all__ = [
    "BLOCK",
    "WASTE",
    "Block",
    "ManyRows",
    "PagedPlan",
    "Parts",
    "SingleRows",
    "check_lengths",
    "check_paged_plan",
    "check_pages",
]
