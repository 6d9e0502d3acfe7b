"""Describes where numbers are wrong, by properties that right rows, heads or columns rarely have."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from switchrail.ops.batch import PagedBatch, StateBatch
from switchrail.testing.diagnosis.difference import HEADS, Difference
from switchrail.testing.diagnosis.findings import Finding

_CHUNKS = (16, 32, 64, 128)
_LEAST_SHARE = 0.5
"""A property explains an error if at least this fraction of the rows or sequences with it is wrong."""

_MOST_NAMED = 3

Common = tuple[str, torch.Tensor, bool]
"""A property of rows: its name, a mask [R] of the rows with it, and whether whole sequences have it."""


def rows_in_common(d: Difference) -> Finding | None:
    """A property that all wrong rows have, but few other rows.

    If all rows are wrong, the finding has only possible causes: the properties that all rows have.
    """
    wrong = d.wrong_rows
    owners = torch.tensor(d.owners, dtype=torch.int64)
    if wrong.all():
        return Finding(
            "", possible=tuple(_cause(about) for about, rows, _ in _commons(d, owners) if rows.all())
        )
    found = []
    for about, rows, is_of_sequences in _commons(d, owners):
        if rows.all() or not rows[wrong].all():
            continue
        # The effect of a wrong state may decay, so that later rows of the same sequence are right again.
        counted = owners if is_of_sequences else torch.arange(len(owners))
        share = len(set(counted[wrong].tolist())) / len(set(counted[rows].tolist()))
        if share >= _LEAST_SHARE:
            found.append((-share, int(rows.sum()), about, rows))
    if not found:
        return None
    _, number, about, rows = min(found, key=lambda common: common[:2])
    told = [] if torch.equal(rows, wrong) else [f"{int(wrong.sum())} of these {number}"]
    same = [other for _, _, other, others in found if other != about and torch.equal(others, rows)]
    if same:
        told.append(f"in this call the same rows are {'; '.join(same[:_MOST_NAMED])}")
    return Finding(_cause(about), "; ".join(told))


def _cause(about: str) -> str:
    return f"only {about} are wrong"


def heads_in_common(d: Difference) -> Finding | None:
    """The wrong heads, if not all heads are wrong."""
    if not d.has_heads:
        return None
    wrong = d.wrong.transpose(0, 1).flatten(1).any(1)
    if wrong.all():
        return None
    detail = f"{_ranges(wrong)} of {len(wrong)}"
    for name, tensor in d.call.tensors.items():
        axes = d.call.contract.tensors[name].axes
        shared = next((i for i, axis in enumerate(axes) if axis in HEADS and axis != d.axes[1]), None)
        if tensor is not None and shared is not None and len(wrong) > tensor.shape[shared] > 1:
            group = len(wrong) // tensor.shape[shared]
            if wrong.view(-1, group)[:, 1:].all() and not wrong.view(-1, group)[:, 0].any():
                return Finding("only heads after the first of their group are wrong", detail)
            break
    return Finding("only some heads are wrong", detail)


def columns_in_common(d: Difference) -> Finding | None:
    """The wrong columns, if at most three quarters of all columns are wrong."""
    if len(d.axes) < 2 or d.axes[-1] in HEADS:
        return None
    wrong = d.wrong.flatten(0, -2).any(0)
    share = float(wrong.double().mean())
    if share > 0.75:
        return None
    what = "columns" if d.axes[0] == "T" else d.axes[-1]
    return Finding("only some columns are wrong", f"{what} {_ranges(wrong)} of {len(wrong)}")


def _commons(d: Difference, owners: torch.Tensor) -> Iterator[Common]:
    batch = d.call.batch
    lengths = torch.tensor(batch.seqlens, dtype=torch.int64)
    starts = lengths.cumsum(0) - lengths
    length = lengths[owners]
    place = length - 1 if d.is_state else d.index - starts[owners]
    if isinstance(batch, StateBatch):
        initial = batch.has_initial_state.cpu()[owners]
        yield "sequences without an initial state", ~initial, True
        yield "sequences with an initial state", initial, True
    empty = torch.tensor([n > 0 and batch.seqlens[n - 1] == 0 for n in range(len(batch.seqlens))])
    yield "sequences that follow an empty one", empty[owners], True
    yield from _of_gates(d, owners, starts, place)
    if isinstance(batch, PagedBatch):
        yield from _of_pages(d, batch, owners, length, place)
    if not d.is_state:
        yield from _of_places(length, place)
    yield "sequences of one row", length == 1, True
    yield "sequences of several rows", length > 1, True
    for chunk in _CHUNKS:
        yield f"sequences of more than {chunk} rows", length > chunk, True
        yield f"sequences whose length is no multiple of {chunk}", length % chunk != 0, True
    yield "rows of the first sequence", owners == 0, True
    yield "sequences after the first", owners > 0, True
    yield "rows of the last sequence", owners == len(batch.seqlens) - 1, True


def _of_places(length: torch.Tensor, place: torch.Tensor) -> Iterator[Common]:
    yield "first rows of sequences", place == 0, False
    yield "last rows of sequences", place == length - 1, False
    for chunk in _CHUNKS:
        yield f"rows of the last, incomplete chunk of {chunk}", place >= length // chunk * chunk, False
        last = (place >= (length - 1) // chunk * chunk) & (length > chunk)
        yield f"rows of the last of several chunks of {chunk}", last, False
        yield f"rows after the first chunk of {chunk}", place >= chunk, False
        yield f"rows of the first chunk of {chunk}", place < chunk, False
    yield "rows after the first of sequences", place > 0, False
    yield "rows before the last of sequences", place < length - 1, False


def _of_gates(
    d: Difference, owners: torch.Tensor, starts: torch.Tensor, place: torch.Tensor
) -> Iterator[Common]:
    gate = d.call.tensors.get("g")
    if gate is None or d.call.contract.tensors["g"].axes[0] != "T" or d.call.options.get("gate"):
        return
    values = gate.detach().cpu().double().flatten(1)
    for about, here in (
        ("rows at or after a gate that decays", (values < 0).any(1)),
        ("rows at or after a decay of exactly 0", (values == -torch.inf).any(1)),
    ):
        so_far = torch.cat([torch.zeros(1, dtype=torch.int64), here.long().cumsum(0)])
        yield about, so_far[starts[owners] + place + 1] > so_far[starts[owners]], False


def _of_pages(
    d: Difference, batch: PagedBatch, owners: torch.Tensor, length: torch.Tensor, place: torch.Tensor
) -> Iterator[Common]:
    size = next(
        tensor.shape[1]
        for name, tensor in d.call.tensors.items()
        if tensor is not None and d.call.contract.tensors[name].axes[0] == "pages"
    )
    past = torch.tensor(batch.kv_seqlens, dtype=torch.int64)[owners] - length
    position = past + place
    yield "sequences with tokens of earlier calls in the cache", past > 0, True
    yield "sequences without tokens of earlier calls in the cache", past == 0, True
    yield "rows past the first page boundary", position >= size, False
    yield "rows that see only one page", position < size, False
    yield "rows at the first token of a page", position % size == 0, False
    yield "rows at the last token of a page", position % size == size - 1, False
    window = d.call.options.get("window")
    if window is not None:
        yield "rows whose window excludes the first position", position >= window, False


def _ranges(chosen: torch.Tensor) -> str:
    """The indices that are set in a mask [n], in short form, such as `0-2, 4`."""
    runs: list[list[int]] = []
    for number in chosen.nonzero().flatten().tolist():
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    told = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return ", ".join(told)
