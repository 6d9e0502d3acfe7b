"""Checkpoints by their names on the Hugging Face hub."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from switchrail.errors import CheckpointError

FILES = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja")
"""The files of a checkpoint that the engine can need."""

_WORD = re.compile(r"[A-Za-z0-9][\w.-]*")
_NAME = re.compile(rf"{_WORD.pattern}/[\w.-]+")


def find_checkpoint(checkpoint: str | Path, *, download: bool = False, files: Sequence[str] = FILES) -> Path:
    """The folder of a checkpoint.

    Args:
        checkpoint: A path; or, where nothing is there, the name of a model on the hub, such as
            `Qwen/Qwen3-Next-80B-A3B-Instruct`, whose snapshot in the local cache is taken.
        download: Whether huggingface_hub may download what the cache lacks; `HF_HUB_OFFLINE` forbids it.
        files: Patterns of the files that are needed.

    Raises:
        CheckpointError: The cache has no snapshot of that name, or the name lacks its owner, or the download
            failed, or it is neither text nor path. Of a path of several parts at which there is nothing it is
            not raised here.
    """
    if not isinstance(checkpoint, (str, Path)):
        raise CheckpointError(f"the checkpoint is {checkpoint!r:.80}; valid: a path or name", path=checkpoint)
    path, name = Path(checkpoint), str(checkpoint)
    if os.path.exists(path):  # `Path.exists` raises where a name is too long
        return path
    if _WORD.fullmatch(name):
        raise CheckpointError(
            f"there is no {name} in the current folder, and on the Hugging Face hub a model's name has an "
            f"owner; valid: a checkpoint folder, or OWNER/{name}",
            path=name,
        )
    if not _NAME.fullmatch(name):
        return path
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=list(files), local_files_only=not download))
    except Exception as error:  # of huggingface_hub, or of its HTTP client, which differs by version
        if download:
            raise CheckpointError(f"{name} can't be downloaded: {error}", path=name) from error
        raise CheckpointError(
            f"no checkpoint folder at {name}, and no model of that name in the local cache of the Hugging "
            f"Face hub; `hf download {name}` downloads it, and so does `switchrail run {name} --download`",
            path=name,
        ) from error


__all__ = ["FILES", "find_checkpoint"]
