"""Tiles of rows over a paged cache, of a prefill or a verification, and their programs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from switchrail_kernels.tables import all_to_device, ranges


@dataclass(frozen=True, slots=True)
class Work:
    """Programs for tiles of rows whose keys are cut into pieces.

    Attributes:
        items: [programs, 8] int32, those with the most keys first: sequence, first row within it, first
            packed row, number of rows, piece, number of pieces, first slot of the parts, first row of the
            queries and of what they give.
        rows: [rows that are merged, 8] int32: packed row, slot of its first part, slots from one part to the
            next, number of parts, row of the queries and of what they give, nothing.
        slots: Slots of parts.
        base: Pieces of a usual tile.
    """

    items: torch.Tensor
    rows: torch.Tensor
    slots: int
    base: int = 0

    @classmethod
    def of(
        cls,
        tiles: np.ndarray,
        keys: np.ndarray,
        pieces: np.ndarray,
        device: torch.device,
        at: np.ndarray | None = None,
        base: int = 0,
    ) -> Work:
        """The programs.

        Args:
            tiles: [tiles, 4] as `split_rows` has them.
            keys: [tiles], the keys that a tile sees.
            pieces: [tiles], into how many pieces they are cut.
            device: Where the tables go.
            at: [tiles], the first row of a tile's queries; None: its first packed row.
            base: Pieces of a usual tile.
        """
        rows = tiles[:, 3].astype(np.int64)
        first = tiles[:, 2] if at is None else at
        parts = np.where(pieces > 1, pieces * rows, 0)
        slot = np.cumsum(parts) - parts

        tile = np.repeat(np.arange(len(tiles)), pieces)
        items = np.empty((len(tile), 8), dtype=np.int32)
        items[:, :4] = tiles[tile]
        items[:, 4] = ranges(pieces)
        items[:, 5] = pieces[tile]
        items[:, 6] = slot[tile]
        items[:, 7] = first[tile]
        items = items[np.argsort(-(keys // pieces)[tile], kind="stable")]

        cut = np.flatnonzero(pieces > 1)
        tile = np.repeat(cut, rows[cut])
        row = ranges(rows[cut])
        merged = np.zeros((len(tile), 8), dtype=np.int32)
        merged[:, 0] = tiles[tile, 2] + row
        merged[:, 1] = slot[tile] + row
        merged[:, 2] = rows[tile]
        merged[:, 3] = pieces[tile]
        merged[:, 4] = first[tile] + row
        programs, rows_merged = all_to_device([items, merged], device)
        return cls(programs, rows_merged, int(parts.sum()), base)


__all__ = ["Work"]
