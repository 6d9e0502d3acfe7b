"""Makes the parts of a step that verify SGLang's drafts, and finds the parent of each row of a draft tree."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch

from switchrail.adapters import sequences
from switchrail.dispatch import Part
from switchrail.errors import BridgeError
from switchrail.ops.batch import PagedBatch, PagedTreeBatch, RowStatesBatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from switchrail.bridges.sglang.versions import Version


@dataclass(frozen=True, slots=True)
class Drafts:
    """The form of the drafts that a server verifies.

    Attributes:
        tokens: The number of rows of each sequence in a verification: `speculative_num_draft_tokens`.
        tree: Whether the drafted tokens form a tree. Only the device knows the parents of a tree's rows.
    """

    tokens: int
    tree: bool

    def states(self, slots: torch.Tensor, links: Any, kept: int) -> Part:
        """Makes the part of a pass for layers with states. Their backends write the state after each row.

        Args:
            slots: [N], the slots of the states.
            links: SGLang's object with the links between drafted tokens; see `parents_of`.
            kept: The number of sequences for which SGLang has memory for these states.
        """
        count = len(slots)
        rows = torch.arange(count * self.tokens, device=slots.device).view(count, self.tokens)
        rows[kept:] = -1
        parents, on_host = self.parents(count, links, slots.device)
        batch = RowStatesBatch(
            **sequences((self.tokens,) * count, slots.device),
            read_slots=slots,
            write_slots=slots,
            has_initial_state=torch.ones_like(slots, dtype=torch.bool),
            parents=parents,
            parent_rows=on_host,
            row_slots=rows,
        )
        return Part(phase="verify", rows=slice(0, count * self.tokens), states=batch)

    def pages(self, table: torch.Tensor, kv_lens: torch.Tensor, lengths: Sequence[int], links: Any) -> Part:
        """Makes the part of a pass for attention layers.

        Args:
            table: [N, P], the pages of each sequence.
            kv_lens: [N], the number of cached tokens of each sequence, including drafted tokens.
            lengths: The values of `kv_lens`, on the host.
            links: See `states`.
        """
        count = len(lengths)
        tables: dict[str, Any] = {
            **sequences((self.tokens,) * count, table.device),
            "page_table": table,
            "kv_lens": kv_lens,
            "kv_seqlens": tuple(lengths),
        }
        if not self.tree:
            pages = PagedBatch(**tables)
        else:
            parents, on_host = self.parents(count, links, table.device)
            pages = PagedTreeBatch(**tables, parents=parents, parent_rows=on_host)
        return Part(phase="verify", rows=slice(0, count * self.tokens), pages=pages)

    def parents(
        self, count: int, links: Any, device: torch.device
    ) -> tuple[torch.Tensor, tuple[int, ...] | None]:
        """The parents of all rows of a pass, on the device and on the host; for trees, None on the host."""
        first = getattr(links, "retrieve_next_token", None) if self.tree else None
        if first is not None:
            found = parents_of(first[:count], links.retrieve_next_sibling[:count])
            return torch.nn.functional.pad(found, (0, count * self.tokens - len(found)), value=-1), None
        chain = torch.arange(-1, self.tokens - 1, dtype=torch.int32, device=device).repeat(count)
        return chain, None if self.tree else (*range(-1, self.tokens - 1),) * count


def parents_of(first_child: torch.Tensor, next_sibling: torch.Tensor) -> torch.Tensor:
    """The parents [N * X] of drafted tokens, as places among the X tokens of a sequence; -1 if there is none.

    Args:
        first_child: [N, X], each token's first child; -1 if there is none.
        next_sibling: [N, X], the next token with the same parent; -1 if there is none.
    """
    count, tokens = first_child.shape
    own = torch.arange(tokens, device=first_child.device).expand(count, tokens)
    # A link of -1 writes to the last column, which is dropped.
    nowhere = own.new_full((count, tokens + 1), -1)
    parents = nowhere.scatter(1, first_child.long() % (tokens + 1), own)
    siblings = torch.arange(tokens + 1, device=own.device).repeat(count, 1)
    siblings.scatter_(1, next_sibling.long() % (tokens + 1), own)
    for _ in range(max(tokens - 1, 1).bit_length()):  # follow the links from each token to its first sibling
        siblings = siblings.gather(1, siblings)
    return parents.gather(1, siblings[:, :tokens]).flatten().int()


def drafts_of(version: Version, model_runner: Any) -> Drafts | None:
    """The form of the drafts that a model runner verifies; None if it verifies none.

    Raises:
        BridgeError: Sequences have different numbers of drafts, or the states after drafted rows are not in
            the order of the batch in SGLang's memory.
    """
    chosen = version.speculation(model_runner)
    if chosen.speculative_algorithm is None or model_runner.is_draft_worker:
        return None
    if chosen.speculative_algorithm == "DSPARK":
        raise BridgeError(
            "Switchrail does not serve SGLang's DSPARK, in which sequences have different numbers of drafts"
        )
    stable_rows = getattr(import_module(version.linear_module), "pp_spec_stable_rows_enabled", None)
    if stable_rows is not None and stable_rows():
        raise BridgeError(
            "Switchrail does not serve SGLANG_ENABLE_PP_SPEC: with it, SGLang orders drafts' states by "
            "request, not as in the batch"
        )
    return Drafts(int(chosen.speculative_num_draft_tokens), (chosen.speculative_eagle_topk or 1) > 1)
