"""`switchrail warmup`: compiles the kernels that a checkpoint's first requests would otherwise wait for."""

from __future__ import annotations

import time
from dataclasses import asdict

import typer
from rich.progress import track

from switchrail.cli import flags
from switchrail.cli.capturing import make_engine
from switchrail.cli.checkpoint import CheckpointArgument, find_folder
from switchrail.cli.choices import loaded_runtime, read_choices
from switchrail.cli.planning import planned
from switchrail.cli.show import console, platform_text, print_json, table
from switchrail.engine.hub import FILES


def warmup(
    checkpoint: CheckpointArgument,
    backend: flags.Backend = None,
    config: flags.Config = None,
    device: flags.Device = None,
    dtype: flags.Dtype = None,
    download: flags.Download = False,
    as_json: flags.Json = False,
) -> None:
    """Compile the kernels that a checkpoint's requests need, and try to capture its steps.

    Triton's cache keeps the kernels on disk, for all later processes with the same versions. Exits with 1 if
    a step can't be captured.
    """
    choices = read_choices(config, backend)
    folder = find_folder(checkpoint, download=download)
    runtime = loaded_runtime(choices)
    platform = runtime.find_platform(device)
    told = console(stderr=True, quiet=as_json)
    told.print(platform_text(platform))
    start = time.perf_counter()
    found = planned(folder, choices, device=device, dtype=dtype, download=download, draft_files=FILES)
    chosen = {"dtype": dtype, "backends": choices.backends, "options": found.options}
    from switchrail.engine.warmup import warm_up

    with make_engine(told, folder, runtime=runtime, device=platform, **chosen) as engine:
        made = time.perf_counter() - start
        graphs = engine.graphs
        rounds = list(
            warm_up(engine, lambda each: track(each, description="prompts", console=told, transient=True))
        )
    refused = [graph for graph in graphs if graph.reason is not None]
    if as_json:
        print_json(
            {
                "seconds": made,
                "graphs": [asdict(graph) for graph in graphs],
                "rounds": [asdict(one) for one in rounds],
            }
        )
    else:
        out = console()
        rows = [
            (one.prompts, f"{one.longest:,}", f"{one.first:.2f} s", f"{one.second:.2f} s") for one in rounds
        ]
        columns = ("prompts", "tokens of the longest", "first run", "second run")
        out.print(table("prompts, run twice", columns, rows))
        captured = len(graphs) - len(refused)
        out.print(f"engine made in {made:.1f} s, {captured} of {len(graphs)} steps captured")
        for graph in refused:
            out.print(f"{graph.name}: {graph.reason}", markup=False)
    if refused:
        raise typer.Exit(1)
