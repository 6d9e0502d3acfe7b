"""`switchrail explain`: what serves each layer, and why nothing else does; or what hooks a target has."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import switchrail
from switchrail import _core
from switchrail.cli.checkpoint import DownloadOption
from switchrail.cli.choices import (
    BackendOption,
    ConfigOption,
    DeviceOption,
    DtypeOption,
    JsonOption,
    PhaseOption,
    loaded_runtime,
    read_choices,
)
from switchrail.cli.hooks import explain_hook
from switchrail.cli.show import console, platform_text, print_json, ranges, table, times_table

if TYPE_CHECKING:
    from rich.table import Table

    from switchrail import Platform, Route, Runtime


def explain(
    checkpoint: Annotated[
        Path | None,
        typer.Argument(
            metavar="[CHECKPOINT]",
            help="A checkpoint folder, of which config.json is enough; or the name of a model on the Hugging "
            "Face hub.",
        ),
    ] = None,
    hook: Annotated[
        str | None,
        typer.Option(
            "--hook",
            metavar="TARGET",
            help="Instead: the hooks of this dotted path, as a call runs them. Imports its module.",
        ),
    ] = None,
    layer: Annotated[int | None, typer.Option(help="Only the layer with this id.")] = None,
    phase: PhaseOption = None,
    backend: BackendOption = None,
    config: ConfigOption = None,
    device: DeviceOption = None,
    described_device: Annotated[
        str | None,
        typer.Option(
            "--as",
            metavar="KIND[:CAPABILITY]",
            help="Instead of a device that is here: what would serve on one like it, such as cuda:9.0.",
        ),
    ] = None,
    dtype: DtypeOption = None,
    download: DownloadOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show which backend would serve each layer, and why each other one would not."""
    choices = read_choices(config, backend)
    if hook is not None and checkpoint is None:
        explain_hook(loaded_runtime(choices).hooks, hook, as_json=as_json)
        return
    if hook is not None or checkpoint is None:
        raise typer.BadParameter("valid: either a checkpoint or --hook TARGET")
    from switchrail.engine.dtypes import choose_dtype
    from switchrail.engine.files import CONFIG, read_object
    from switchrail.engine.hub import find_checkpoint
    from switchrail.engine.options import options_on
    from switchrail.engine.routes import plan_routes

    checkpoint = find_checkpoint(checkpoint, download=download, files=[CONFIG])
    layout = switchrail.Layout.from_config(checkpoint)
    ids = [item.id for item in layout.layers] if layer is None else [layout.layer(layer).id]
    runtime = loaded_runtime(choices)
    platform = _platform(runtime, device, described_device)
    config_values = read_object(checkpoint / CONFIG if checkpoint.is_dir() else checkpoint)
    plan = plan_routes(
        runtime,
        layout,
        platform=platform,
        dtype=choose_dtype(dtype, config_values, platform.hardware),
        page_size=options_on(platform, choices.engine).page_size,
        preferences={key: name for key, name in choices.backends.items() if _is_for(key, phase)},
        phases=("prefill", "decode") if phase is None else (phase,),
    )
    routes = [route for route in plan.routes if not set(route.layers).isdisjoint(ids)]
    if as_json:
        print_json(
            {
                "model": layout.model,
                "platform": asdict(platform.identity),
                "layers": [layout.layer(i).to_dict() for i in ids],
                "routes": [route.to_dict() for route in routes],
            }
        )
        return
    out = console()
    out.print(platform_text(platform))
    if not routes:
        out.print(f"layer {layer} is {layout.layers[ids[0]].kind}, which runs no op")
    for route in routes:
        out.print()
        out.print(_decision(route))
        if len(route.decision.serving) > 1:
            out.print("microseconds of a call as measured here; between these they are interpolated")
            out.print(_classes(route))


def _is_for(key: str, phase: str | None) -> bool:
    """Whether a preference can say something of the only phase that is explained, if there is one."""
    own = key.partition(".")[2]
    return phase is None or own == phase or own not in _core.PHASES


def _platform(runtime: Runtime, device: str | None, described_device: str | None) -> Platform:
    if described_device is not None:
        if device is not None:
            raise typer.BadParameter("valid: either --device or --as")
        from switchrail.platforms import described

        return described(described_device)
    return runtime.platform if device is None else runtime.find_platform(device)


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
