"""The options that select a checkpoint."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from switchrail.engine.hub import find_checkpoint
from switchrail.engine.models import MODEL_TYPES
from switchrail.engine.options import MTP, NGRAM

if TYPE_CHECKING:
    from switchrail import EngineOptions

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


def with_draft(options: EngineOptions, *, download: bool) -> EngineOptions:
    """The options, with the folder of the draft model if `draft` names a checkpoint.

    Raises:
        CheckpointError: See `find_checkpoint`.
    """
    draft = options.draft
    if not isinstance(draft, str) or draft in (NGRAM, MTP):
        return options
    return replace(options, draft=find_checkpoint(draft, download=download, words=(NGRAM, MTP)))
