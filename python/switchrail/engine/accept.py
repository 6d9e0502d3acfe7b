"""Commits the accepted drafts of a verified step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from switchrail.engine.deferred import DeferredCommits
from switchrail.engine.memory import Pools
from switchrail.engine.speculation import follow
from switchrail.engine.step import Step


def accept(
    step: Step,
    chosen: torch.Tensor,
    *,
    slots: torch.Tensor,
    accepted: Callable[..., None],
    commit: Callable[..., None],
    pools: Pools,
    last_tokens: torch.Tensor,
    again: bool = False,
    deferred: DeferredCommits | None = None,
    news: torch.Tensor | None = None,
) -> torch.Tensor:
    """Commit states, move keys and values of trees, and store the newest tokens, without waiting.

    Args:
        step: The verified step.
        chosen: [R] int64, the token chosen after each of the step's rows; -1 if its logits are not finite.
        slots: [N] int64, the slots of the step's sequences; -1 for padding.
        accepted: The function for the operation `AcceptRows`.
        commit: The method `Dispatcher.commit`.
        pools: The memory of the model.
        last_tokens: [slots] int64, receives the newest token of each sequence.
        again: See `Dispatcher.commit`.
        deferred: The commits that are left to the next verification; None if no commits are deferred.
        news: Receives the result; None for a new tensor.

    Returns:
        [N, 1 + X] int64, with X as in `DraftRows`: for each sequence the number of accepted drafts, then
        these drafts and one more token. The remaining elements of a row are undefined.
    """
    drafts = step.drafts
    assert drafts is not None
    count, width = drafts.rows.shape
    if news is None:
        news = chosen.new_empty(count, 1 + width)
    last, path = chosen.new_empty(count), chosen.new_empty(count, width)
    pending = None
    if deferred is not None:
        (part,) = step.parts
        assert part.deferred is not None
        pending = deferred.records, deferred.rows, part.deferred.records
    accepted(
        chosen,
        step.input_ids[0],
        drafts.rows,
        drafts.parents,
        slots,
        last_tokens,
        are_trees=drafts.are_trees,
        pending=pending,
        out=(last, path, news),
    )
    commit(last, again=again)
    if drafts.are_trees:
        rows = step.kv_rows[drafts.rows]
        pools.move_tokens(rows.gather(1, path).flatten(), rows.flatten())
    return news


def accept_rows(
    chosen: torch.Tensor,
    ids: torch.Tensor,
    rows: torch.Tensor,
    parents: torch.Tensor,
    slots: torch.Tensor,
    last_tokens: torch.Tensor,
    *,
    are_trees: bool,
    pending: Sequence[torch.Tensor] | None,
    out: Sequence[torch.Tensor],
) -> None:
    """Find the accepted drafts, and store the sequences' newest tokens, without waiting for the device.

    Args:
        chosen: [R] int64, the token chosen after each row of a step; -1 if its logits are not finite.
        ids: [R or more] int64, the token of each row.
        rows: [N, X] int64, the rows of each sequence in the step, including its padding rows. Unused entries
            repeat the sequence's first row.
        parents: [N, X] int64, the column of the row that each row follows; -1 for the first row, and -2 for
            padding rows and unused entries.
        slots: [N] int64, the slots of the sequences; -1 for padding.
        last_tokens: [slots] int64, receives the newest token of each sequence, 0 in place of -1.
        are_trees: Whether the rows may form trees, not only chains.
        pending: None without deferred commits; otherwise three tensors (for records see `DeferredCommits`):
            - [slots] int64, receives the record that remains to be applied to each slot.
            - [slots, X] bool, receives the accepted rows of this record.
            - [N] int64, the record that each sequence of the step fills.
        out: Three contiguous tensors, which receive:
            - [N] int64, the last accepted column of `rows`.
            - [N, X] int64, the accepted columns of `rows` in order, from column 0; the remaining entries are
              their own index.
            - [N, 1 + X] int64, the result of `accept`.
    """
    last, path, news = out
    own = chosen[rows]
    newest, count, found, accepted = follow(own, ids[rows], parents, are_trees=are_trees)
    last.copy_(newest)
    path.copy_(found)
    news[:, :1] = count
    news[:, 1:] = own.gather(1, found)
    owners, is_real = slots.clamp(min=0), slots >= 0

    def store(tensor: torch.Tensor, values: torch.Tensor) -> None:
        kept = tensor[owners]
        tensor[owners] = values.where(is_real.view(-1, *[1] * (kept.ndim - 1)), kept)

    store(last_tokens, own.gather(1, newest.unsqueeze(1)).squeeze(1).clamp(min=0))
    if pending is not None:
        records, accepted_rows, left = pending
        store(records, left)
        store(accepted_rows, accepted)
