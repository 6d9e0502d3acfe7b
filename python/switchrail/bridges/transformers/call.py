"""One call of a served model: packs the arguments and unpacks the results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch
from transformers import DynamicCache

from switchrail.bridges.transformers.cache import ServedCache, adopt, check_adoptable
from switchrail.bridges.transformers.memory import Memory
from switchrail.errors import BridgeError

_DROPPED: Final = ("cache_position", "past_key_values", "cache_params")
"""Arguments whose given values are not passed to the packed call."""

_PACKED: Final = ("seq_idx", "cu_seq_lens_q", "cu_seq_lens_k")
"""Arguments for sequences that the caller has packed into one row."""


class Call:
    """A call of a model without its head, on B sequences of T columns.

    Attributes:
        sequences: B.
        columns: T.
        counts: The number of tokens of each sequence, without padding.
        ids: [1, R] tokens or [1, R, H] embeddings without padding, where R is the sum of `counts`.
        positions: [1, R], the positions of these tokens in their sequences.
        arguments: The arguments of the packed call.
        cache: The given cache, or a new cache that the call must return; None if there is neither.
    """

    def __init__(self, given: Mapping[str, Any], cache_name: str, base: Any) -> None:
        """Checks and packs the arguments.

        Args:
            given: The arguments by name.
            cache_name: The name of the argument with the cache.
            base: The model without its head.

        Raises:
            BridgeError: An argument is invalid or not served, or the model is in training mode.
        """
        _check_served(given, base)
        name = "input_ids" if given.get("input_ids") is not None else "inputs_embeds"
        tokens = given.get(name)
        if tokens is None:
            raise BridgeError("got neither input_ids nor inputs_embeds, expected one of them")
        self.sequences, self.columns = tokens.shape[:2]
        self._cache_name, self._base = cache_name, base
        found = given.get(cache_name)
        if found is None and _wanted(given, base, "use_cache"):
            found = DynamicCache(config=base.config)
        if found is not None:
            check_adoptable(found)
        seen = found.get_seq_length() if isinstance(found, ServedCache) else 0
        self._before: torch.Tensor | None = None
        self._index: torch.Tensor | None = None
        self.counts = [self.columns] * self.sequences
        if given.get("attention_mask") is not None:
            self._read_mask(given["attention_mask"], seen)
        if not any(self.counts):
            raise BridgeError("got padding only, expected at least one token")
        positions = given.get("position_ids")
        if positions is None:
            positions = torch.arange(seen, seen + self.columns, device=tokens.device).unsqueeze(0)
        elif positions.dim() != 2:
            raise BridgeError(f"got position_ids of {_described(positions)}, expected [sequences, columns]")
        self.ids = self._packed(tokens)
        self.positions = self._packed(positions.expand(self.sequences, self.columns))
        self._as_tuple = _wanted(given, base, "return_dict", default=True) is False
        self.arguments = {key: value for key, value in given.items() if key not in _DROPPED}
        self.arguments |= {
            name: self.ids,
            "attention_mask": None,
            "position_ids": self.positions,
            cache_name: None,
            "use_cache": False,
            "return_dict": True,
        }
        self._has_gradient = tokens.requires_grad
        self.cache = None if found is None else adopt(found)

    def _read_mask(self, mask: object, seen: int) -> None:
        """Finds the padding in the call's columns, which come after `seen` columns in the cache."""
        if not isinstance(mask, torch.Tensor) or mask.dim() != 2:
            raise BridgeError(
                f"got an attention mask of {_described(mask)}, expected [sequences, columns], which tells "
                "tokens from padding"
            )
        if mask.shape != (self.sequences, seen + self.columns):
            raise BridgeError(
                f"got an attention mask of {_described(mask)}, expected [{self.sequences}, "
                f"{seen + self.columns}], for the columns in the cache and then the columns of the call"
            )
        self._before, real = torch.split(mask != 0, [seen, self.columns], dim=1)
        self._lengths, self.counts = torch.stack([self._before.sum(1), real.sum(1)]).tolist()
        if min(self.counts) < self.columns:
            self._index = real.flatten().nonzero().squeeze(1)

    def check(self, memory: Memory) -> None:
        """Checks that the call continues the sequences in memory; removes newest tokens that its mask hides.

        Raises:
            BridgeError: The call and the memory differ in the number of sequences, the mask hides tokens that
                can't be removed (see `Memory.hide`), or an earlier call has failed.
        """
        if not memory.is_whole and memory.has_state:
            raise BridgeError("an earlier call with this cache failed, or still runs; expected another cache")
        if len(memory.lengths) != self.sequences:
            raise BridgeError(
                f"got {self.sequences} sequences, expected {len(memory.lengths)}, as in the cache",
                found=self.sequences,
            )
        if self._before is not None and self._lengths != memory.lengths:
            memory.hide(self._before)

    def unpacked(self, output: Any) -> Any:
        """The output in transformers' shapes, with the cache."""
        if isinstance(output, torch.Tensor):
            return self._without_gradient(self._unpacked(output))
        for key, value in output.items():
            output[key] = self._unpacked(value)
        output["last_hidden_state"] = self._without_gradient(output["last_hidden_state"])
        if self._as_tuple:
            first, *others = output.to_tuple()
            return (first, *([] if self.cache is None else [self.cache]), *others)
        if self.cache is not None:
            output[self._cache_name] = self.cache
        return output

    def _without_gradient(self, x: torch.Tensor) -> torch.Tensor:
        """The hidden states. Computing a gradient from them raises an error."""
        has_gradient = self._has_gradient or any(one.requires_grad for one in self._base.parameters())
        if not torch.is_grad_enabled() or not has_gradient:
            return x
        found: torch.Tensor = _NoGradient.apply(x, torch.zeros((), requires_grad=True))
        return found

    def _packed(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.flatten(0, 1)
        return (rows if self._index is None else rows[self._index]).unsqueeze(0)

    def _unpacked(self, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(self._unpacked, value))
        if not isinstance(value, torch.Tensor):
            return value
        rows = sum(self.counts)
        if value.dim() > 2 and value.shape[:2] == (1, rows):  # hidden states
            return torch.unflatten(self._padded(value.squeeze(0)), 0, (self.sequences, self.columns))
        is_flat = value.dim() == 2 and value.shape[0] == rows  # router logits
        return self._padded(value) if is_flat else value

    def _padded(self, rows: torch.Tensor) -> torch.Tensor:
        """Puts rows of zeros at the padding."""
        if self._index is None:
            return rows
        whole = rows.new_zeros(self.sequences * self.columns, *rows.shape[1:])
        return whole.index_copy_(0, self._index, rows)


class _NoGradient(torch.autograd.Function):
    """Refuses to compute gradients, since they would not include the served layers."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, switch: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        raise BridgeError("a served model has no gradients; call remove() of its handle before training")


def _check_served(given: Mapping[str, Any], base: Any) -> None:
    """Refuses modes and arguments that the bridge does not serve."""
    if base.training:
        raise BridgeError("got a call in training mode, expected eval mode: call model.eval()")
    if _wanted(given, base, "output_attentions"):
        raise BridgeError("got output_attentions, which no backend returns; expected False")
    packed = [key for key in _PACKED if given.get(key) is not None]
    if packed:
        raise BridgeError(f"got {', '.join(packed)}, expected a row for each sequence, padded", found=packed)


def _wanted(given: Mapping[str, Any], base: Any, name: str, *, default: bool = False) -> Any:
    """An argument, or the model's default for it."""
    value = given.get(name)
    return getattr(base.config, name, default) if value is None else value


def _described(found: object) -> str:
    if isinstance(found, torch.Tensor):
        return f"shape {list(found.shape)}"
    return f"type {type(found).__name__}"
