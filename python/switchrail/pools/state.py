"""Slots with the recurrent states and convolution windows of linear layers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from switchrail.pools.pool import Pool
from switchrail.pools.shapes import ConvShape, DeltaShape, StateShape


class StatePool(Pool):
    """The slots of a model's linear layers. A slot has the same number in all layers.

    The memory is allocated once; reused slots are not cleared. A platform's own class derives from this one,
    and most often overrides only `allocate`.

    Attributes:
        states: layer id -> recurrent states, [slots, HV, V, K].
        windows: layer id -> convolution windows, [slots, C, W - 1] with the C axis contiguous.
    """

    def __init__(
        self,
        shapes: Mapping[tuple[int, str], StateShape],
        *,
        num_slots: int,
        dtype: torch.dtype,
        state_dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Allocates the slots.

        Args:
            shapes: The shape of a sequence's state or window, by (layer id, op).
            num_slots: The number of slots, including the reserved slot 0.
            dtype: The dtype of convolution windows.
            state_dtype: The dtype of recurrent states.
            device: The device of the slots.
        """
        self.states: dict[int, torch.Tensor] = {}
        self.windows: dict[int, torch.Tensor] = {}
        for (layer, _), shape in shapes.items():
            if isinstance(shape, DeltaShape):
                state = (num_slots, shape.heads, shape.value_size, shape.key_size)
                self.states[layer] = self.allocate(state, state_dtype, device)
            else:
                window = (num_slots, shape.width - 1, shape.channels)
                self.windows[layer] = self.allocate(window, dtype, device).transpose(1, 2)

    @classmethod
    def slot_bytes(cls, shapes: Iterable[StateShape], dtype: torch.dtype, state_dtype: torch.dtype) -> int:
        """Bytes of one slot, summed over the layers with these shapes."""
        total = 0
        for shape in shapes:
            if isinstance(shape, ConvShape):
                total += shape.channels * (shape.width - 1) * dtype.itemsize
            else:
                total += shape.heads * shape.value_size * shape.key_size * state_dtype.itemsize
        return total

    def tensors(self) -> list[torch.Tensor]:
        """Every tensor of the pool."""
        return [*self.states.values(), *self.windows.values()]
