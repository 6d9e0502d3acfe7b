"""Caches of transformers whose keys, values and states are in Switchrail's memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
from transformers import DynamicCache

from switchrail.bridges.transformers.memory import Memory
from switchrail.errors import BridgeError


class ServedCache(DynamicCache):  # type: ignore[misc]
    """A `DynamicCache` of a served model. Its keys, values and states are in the memory that backends use.

    Attributes:
        memory: The memory; None before the first call.
    """

    memory: Memory | None

    def __len__(self) -> int:
        return len(self.layers)

    def __deepcopy__(self, memo: Mapping[int, Any]) -> ServedCache:
        other: ServedCache = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.memory = None if self.memory is None else self.memory.copy()
        return other

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """The number of columns that the model was called with, including padding."""
        return 0 if self.memory is None else self.memory.columns

    def get_max_length(self, layer_idx: int | None = None) -> int:
        """-1, transformers' value for no limit: Switchrail itself refuses tokens that don't fit."""
        return -1

    def get_query_offset(self, layer_idx: int = 0) -> int:
        """The number of columns before those of the next call."""
        return self.get_seq_length()

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """The length and the offset of attention masks."""
        return self.get_seq_length() + query_length, 0

    def has_previous_state(self, layer_idx: int | None = None, state_idx: int | None = None) -> bool:
        """Whether the cache has tokens."""
        return self.get_seq_length() > 0

    @property
    def batch_size(self) -> int:
        """The number of sequences; -1 before the first call."""
        return -1 if self.memory is None else len(self.memory.lengths)

    @property
    def is_initialized(self) -> bool:
        """Whether memory is allocated."""
        return self.memory is not None

    @property
    def is_compileable(self) -> bool:
        """False, since transformers must not compile the code that calls backends."""
        return False

    @property
    def is_croppable(self) -> bool:
        """Whether the newest tokens can be removed, which recurrent states don't allow."""
        return self.memory is None or not self.memory.has_state

    def reset(self) -> None:
        """Forgets all tokens."""
        if self.memory is not None:
            self.memory.clear(len(self.memory.lengths))

    def crop(self, tokens_to_remove: int) -> None:
        """Forgets the newest tokens. As in transformers, their number is given as a negative number.

        Raises:
            BridgeError: The model has recurrent states, or a sequence has padding among these tokens.
        """
        if self.memory is not None:
            self.memory.drop(-tokens_to_remove)

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Continues the given sequences, in the given order."""
        if self.memory is not None:
            self.memory.select(beam_idx.tolist())

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Continues the given sequences, in the given order."""
        self.reorder_cache(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Continues each sequence `repeats` times."""
        if self.memory is not None:
            count = len(self.memory.lengths)
            self.memory.select([number for number in range(count) for _ in range(repeats)])

    def activate_past_recording(self) -> None:
        """Does nothing: `crop` needs no record of the past, and refuses to roll back recurrent states."""

    def _become_plain(self) -> None:
        """Makes this a plain transformers cache again.

        Raises:
            BridgeError: The cache has tokens in Switchrail's memory, or a fixed size.
        """
        if self.memory is not None and (self.memory.columns or not self.memory.grows):
            raise BridgeError(
                "this cache was filled by a model that Switchrail serves, or made by the handle's method "
                "`cache`, so it has no tensors for transformers; valid: a new cache, or this cache "
                "while Switchrail serves its model"
            )
        del self.memory
        self.__class__ = type(self).__bases__[1]


def _plain(name: str) -> Callable[..., Any]:
    """A method for layers that are not served: makes the cache plain again, then calls the plain method."""

    def method(self: ServedCache, *args: Any, **kwargs: Any) -> Any:
        self._become_plain()
        return getattr(self, name)(*args, **kwargs)

    return method


for _name in (
    *("update", "update_conv_state", "update_recurrent_state", "update_indexer", "early_initialization"),
    *("get_conv_state", "get_recurrent_state", "get_linear_cache", "set_linear_cache"),
    *("offload", "prefetch", "__iter__"),
):
    setattr(ServedCache, _name, _plain(_name))


@cache
def _served_class(cls: Any) -> type[ServedCache]:
    return type(f"Served{cls.__name__}", (ServedCache, cls), {"__doc__": ServedCache.__doc__})


def check_adoptable(found: Any) -> None:
    """Checks that `adopt` accepts a cache.

    Raises:
        BridgeError: The cache is not a `DynamicCache`, is not empty, or has an unsupported option.
    """
    cls: Any = type(found)
    if isinstance(found, ServedCache):
        return
    if not isinstance(found, DynamicCache) or not (
        cls is DynamicCache or cls.__module__.startswith("transformers.models.")
    ):
        problem = f"got a {cls.__name__}"
    elif found.offloading:
        problem = "got a cache with offloading"
    elif any(
        getattr(layer, "record_past", False) and hasattr(layer, "conv_states") for layer in found.layers
    ):
        problem = "got a cache for assisted generation, which needs to roll back recurrent states"
    elif _holds_tokens(found):
        problem = "got a cache with tokens from before the model was served"
    else:
        return
    raise BridgeError(
        f"{problem}, expected an empty DynamicCache without offloading, a cache of `use`'s handle, or none",
        found=found,
        valid=("DynamicCache",),
    )


def adopt(found: Any) -> ServedCache:
    """Converts an empty transformers cache, in place, to one with Switchrail's memory.

    Raises:
        BridgeError: See `check_adoptable`.
    """
    check_adoptable(found)
    served: ServedCache = found
    if not isinstance(found, ServedCache):
        cls: Any = type(found)
        served.__class__ = _served_class(cls)
        served.memory = None
    return served


def _holds_tokens(found: Any) -> bool:
    """Whether a transformers cache has tokens."""
    keys = [layer.keys for layer in found.layers if getattr(layer, "keys", None) is not None]
    states = [layer.has_previous_state for layer in found.layers if hasattr(layer, "has_previous_state")]
    return any(one.numel() for one in keys) or any(any(state.values()) for state in states)
