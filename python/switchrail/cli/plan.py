"""`switchrail plan`: shows which backend serves each layer, as a table or as a JSON document."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from switchrail.cli import flags
from switchrail.cli.choices import read_choices
from switchrail.cli.planning import NOT_IMPORTED, Planned, planned
from switchrail.cli.show import console, platform_text, print_json, ranges, table

if TYPE_CHECKING:
    from switchrail import RoutePlan
    from switchrail.engine.footprint import Footprint

COLUMNS = ("layers", "kind", "op", "phase", "backend", "origin", "batches")


def plan(
    checkpoint: Annotated[
        Path,
        typer.Argument(
            metavar="CHECKPOINT",
            help="A checkpoint folder with at least config.json, or the name of a model on the Hugging "
            "Face hub.",
        ),
    ],
    phase: flags.Phase = None,
    draft: flags.Draft = None,
    backend: flags.Backend = None,
    config: flags.Config = None,
    device: flags.Device = None,
    described_device: flags.DescribedDevice = None,
    dtype: flags.Dtype = None,
    download: flags.Download = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="Also write the plan to this file, as --json prints it: RoutePlan.from_json reads it in "
            "another process, and serde in a Rust service.",
        ),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Show the memory that weights, tokens and sequences take, and how many tokens and sequences "
            "a device with this memory holds. 80G are 80 GiB; without K, M, G or T, the size is in bytes. "
            "With --json, print only these numbers.",
        ),
    ] = None,
    as_json: flags.Json = False,
) -> None:
    """Show which backend serves each layer; `explain` shows the reasons. Imports no backend.

    Exits with 1 if the model does not fit into the size of --memory.
    """
    size = None if memory is None else _bytes(memory)
    found = planned(
        checkpoint,
        read_choices(config, backend),
        device=device,
        described_device=described_device,
        dtype=dtype,
        phase=phase,
        draft=draft,
        download=download,
    )
    made = found.plan
    if out is not None:
        try:
            out.write_text(made.to_json() + "\n", encoding="utf-8")
        except OSError as error:
            raise typer.BadParameter(f"{out} can't be written: {error.strerror}") from error
    needed = None if size is None else _footprint(found, size)
    if as_json:
        print_json(made.to_dict() if needed is None else asdict(needed))
    else:
        _show(found, needed)
    if needed is not None and not needed.fits:
        raise typer.Exit(1)


def _show(found: Planned, needed: Footprint | None) -> None:
    made, shown = found.plan, console()
    shown.print(platform_text(found.platform))
    shown.print(NOT_IMPORTED)
    shown.print()
    shown.print(table(f"plan of {made.layout.model}", COLUMNS, _rows(made), fold=("layers", "origin")))
    for one in found.drafts:
        shown.print()
        shown.print(
            table(
                f"plan of {one.layout.model} ({'with draft=mtp' if found.has_head else 'the draft model'})",
                COLUMNS,
                _rows(one),
                fold=("layers", "origin"),
            )
        )
    if needed is not None:
        shown.print()
        shown.print(*_memory(needed), sep="\n")


def _bytes(text: str) -> int:
    """Converts a size such as 80G to bytes. Letters stand for powers of 1,024."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)", text.upper())
    if found is None:
        raise typer.BadParameter(f"--memory is {text!r}; valid: a number, optionally with K, M, G or T")
    return int(float(found[1]) * 1024 ** " KMGT".index(found[2] or " "))


def _footprint(found: Planned, size: int) -> Footprint:
    """The memory that the model needs. Imports torch, because transformers' model determines the sizes."""
    import torch

    from switchrail.engine.footprint import footprint

    folder = found.checkpoint
    return footprint(
        found.runtime,
        folder if folder.is_dir() else folder.parent,
        found.plan.layout,
        found.options,
        drafts=[one.layout for one in found.drafts] if found.options.draft is not None else (),
        capture=found.capture,
        platform=found.platform,
        dtype=getattr(torch, found.dtype),
        memory=size,
    )


def _memory(needed: Footprint) -> Iterator[object]:
    columns = ("kind", "layers", "weights, MiB", "bytes per token", "bytes per sequence")
    rows = [
        (kind.kind, kind.layers, f"{kind.weights / 2**20:,.1f}", f"{kind.token:,}", f"{kind.sequence:,}")
        for kind in needed.kinds
    ]
    yield table("memory", columns, rows)
    yield f"all weights: {needed.weights / 2**20:,.1f} MiB"
    yield f"states of {needed.max_sequences} sequences: {needed.states / 2**20:,.1f} MiB"
    left = needed.memory - needed.weights
    if left < 0:
        yield f"the weights don't fit into {needed.memory:,} bytes; a SIZE without K, M, G or T is in bytes"
    else:
        yield (
            f"memory to use beside the weights: {left * needed.fraction / 2**20:,.1f} MiB, "
            f"{needed.fraction:.0%} of the rest (memory_fraction)"
        )
    if needed.tokens is not None:
        yield f"tokens that fit beside weights and states: {needed.tokens:,}"
    sequences = f"sequences of {needed.max_length:,} tokens that fit: {needed.sequences:,}"
    yield sequences + " (limited by max_sequences)" * (needed.sequences == needed.max_sequences)


def _rows(plan: RoutePlan) -> Iterator[tuple[object, ...]]:
    """A row for each backend of each route, in the order of the layers."""
    kinds = {layer.id: layer.kind for layer in plan.layout.layers}
    for route in sorted(plan.routes, key=lambda route: route.layers[0]):
        decision = route.decision
        kind = ", ".join(dict.fromkeys(kinds[layer] for layer in route.layers))
        for name, origin in decision.serving:
            batches = "all"
            if len(decision.serving) > 1:
                batches = (
                    f"where this one is faster{', or the size is not known' * (name == decision.chosen)}"
                )
            yield ranges(route.layers), kind, decision.op, decision.phase, name, origin, batches
