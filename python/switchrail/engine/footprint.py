"""The memory that a checkpoint needs, and how many tokens fit on a device, without loading weights."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch

from switchrail._core import Layout, RoutePlan
from switchrail.engine.capture import DEFERRED, CapturePlan, commits
from switchrail.engine.checkpoint import load_skeleton, read_config
from switchrail.engine.memory import FRACTION, PoolClasses, table_bytes
from switchrail.engine.models.binding import check_shapes, find_mixers, read_shapes
from switchrail.engine.models.families import Family
from switchrail.engine.models.mtp import head_skeleton, step_family
from switchrail.engine.options import MTP, EngineOptions
from switchrail.platforms import Platform
from switchrail.pools import Shape, pages_of
from switchrail.runtime import Runtime


@dataclass(frozen=True, slots=True, kw_only=True)
class KindFootprint:
    """The memory of all layers of one kind.

    Attributes:
        kind: The kind, as in the layout. Layers of a draft model or head have the prefix `draft: `, and
            `draft: hidden states` stands for the model's hidden states that a head reads.
        layers: The number of these layers.
        weights: Bytes of these layers' weights.
        token: Bytes of these layers' memory per token.
        sequence: Bytes of these layers' memory per sequence: its state, and its records of deferred commits.
            Layers of a draft model or head have two states per sequence.
    """

    kind: str
    layers: int
    weights: int
    token: int
    sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """The memory of a model, and of the draft that the options name.

    Attributes:
        weights: Bytes of all weights.
        kinds: The layers, by kind.
        page_size: Page size in tokens.
        max_length: Maximum tokens per sequence.
        max_sequences: Maximum number of concurrent sequences, each with a state.
        states: Bytes of the state pools and of the records of deferred commits.
        table: Bytes of the page table.
        memory: Bytes of the device's memory.
        fraction: The usable fraction of the memory that the weights leave.
        tokens: Number of tokens that fit beside weights, states and table; None if tokens take no memory.
        sequences: Number of sequences of `max_length` tokens that fit, at most `max_sequences`.
        fits: Whether weights, states, table and a page of tokens fit; if not, no engine can be made.
    """

    weights: int
    kinds: tuple[KindFootprint, ...]
    page_size: int
    max_length: int
    max_sequences: int
    states: int
    table: int
    memory: int
    fraction: float
    tokens: int | None
    sequences: int
    fits: bool


@dataclass(slots=True)
class _Part:
    """The engine's model, its draft model, or one step of its draft head; each has its own pools.

    Attributes:
        layout: The layout.
        model: The model; the values of its weights are not used.
        family: The model's family.
        copies: Slots per sequence.
        name: The prefix of the layers' kinds, such as `draft: `.
        kept: By op, the number of verified rows per slot that the op's layers keep for deferred commits.
        shapes: The shape of the memory of each (layer id, op).
    """

    layout: Layout
    model: Any
    family: Family
    copies: int = 1
    name: str = ""
    kept: Mapping[str, int] = field(default_factory=dict)
    shapes: dict[tuple[int, str], Shape] = field(init=False)

    def __post_init__(self) -> None:
        """Find the mixers and read their shapes."""
        mixers = find_mixers(self.model, self.family, self.layout.layers)
        check_shapes(mixers, self.layout)
        self.shapes = read_shapes(mixers)

    def records(self, dtype: torch.dtype, kind: str | None = None) -> int:
        """Bytes of the kept rows of one slot, in all layers or in those of one kind."""
        return sum(
            self.kept[op] * row_bytes(op, self.layout.shape(layer.kind, op), dtype)
            for layer in self.layout.layers
            for op in self.kept.keys() & set(layer.ops)
            if kind in (None, layer.kind)
        )

    def kinds(self, platform: Platform, dtype: torch.dtype, state_dtype: torch.dtype) -> list[KindFootprint]:
        """The memory of the layers, by kind."""
        modules, found = self.family.layers_of(self.model), []
        for kind in dict.fromkeys(layer.kind for layer in self.layout.layers):
            ids = [layer.id for layer in self.layout.layers if layer.kind == kind]
            own = {place: shape for place, shape in self.shapes.items() if place[0] in ids}
            classes = PoolClasses(own, platform)
            found.append(
                KindFootprint(
                    kind=self.name + kind,
                    layers=len(ids),
                    weights=_weights(modules[id] for id in ids),
                    token=classes.page_bytes(1, dtype),
                    sequence=self.copies * classes.slot_bytes(dtype, state_dtype) + self.records(dtype, kind),
                )
            )
        return found


def footprint(
    runtime: Runtime,
    checkpoint: Path,
    layout: Layout,
    options: EngineOptions,
    *,
    drafts: Sequence[Layout] = (),
    capture: CapturePlan | str | None = None,
    platform: Platform,
    dtype: torch.dtype,
    memory: int,
) -> Footprint:
    """Compute the memory of a checkpoint from its config.

    Args:
        runtime: The runtime with the registered families.
        checkpoint: The checkpoint folder.
        layout: The checkpoint's layout.
        options: The engine's options. If `draft` is a draft model's checkpoint, it must be a folder.
        drafts: The layout of the draft model, or of each step of the draft head that the options name.
        capture: The planned captures of the model; see `plan_capture`.
        platform: The platform, which provides the pools.
        dtype: The dtype of weights, keys, values and convolution windows.
        memory: Bytes of the device's memory.

    Raises:
        CheckpointError: The engine can't run the checkpoint.
        LayoutError: The layout does not match the model.
        PlatformError: The platform returns an invalid pool class.
    """
    state_dtype: torch.dtype = getattr(torch, options.state_dtype)
    _, family = read_config(checkpoint, runtime.family_of)
    model, longest = load_skeleton(checkpoint, family, dtype, options.max_length)
    parts = [_Part(layout, model, family, kept=_kept(capture, options))]
    hidden = 0
    if drafts and options.draft == MTP:
        steps = head_skeleton(checkpoint, model, drafts)
        own_family = step_family(family)
        parts += [_Part(own, step, own_family, 2, "draft: ") for own, step in zip(drafts, steps, strict=True)]
        hidden = len(steps) * model.get_input_embeddings().weight.shape[1] * dtype.itemsize
    elif drafts:
        folder = Path(os.fspath(cast("str", options.draft)))
        _, own_family = read_config(folder, runtime.family_of)
        draft, _ = load_skeleton(folder, own_family, dtype, options.max_length)
        parts.append(_Part(drafts[0], draft, own_family, 2, "draft: "))
    kinds = [kind for part in parts for kind in part.kinds(platform, dtype, state_dtype)]
    if hidden:
        kinds.append(
            KindFootprint(
                kind="draft: hidden states", layers=len(drafts), weights=0, token=hidden, sequence=0
            )
        )
    max_length = options.max_length or longest
    weights = _weights(part.model for part in parts)
    page, states = hidden * options.page_size, 0
    for part in parts:
        classes = PoolClasses(part.shapes, platform)
        page += classes.page_bytes(options.page_size, dtype)
        slots = part.copies * options.max_sequences + 1
        states += slots * (classes.slot_bytes(dtype, state_dtype) + part.records(dtype))
    table = table_bytes(options, max_length)
    fraction = options.memory_fraction or FRACTION
    free = (memory - weights) * fraction - states - table
    fits = free >= 0
    tokens, sequences = None, options.max_sequences if fits else 0
    if page:
        pages = max(0, int(free // page) - 1)  # page 0 is reserved
        fits = pages > 0
        tokens = pages * options.page_size
        sequences = min(sequences, pages // pages_of(max_length, options.page_size))
    return Footprint(
        weights=weights,
        kinds=tuple(kinds),
        page_size=options.page_size,
        max_length=max_length,
        max_sequences=options.max_sequences,
        states=states,
        table=table,
        memory=memory,
        fraction=fraction,
        tokens=tokens,
        sequences=sequences,
        fits=fits,
    )


def _kept(capture: CapturePlan | str | None, options: EngineOptions) -> dict[str, int]:
    """See `_Part.kept`. Each slot has two records, each with the rows of one verification."""
    if not isinstance(capture, CapturePlan) or not isinstance(capture.verify, RoutePlan):
        return {}
    found = commits(capture.verify).items()
    return {
        call.removesuffix(".verify"): 2 * (1 + options.draft_tokens)
        for call, when in found
        if when == DEFERRED
    }


def row_bytes(op: str, sizes: Mapping[str, int], dtype: torch.dtype) -> int:
    """Bytes of a kept row in Triton's backends: values and decays in float32, and keys in `dtype`."""
    size = sizes["head_size_k"]
    decays = size if op == "kda" else 1
    values = sizes["v_heads"] * (sizes["head_size_v"] + decays) * torch.float32.itemsize
    return values + sizes["k_heads"] * size * dtype.itemsize


def _weights(modules: Any) -> int:
    """Bytes of the modules' parameters and buffers. A shared tensor is counted once."""
    found = {id(one): one for part in modules for one in (*part.parameters(), *part.buffers())}
    return sum(one.nbytes for one in found.values())
