"""The argument that names a checkpoint, and the search for the folders of checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from switchrail.engine.hub import FILES, find_checkpoint
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


def find_folder(checkpoint: Path, *, download: bool) -> Path:
    """The folder of a checkpoint that is to run.

    Raises:
        CheckpointError: See `find_checkpoint`; or the path leads to no folder.
    """
    from switchrail.engine.files import no_checkpoint

    folder = find_checkpoint(checkpoint, download=download)
    if not folder.is_dir():
        raise no_checkpoint(folder)
    return folder


def with_draft(options: EngineOptions, *, download: bool, files: Sequence[str] = FILES) -> EngineOptions:
    """The options. If `draft` names a checkpoint, the checkpoint's folder takes the place of the name.

    Args:
        options: The options.
        download: Whether missing files may be downloaded.
        files: Patterns of the files that are needed.

    Raises:
        CheckpointError: See `find_checkpoint`.
    """
    draft = options.draft
    if not isinstance(draft, str) or draft in (NGRAM, MTP):
        return options
    return replace(options, draft=find_checkpoint(draft, download=download, files=files, words=(NGRAM, MTP)))
