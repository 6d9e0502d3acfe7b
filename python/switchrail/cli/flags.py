"""Options that several subcommands share."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from switchrail.cli import complete

BACKEND_HELP = (
    "Which backend serves an op (gated_delta), an op in a phase (gated_delta.decode), or the linear ops "
    "(linear, linear.decode); can be given several times."
)
Backend = Annotated[
    list[str] | None,
    typer.Option("--backend", metavar="KEY=NAME", help=BACKEND_HELP, autocompletion=complete.backend_choices),
]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="A TOML file with tables: backends (KEY = NAME or [NAMES], the first that fits), deny (KEY = "
        "[NAMES]), config.OP.NAME (a backend's own values), engine (the engine's options). Options of the "
        "command line take precedence over the file.",
    ),
]
OpOption = partial(typer.Option, metavar="OP", autocompletion=complete.ops)
"""Makes an option that takes the name of an op."""

CheckpointArgument = partial(typer.Argument, metavar="[CHECKPOINT]")
"""Makes an argument that takes a checkpoint and may be left out."""

DtypeOption = partial(typer.Option, metavar="DTYPE", autocompletion=complete.dtypes)
"""Makes an option that takes the name of a dtype."""

Device = Annotated[
    str | None,
    typer.Option(
        metavar="DEVICE",
        help="A device, such as cpu or cuda:0, or a platform plugin's name; by default the platform in use.",
        autocompletion=complete.devices,
    ),
]
DescribedDevice = Annotated[
    str | None,
    typer.Option(
        "--as",
        metavar="KIND[:MAJOR.MINOR]",
        help="Plan for a device that this machine need not have, such as cuda:9.0; replaces --device.",
    ),
]
Dtype = Annotated[
    str | None, DtypeOption(help="float32, float16 or bfloat16; by default chosen for the device.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead.")]
Phase = Annotated[
    str | None,
    typer.Option(
        metavar="PHASE",
        help="The only phase to cover: prefill, decode or verify; by default all that apply.",
        autocompletion=complete.phases,
    ),
]
Download = Annotated[
    bool,
    typer.Option(
        "--download",
        help="Download missing files of a model on the Hugging Face hub; by default the network is not used.",
    ),
]
Draft = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Decode speculatively, with tokens proposed from earlier text (ngram), by the model's own head "
        "(mtp), or by a draft model (its folder or name).",
    ),
]
