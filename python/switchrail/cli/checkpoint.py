"""The options that select a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from switchrail.engine.models import MODEL_TYPES

CheckpointArgument = Annotated[
    Path,
    typer.Argument(
        metavar="CHECKPOINT",
        help="A folder in transformers' format, or the name of a model on the Hugging Face hub. "
        f"Model types that run: {', '.join(MODEL_TYPES)}.",
    ),
]
DownloadOption = Annotated[
    bool,
    typer.Option(
        "--download",
        help="Download missing files of a model on the Hugging Face hub; by default the network is not used.",
    ),
]
