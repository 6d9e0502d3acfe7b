"""Keeps the accepted drafts of a verified step in memory."""

from __future__ import annotations

from collections.abc import Callable

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
    commit: Callable[..., None],
    pools: Pools,
    last_tokens: torch.Tensor,
    again: bool = False,
    deferred: DeferredCommits | None = None,
) -> torch.Tensor:
    """Commit states, move keys and values, and store the newest tokens, without waiting for the device.

    Args:
        step: The verified step.
        chosen: [R] int64, the token chosen after each of the step's rows; -1 for none.
        slots: [N] int64, the slots of the step's sequences; -1 for padding.
        commit: The method `Dispatcher.commit`.
        pools: The memory of the model.
        last_tokens: [slots] int64, receives the newest token of each sequence.
        again: See `Dispatcher.commit`.
        deferred: The commits that are left to the next verification; None if there are none.

    Returns:
        [N, 1 + X] int64: for each sequence the number of accepted drafts, then these drafts and one more
        token. The remaining elements of a row are undefined.
    """
    drafts = step.drafts
    assert drafts is not None
    own = chosen[drafts.rows]
    ids = step.input_ids[0][drafts.rows]
    last, count, path, accepted = follow(own, ids, drafts.parents, are_trees=drafts.are_trees)
    commit(last, again=again)
    if deferred is not None:
        (part,) = step.parts
        assert part.deferred is not None
        deferred.leave(slots, part.deferred, accepted)
    if drafts.are_trees:
        rows = step.kv_rows[drafts.rows]
        pools.move_tokens(rows.gather(1, path).flatten(), rows.flatten())
    newest = own.gather(1, last.unsqueeze(1)).squeeze(1)
    last_tokens[slots.clamp(min=0)] = newest.clamp(min=0)
    return torch.cat([count, own.gather(1, path) if drafts.are_trees else own], 1)
