"""Tiles of rows over a paged cache, for prefill or verification, and the programs that compute them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from switchrail_kernels.tables import all_to_device, ranges


@dataclass(frozen=True, slots=True)
class Work:
    """The programs for tiles of rows whose keys are split into pieces.

    Attributes:
        items: [programs, 8] int32, most keys per piece first. Columns: sequence, first row within the
            sequence, first packed row, number of rows, piece, number of pieces, index of the tile's first
            partial result, first row in the tensors of queries and results.
        rows: [merged rows, 8] int32, the rows whose partial results must be merged. Columns: packed row,
            index of the row's first partial result, distance between its partial results, their number, row
            in the tensors of queries and results; the other columns are unused.
        slots: The number of partial results. Each belongs to one row and one piece.
        base: In latent attention, `CacheSplit.base`; otherwise 0.
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
        """Lay out the programs.

        Args:
            tiles: [tiles, 4], as in `split_rows`.
            keys: [tiles], the number of keys visible to each tile.
            pieces: [tiles], the number of pieces of each tile.
            device: The device of the tables.
            at: [tiles], where each tile's rows start in the query tensor, if that tensor holds only these
                tiles' rows; None if it holds all packed rows.
            base: In latent attention, `CacheSplit.base`, from which `pieces` was computed; otherwise 0.
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

        split = np.flatnonzero(pieces > 1)
        tile = np.repeat(split, rows[split])
        row = ranges(rows[split])
        merged = np.zeros((len(tile), 8), dtype=np.int32)
        merged[:, 0] = tiles[tile, 2] + row
        merged[:, 1] = slot[tile] + row
        merged[:, 2] = rows[tile]
        merged[:, 3] = pieces[tile]
        merged[:, 4] = first[tile] + row
        programs, rows_merged = all_to_device([items, merged], device)
        return cls(programs, rows_merged, int(parts.sum()), base)
