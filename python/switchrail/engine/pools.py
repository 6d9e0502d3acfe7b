"""Where sequences keep what attention remembers: pages of keys and values, and slots of recurrent state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod

import torch


class FreeList:
    """The numbers 1 to `count` - 1, each free or taken; 0 is reserved and never given out."""

    def __init__(self, count: int) -> None:
        self.capacity = count - 1
        self._free = list(range(count - 1, 0, -1))
        self._taken = bytearray(count)

    def __len__(self) -> int:
        """How many are free."""
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """Takes `count` numbers, of which the caller has checked that they are there."""
        assert count <= len(self._free), f"{count} wanted, {len(self._free)} free"
        split = len(self._free) - count
        numbers = self._free[split:]
        del self._free[split:]
        for number in numbers:
            self._taken[number] = True
        return numbers

    def give(self, numbers: Iterable[int]) -> None:
        """Gives numbers back."""
        for number in numbers:
            assert self._taken[number], f"{number} is not taken"
            self._taken[number] = False
            self._free.append(number)


@dataclass(frozen=True, slots=True, kw_only=True)
class KVShape:
    """Keys and values of a softmax layer: `heads` times `size` values each, a token."""

    heads: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaShape:
    """The state of a delta-rule layer: [heads, value_size, key_size], a sequence."""

    heads: int
    value_size: int
    key_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvShape:
    """The window of a causal convolution: the last `width` - 1 inputs of `channels` values, a sequence."""

    channels: int
    width: int


Shape = KVShape | DeltaShape | ConvShape


def page_bytes(shapes: Iterable[Shape], page_size: int, dtype: torch.dtype) -> int:
    """Bytes that one page takes over all layers."""
    tokens = sum(2 * shape.heads * shape.size for shape in shapes if isinstance(shape, KVShape))
    return page_size * tokens * dtype.itemsize


def slot_bytes(shapes: Iterable[Shape], dtype: torch.dtype, state_dtype: torch.dtype) -> int:
    """Bytes that one sequence's recurrent states take over all layers."""
    total = 0
    for shape in shapes:
        if isinstance(shape, DeltaShape):
            total += shape.heads * shape.value_size * shape.key_size * state_dtype.itemsize
        elif isinstance(shape, ConvShape):
            total += shape.channels * (shape.width - 1) * dtype.itemsize
    return total


class Pools:
    """The memory of an engine, allocated here and never again; pages and slots come back uncleared.

    Attributes:
        pages: Free pages of the key-value pool.
        slots: Free slots of the state pools.
        kv: layer id -> keys and values, each [pages, page, HKV, D].
        state: layer id -> recurrent states, [slots, HV, V, K].
        conv: layer id -> convolution windows, [slots, C, W - 1] with the C axis contiguous.
    """

    def __init__(
        self,
        shapes: Mapping[tuple[int, str], Shape],
        *,
        num_pages: int,
        page_size: int,
        num_slots: int,
        dtype: torch.dtype,
        state_dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Allocates the pools.

        Args:
            shapes: What each (layer id, op) keeps.
            num_pages: Pages, the reserved one included.
            page_size: Tokens in a page.
            num_slots: Slots, the reserved one included.
            dtype: Of keys, values and convolution windows.
            state_dtype: Of recurrent states.
            device: Where they live.
        """
        self.pages = FreeList(num_pages)
        self.slots = FreeList(num_slots)
        self.kv: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.state: dict[int, torch.Tensor] = {}
        self.conv: dict[int, torch.Tensor] = {}
        for (layer, _), shape in shapes.items():
            if isinstance(shape, KVShape):
                size = (num_pages, page_size, shape.heads, shape.size)
                self.kv[layer] = (
                    torch.empty(size, dtype=dtype, device=device),
                    torch.empty(size, dtype=dtype, device=device),
                )
            elif isinstance(shape, DeltaShape):
                size = (num_slots, shape.heads, shape.value_size, shape.key_size)
                self.state[layer] = torch.empty(size, dtype=state_dtype, device=device)
            else:
                rows = torch.empty(num_slots, shape.width - 1, shape.channels, dtype=dtype, device=device)
                self.conv[layer] = rows.transpose(1, 2)

    def tensors(self) -> list[torch.Tensor]:
        """Every tensor of the pools."""
        pairs = [tensor for pair in self.kv.values() for tensor in pair]
        return [*pairs, *self.state.values(), *self.conv.values()]

    @property
    def nbytes(self) -> int:
        """Bytes that the pools take."""
        return sum(prod(tensor.shape) * tensor.itemsize for tensor in self.tensors())
