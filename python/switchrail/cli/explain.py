"""`switchrail explain`: shows why each layer's backend was chosen, or which hooks a target has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import switchrail
from switchrail.cli import flags
from switchrail.cli.captured import capture_document, print_capture
from switchrail.cli.choices import loaded_runtime, read_choices
from switchrail.cli.hooks import explain_hook
from switchrail.cli.planning import NOT_IMPORTED, Planned, planned
from switchrail.cli.show import console, platform_text, print_json, ranges, table, times_table
from switchrail.hosts import installed, served_in
from switchrail.ops.steps import STEPS

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from switchrail import Route, RoutePlan

_Line = tuple[str, str, str, str, str, str]
"""Another engine's name and version, and a row of `served_in`."""


def explain(
    checkpoint: Annotated[
        Path | None,
        flags.CheckpointArgument(
            help="A checkpoint folder with at least config.json, or a model's name on the Hugging Face hub."
        ),
    ] = None,
    hook: Annotated[
        str | None,
        typer.Option(
            "--hook",
            metavar="TARGET",
            help="Show the hooks on this dotted path, in the order in which they run. Imports the module.",
        ),
    ] = None,
    layer: Annotated[int | None, typer.Option(help="The id of the only layer to show.")] = None,
    phase: flags.Phase = None,
    draft: flags.Draft = None,
    backend: flags.Backend = None,
    config: flags.Config = None,
    device: flags.Device = None,
    described_device: flags.DescribedDevice = None,
    dtype: flags.Dtype = None,
    download: flags.Download = False,
    as_json: flags.Json = False,
) -> None:
    """Show which backend would serve each layer, and why the others would not."""
    choices = read_choices(config, backend)
    if hook is not None and checkpoint is None:
        explain_hook(loaded_runtime(choices).hooks, hook, as_json=as_json)
        return
    if hook is not None or checkpoint is None:
        raise typer.BadParameter("give either a checkpoint or --hook TARGET")
    switchrail.current_runtime().skips_policy_errors = True
    found = planned(
        checkpoint,
        choices,
        device=device,
        described_device=described_device,
        dtype=dtype,
        phase=phase,
        draft=draft,
        download=download,
    )
    for error in found.runtime.apply_policy():
        typer.echo(f"switchrail: engines refuse to plan until this is corrected: {error}", err=True)
    layout = found.plan.layout
    ids = [item.id for item in layout.layers] if layer is None else [layout.layer(layer).id]
    routes = [route for route in found.plan.routes if not set(route.layers).isdisjoint(ids)]
    elsewhere = _elsewhere(found, phase, choices.backends)
    if as_json:
        print_json(_document(found, ids, routes, elsewhere))
        return
    out = console()
    out.print(platform_text(found.platform))
    out.print(NOT_IMPORTED)
    if not routes:
        out.print(f"layer {layer} is {layout.layers[ids[0]].kind}, which runs no op")
    _print_routes(out, routes)
    if layer is None:
        _print_model(out, found, elsewhere)


def _document(
    found: Planned, ids: Sequence[int], routes: Sequence[Route], elsewhere: Sequence[_Line]
) -> dict[str, Any]:
    layout = found.plan.layout
    return {
        "model": layout.model,
        "platform": asdict(found.platform.identity),
        "layers": [layout.layer(id).to_dict() for id in ids],
        "routes": [route.to_dict() for route in routes],
        "capture": None if found.capture is None else capture_document(found.capture),
        "steps": _steps(found.plan),
        "drafts": [
            {
                "model": one.layout.model,
                "layers": [item.to_dict() for item in one.layout.layers],
                "routes": [route.to_dict() for route in one.routes],
            }
            for one in found.drafts
        ],
        "engines": [
            dict(zip(("engine", "version", "op", "phase", "backend", "ask"), line, strict=True))
            for line in elsewhere
        ],
    }


def _print_model(out: Console, found: Planned, elsewhere: Sequence[_Line]) -> None:
    """Prints the drafts, the captured steps, the optional steps and the other engines."""
    for step, one in enumerate(found.drafts):
        title = f"step {step} of the model's draft head, with draft=mtp"
        if not found.has_head:
            title = f"the draft model {one.layout.model}"
        kinds = ", ".join(f"layer {item.id} {item.kind}" for item in one.layout.layers)
        out.print(f"\n{title}: {kinds}")
        _print_routes(out, one.routes)
    if found.capture is not None:
        out.print()
        print_capture(out, found.capture)
    steps = [
        (name, call, ", ".join(backends))
        for name, calls in _steps(found.plan).items()
        for call, backends in (calls or {"": ["none: skipped"]}).items()
    ]
    out.print()
    out.print(table("optional steps", ("step", "op and phase", "backends"), steps))
    if elsewhere:
        columns = ("engine", "version", "op", "phase", "backend", "select it with")
        out.print()
        out.print(table("other installed engines", columns, elsewhere, fold=columns[-2:]))


def _print_routes(out: Console, routes: Sequence[Route]) -> None:
    for route in routes:
        out.print()
        out.print(_decision(route))
        if len(route.decision.serving) > 1:
            out.print("microseconds per call; thresholds between these sizes choose the backend")
            out.print(_classes(route))


def _steps(plan: RoutePlan) -> dict[str, dict[str, list[str]]]:
    """For each optional step, the backends that have the step, by op and phase."""
    features = {
        (backend.op, phase, backend.name): backend.capabilities["features"]
        for backend in plan.backends
        for phase in backend.phases
    }
    return {
        name: {
            f"{one.op}.{one.phase}": names
            for one in plan.decisions
            if one.phase == (step.phase or "decode")
            and (
                names := [own for own, _ in one.serving if name in features.get((one.op, one.phase, own), ())]
            )
        }
        for name, step in STEPS.items()
    }


def _elsewhere(found: Planned, phase: str | None, backends: Mapping[str, str]) -> list[_Line]:
    """The rows of `served_in` for each other installed engine, after the engine's name and version."""
    make = found.make
    if phase is not None:
        make, backends = partial(make, phases=(phase,)), {}
    return [
        (host.name, version, *row)
        for host, version in installed()
        for row in served_in(host, version, found.plan.layout, make, backends)
    ]


def _decision(route: Route) -> Table:
    decision = route.decision
    title = f"{decision.op} {decision.phase}, layers {ranges(route.layers)}"
    chosen = (decision.chosen, decision.origin, f"serves: {decision.because}")
    others = [(name, origin, "serves where it is faster") for name, origin in decision.serving[1:]]
    rejected = [(other.name, other.origin, "; ".join(other.reasons)) for other in decision.rejected]
    return table(title, ("backend", "origin", "why"), [chosen, *others, *rejected], fold=("why",))


def _classes(route: Route) -> Table:
    decision = route.decision
    names = [name for name, _ in decision.serving]
    samples = [
        {**sample, "nanoseconds": {name: t for name in names if (t := sample["nanoseconds"].get(name))}}
        for sample in decision.query["measured"]
    ]
    return times_table(decision.op, samples)
