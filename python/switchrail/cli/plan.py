"""`switchrail plan`: shows which backend serves each layer, as a table or as a JSON document."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from switchrail.cli.checkpoint import DownloadOption
from switchrail.cli.choices import (
    BackendOption,
    ConfigOption,
    DescribedDeviceOption,
    DeviceOption,
    DtypeOption,
    JsonOption,
    PhaseOption,
    read_choices,
)
from switchrail.cli.planning import NOT_IMPORTED, planned
from switchrail.cli.show import console, platform_text, print_json, ranges, table

if TYPE_CHECKING:
    from switchrail import RoutePlan

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
    phase: PhaseOption = None,
    backend: BackendOption = None,
    config: ConfigOption = None,
    device: DeviceOption = None,
    described_device: DescribedDeviceOption = None,
    dtype: DtypeOption = None,
    download: DownloadOption = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="Write the plan to this file too, as --json prints it: RoutePlan.from_json reads it in "
            "another process, and serde in a Rust service.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show which backend serves each layer; `explain` shows the reasons. Imports no backend."""
    platform, made, _ = planned(
        checkpoint,
        read_choices(config, backend),
        device=device,
        described_device=described_device,
        dtype=dtype,
        phase=phase,
        download=download,
    )
    if out is not None:
        try:
            out.write_text(made.to_json() + "\n", encoding="utf-8")
        except OSError as error:
            raise typer.BadParameter(f"{out} can't be written: {error.strerror}") from error
    if as_json:
        print_json(made.to_dict())
        return
    shown = console()
    shown.print(platform_text(platform))
    shown.print(NOT_IMPORTED)
    shown.print()
    shown.print(table(f"plan of {made.layout.model}", COLUMNS, _rows(made), fold=("layers", "origin")))


def _rows(plan: RoutePlan) -> Iterator[tuple[object, ...]]:
    """A row for each backend of each route, in the order of the layers."""
    kinds = {layer.id: layer.kind for layer in plan.layout.layers}
    for route in sorted(plan.routes, key=lambda route: route.layers[0]):
        decision = route.decision
        kind = ", ".join(dict.fromkeys(kinds[layer] for layer in route.layers))
        for name, origin in decision.serving:
            batches = "all"
            if len(decision.serving) > 1:
                batches = f"where it is faster{', or their size is not known' * (name == decision.chosen)}"
            yield ranges(route.layers), kind, decision.op, decision.phase, name, origin, batches
