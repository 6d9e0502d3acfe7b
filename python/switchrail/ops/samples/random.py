"""Parts of random samples: seeded numbers, batches of ops with a state, decays, views of fused buffers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

import torch

from switchrail.ops.batch import Phase, StateBatch, VerifyBatch, sequences

Gate = Literal["decaying", "near_zero", "near_one", "one", "mixed"]
Initial = Literal["all", "some", "none"]


class Random:
    """Seeded random numbers, drawn on the CPU to be the same for every device."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int) -> torch.Tensor:
        """Normally distributed float64 numbers with mean 0 and variance 1."""
        return torch.randn(shape, dtype=torch.float64, generator=self._generator)

    def uniform(self, *shape: int) -> torch.Tensor:
        """Uniformly distributed float64 numbers from 0 to 1."""
        return torch.rand(shape, dtype=torch.float64, generator=self._generator)

    def permutation(self, n: int) -> torch.Tensor:
        """The numbers from 0 to n - 1 in random order."""
        return torch.randperm(n, generator=self._generator)


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of `COMPUTE` for the dtype of a call's first tensor."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def log_decay(random: Random, gate: Gate, *shape: int) -> torch.Tensor:
    """The logs of random decays, float64.

    Args:
        random: The source of random numbers.
        gate: The kind of decay: `decaying` is like a trained model's; `near_zero` is 0 or at most e^-20;
            `near_one` is between 1 - 1e-4 and 1; `one` is 1, which is no decay; `mixed` chooses one of these
            for each number.
        shape: The shape of the result.
    """
    kinds = {
        "decaying": -0.3 * torch.nn.functional.softplus(random.normal(*shape)),
        "near_zero": -20 - 80 * random.uniform(*shape),
        "near_one": -1e-4 * random.uniform(*shape),
        "one": torch.zeros(shape, dtype=torch.float64),
    }
    kinds["near_zero"][random.uniform(*shape) < 0.2] = -torch.inf
    if gate != "mixed":
        return kinds[gate]
    choice = (random.uniform(*shape) * 16).long()
    mixed = kinds["decaying"]
    for name, values in (("near_zero", [0]), ("near_one", [1, 2, 3, 4]), ("one", [5, 6, 7, 8])):
        chosen = torch.isin(choice, torch.tensor(values))
        mixed = torch.where(chosen, kinds[name], mixed)
    return mixed


def state_batch(
    random: Random,
    lengths: Sequence[int],
    phase: Phase,
    initial: Initial,
    in_place: bool,
    padding: Collection[int],
) -> tuple[StateBatch, int]:
    """Makes a batch on permuted slots. Also returns the pool's number of slots.

    In verification the rows of each sequence form a chain.
    """
    count = len(lengths)
    slots = (count if in_place else 2 * count) + 3
    order = random.permutation(slots - 1) + 1
    read = order[:count].clone()
    write = read.clone() if in_place else order[count : 2 * count].clone()
    if phase == "decode" or initial == "all":
        has_initial_state = torch.ones(count, dtype=torch.bool)
    elif initial == "none":
        has_initial_state = torch.zeros(count, dtype=torch.bool)
    else:
        has_initial_state = random.uniform(count) < 0.5
    for n in padding:
        read[n] = write[n] = -1
    fields = {
        **sequences(tuple(lengths), "cpu"),
        "read_slots": read,
        "write_slots": write,
        "has_initial_state": has_initial_state,
    }
    if phase != "verify":
        return StateBatch(**fields), slots
    chain = [i - 1 for length in lengths for i in range(length)]
    parents = torch.tensor(chain, dtype=torch.int32)
    return VerifyBatch(**fields, parents=parents, parent_rows=tuple(chain)), slots


def unread(batch: StateBatch, slots: int) -> torch.Tensor:
    """A mask [slots] of a pool's slots that no sequence reads."""
    mask = torch.ones(slots, dtype=torch.bool)
    for n, length in enumerate(batch.seqlens):
        if batch.has_initial_state[n] and length and batch.read_slots[n] >= 0:
            mask[batch.read_slots[n]] = False
    return mask


def views(tensors: Sequence[torch.Tensor], dtype: torch.dtype, strided: bool) -> list[torch.Tensor]:
    """The tensors in `dtype`; if `strided`, as views of one fused buffer with gaps of NaN."""
    if not strided:
        return [tensor.to(dtype) for tensor in tensors]
    rows = tensors[0].shape[0]
    widths = [tensor[0].numel() if rows else 1 for tensor in tensors]
    fused = torch.full((rows, sum(widths) + 8), torch.nan, dtype=dtype)
    cut = []
    first = 4
    for tensor, width in zip(tensors, widths, strict=True):
        if rows == 0:
            cut.append(tensor.to(dtype))
            continue
        fused[:, first : first + width] = tensor.reshape(rows, width).to(dtype)
        cut.append(fused[:, first : first + width].view(tensor.shape))
        first += width
    return cut
