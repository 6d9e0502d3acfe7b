"""The memory of one cache's sequences: keys and values in pages, states in slots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import numpy as np
import torch

from switchrail._core import BoundPlan
from switchrail.dispatch import Dispatcher
from switchrail.engine.memory import Pools
from switchrail.engine.models.binding import Mixer
from switchrail.engine.models.contract import Connected, Connection
from switchrail.engine.options import EngineOptions
from switchrail.engine.step import Running, Step, part_of
from switchrail.engine.transfer import sent, transfer
from switchrail.errors import BridgeError
from switchrail.ops.batch import Phase
from switchrail.platforms import Platform
from switchrail.pools import Shape, pages_of

_GROWTH: Final = 1.5
"""Factor by which a cache without a limit grows."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """The data of a model that all its caches share."""

    mixers: Sequence[Mixer]
    shapes: Mapping[tuple[int, str], Shape]
    bound: BoundPlan
    platform: Platform
    options: EngineOptions
    dtype: torch.dtype
    announced: set[tuple[str, str, str]] = field(default_factory=set)

    @property
    def has_state(self) -> bool:
        """Whether the model has recurrent states or convolution windows."""
        return any(op not in ("attention", "mla") for _, op in self.shapes)


class _ConnectedPools:
    """Pools for `count` sequences with the same number of pages each, connected to the model's layers."""

    @torch.inference_mode(False)
    def __init__(self, model: Model, count: int, pages: int) -> None:
        options = EngineOptions(
            max_sequences=count,
            max_tokens_per_step=count,
            page_size=model.options.page_size,
            state_dtype=model.options.state_dtype,
            num_pages=count * pages + 1,
        )
        self.pages = pages
        self.pools = Pools(
            model.shapes,
            options,
            platform=model.platform,
            max_length=pages * options.page_size,
            dtype=model.dtype,
            state_dtype=getattr(torch, options.state_dtype),
        )
        self.dispatcher = Dispatcher(model.bound, announced=model.announced)
        self.running = Running()
        connection = Connection(self.dispatcher, self.pools, self.running)
        self.connected = []
        for layer, mixer, contract in model.mixers:
            by_op = contract.layers(mixer, partial(self.pools.of, layer))
            self.connected.append(Connected(layer, by_op, connection))
            for arguments in by_op.values():
                self.dispatcher.add(layer, arguments)

    def pages_of(self, place: int, count: int) -> range:
        """The first `count` pages of a place; see `Memory`."""
        first = 1 + place * self.pages
        return range(first, first + count)


class Memory:
    """The memory and progress of the sequences of one cache.

    The pools are divided into numbered places of equal size: one slot and a number of consecutive pages. Each
    sequence has a place. Padding is not stored, so a sequence's tokens are consecutive.

    Attributes:
        own: The pools.
        lengths: The number of tokens of each sequence in memory, without padding.
        columns: The number of columns that the model was called with, padding included.
        unpadded: How many of the newest columns have no padding and no hidden tokens in any sequence.
        grows: Whether more memory is allocated for longer or more sequences.
        is_whole: Whether all layers have the same tokens. False during a call, and after a call has failed.
    """

    def __init__(self, model: Model, sequences: int, tokens: int, *, grows: bool = True) -> None:
        """Allocates the memory.

        Args:
            model: The model.
            sequences: The number of sequences; the maximum if the memory doesn't grow.
            tokens: Tokens per sequence to allocate memory for.
            grows: See the class.
        """
        self._model = model
        self.grows = grows
        self._capacity = sequences
        self._device = torch.device(model.platform.device)
        self._pinned = model.platform.hardware.pin_memory_available()
        self.own = _ConnectedPools(model, sequences, max(1, pages_of(tokens, model.options.page_size)))
        self.clear(sequences)

    def clear(self, sequences: int) -> None:
        """Forgets all tokens.

        Args:
            sequences: The number of sequences of the next calls.

        Raises:
            BridgeError: The memory doesn't grow, and is too small for so many sequences.
        """
        if sequences > self._capacity:
            self._check_growth(sequences)
            self.own, self._capacity = _ConnectedPools(self._model, sequences, self.own.pages), sequences
        self.lengths = [0] * sequences
        self.columns = self.unpadded = 0
        self.is_whole = True
        self._places = list(range(sequences))
        self._place()

    @property
    def has_state(self) -> bool:
        """Whether the model has states, which can't be rolled back."""
        return self._model.has_state

    @property
    def tokens(self) -> int:
        """Tokens per sequence that fit without growing."""
        return self.own.pages * self._model.options.page_size

    def tensors(self) -> list[torch.Tensor]:
        """All tensors of the pools."""
        return self.own.pools.tensors()

    def step(self, counts: Sequence[int], ids: torch.Tensor, positions: torch.Tensor) -> Step:
        """Makes the step that appends tokens to sequences. After the step has run, call `advance`.

        Args:
            counts: The number of new tokens of each sequence.
            ids: [1, T] int64 tokens, or [1, T, H] embeddings, sequence by sequence.
            positions: [1, T] int64.

        Raises:
            BridgeError: The memory doesn't grow, and is too small for the new tokens.
        """
        before, new = np.array(self.lengths), np.array(counts)
        after = before + new
        self._reserve(int(after.max()))
        ends = new.cumsum()
        starts = (1 + np.array(self._places) * self.own.pages) * self._model.options.page_size
        first = np.zeros(len(counts) + 1, dtype=np.int32)
        first[1:] = ends
        # for each row, its number among the new rows of its sequence
        numbers = np.arange(ends[-1]) - (ends - new).repeat(new)
        rows, owners, cu_seqlens, kv_lens, started = transfer(
            [
                (starts + before).repeat(new) + numbers,
                np.arange(len(counts), dtype=np.int32).repeat(new),
                first,
                after.astype(np.int32),
                before > 0,
            ],
            self._device,
            self._pinned,
        )
        phase: Phase = "decode" if (new == 1).all() and (before > 0).all() else "prefill"
        kv_seqlens = tuple(after.tolist())
        pages = pages_of(int(after.max()), self._model.options.page_size)
        part = part_of(
            phase,
            slice(0, int(ends[-1])),
            seqlens=tuple(new.tolist()),
            cu_seqlens=cu_seqlens,
            slots=self._slots,
            has_initial_state=started,
            page_table=self._table[:, :pages].contiguous(),
            kv_lens=kv_lens,
            kv_seqlens=kv_seqlens,
        )
        none = rows[:0]
        return Step(
            input_ids=ids,
            position_ids=positions,
            sequence_ids=owners.unsqueeze(0),
            kv_rows=rows,
            logit_rows=none,
            logit_slots=none,
            parts=(part,),
        )

    def advance(self, counts: Sequence[int], columns: int) -> None:
        """Counts the tokens of a step that has run."""
        self.lengths = [length + count for length, count in zip(self.lengths, counts, strict=True)]
        self.columns += columns
        self.unpadded = self.unpadded + columns if min(counts) == columns else 0

    def drop(self, columns: int) -> None:
        """Forgets the newest columns.

        Raises:
            BridgeError: The model has states, which can't be rolled back; or one of the columns has padding.
        """
        if columns and self._model.has_state:
            raise BridgeError("a cache with recurrent states can't be cropped; generate without drafts")
        if not 0 <= columns <= self.unpadded:
            raise BridgeError(
                f"got {columns} columns to remove, expected at most {self.unpadded}: only the newest columns "
                "in which no sequence has padding can be removed",
                found=columns,
            )
        self.lengths = [length - columns for length in self.lengths]
        self.columns -= columns
        self.unpadded -= columns

    def hide(self, mask: torch.Tensor) -> None:
        """Forgets the newest tokens of some sequences, for instance those after the end of a text.

        Args:
            mask: [sequences, columns] bool, False for padding and for hidden tokens.

        Raises:
            BridgeError: The model has states, or the mask changes tokens that are not a sequence's newest.
        """
        old, new = mask.tensor_split([self.columns - self.unpadded], dim=1)
        kept = new.sum(1)
        before = [length - self.unpadded for length in self.lengths]
        is_end = new.equal(torch.arange(self.unpadded, device=mask.device) < kept[:, None])
        if self.has_state or old.sum(1).tolist() != before or not is_end:
            raise BridgeError(
                f"got an attention mask with {mask.sum(1).tolist()} tokens before the call, expected "
                f"{self.lengths}, as in the cache: only the newest tokens of a sequence can be hidden later, "
                "and only if the model has no recurrent states"
            )
        self.lengths = [length + count for length, count in zip(before, kept.tolist(), strict=True)]
        self.unpadded = 0

    def select(self, parents: Sequence[int]) -> None:
        """Replaces the sequences by continuations of some of them, for instance of the best beams.

        The first sequence that continues a parent takes over the parent's memory. Further sequences with the
        same parent get copies of that memory.

        Args:
            parents: For each new sequence, the number of the sequence that it continues.
        """
        if len(parents) > self._capacity:
            self._check_growth(len(parents))
            self._move(len(parents), self.own.pages)
        used = set(parents)
        kept = {self._places[parent] for parent in used}
        free = [place for place in range(self._capacity) if place not in kept]
        places: list[int] = []
        pages: list[tuple[int, int]] = []
        slots: list[tuple[int, int]] = []
        left = set(used)
        for parent in parents:
            place = self._places[parent]
            if parent in left:
                left.remove(parent)
                places.append(place)
                continue
            target = free.pop()
            count = pages_of(self.lengths[parent], self._model.options.page_size)
            pages += zip(self.own.pages_of(place, count), self.own.pages_of(target, count), strict=True)
            slots.append((place + 1, target + 1))
            places.append(target)
        if self.columns:
            self.own.pools.copy(pages, slots)
        self._places = places
        self.lengths = [self.lengths[parent] for parent in parents]
        self._place()

    def copy(self) -> Memory:
        """Another memory with the same contents."""
        other: Memory = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._move(self._capacity, self.own.pages)
        return other

    def _check_growth(self, sequences: int) -> None:
        if not self.grows:
            raise BridgeError(
                f"got {sequences} sequences, expected at most {self._capacity}, for which the cache was made",
                found=sequences,
                valid=(self._capacity,),
            )

    def _reserve(self, tokens: int) -> None:
        if tokens <= self.tokens:
            return
        if not self.grows:
            raise BridgeError(
                f"a sequence has {tokens} tokens, expected at most {self.tokens}, for which the cache was "
                "made",
                found=tokens,
                valid=(self.tokens,),
            )
        self._move(
            self._capacity, pages_of(max(tokens, int(_GROWTH * self.tokens)), self._model.options.page_size)
        )

    def _move(self, sequences: int, pages: int) -> None:
        """Copies all contents to new pools, which may have another size."""
        old, self.own = self.own, _ConnectedPools(self._model, sequences, pages)
        used = pages_of(max(self.lengths), self._model.options.page_size)
        for kind, pool in old.pools.kv.items():
            for tensor, target in zip(pool.tensors(), self.own.pools.kv[kind].tensors(), strict=True):
                for place in self._places:
                    to, start = self.own.pages_of(place, used), old.pages_of(place, used)
                    target[to.start : to.stop] = tensor[start.start : start.stop]
        count = min(self._capacity, sequences) + 1
        for tensor, target in zip(old.pools.state.tensors(), self.own.pools.state.tensors(), strict=True):
            target[:count] = tensor[:count]
        self._capacity = sequences
        self._place()

    def _place(self) -> None:
        """Sends the page table and the slots of the sequences' places to the device."""
        table = [list(self.own.pages_of(place, self.own.pages)) for place in self._places]
        slots = [place + 1 for place in self._places]
        self._table = sent(table, torch.int32, self._device, pin_memory=self._pinned)
        self._slots = sent(slots, torch.int64, self._device, pin_memory=self._pinned)
