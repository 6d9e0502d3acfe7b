"""Finds checkpoints by their names on the Hugging Face hub."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from switchrail.errors import CheckpointError
from switchrail.nearest import nearest

FILES = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja")
"""Patterns of the checkpoint files that the engine may need."""

_WORD = re.compile(r"[A-Za-z0-9][\w.-]*")
_NAME = re.compile(rf"{_WORD.pattern}/[\w.-]+")


def find_checkpoint(
    checkpoint: str | Path, *, download: bool = False, files: Sequence[str] = FILES, words: Sequence[str] = ()
) -> Path:
    """Find the folder of a checkpoint.

    Args:
        checkpoint: A path; or, if nothing exists there, the name of a model on the hub, such as
            `Qwen/Qwen3-Next-80B-A3B-Instruct`, to find in the local cache.
        download: Whether huggingface_hub may download missing files; `HF_HUB_OFFLINE` forbids it.
        files: Patterns of the files that are needed.
        words: Other values that are valid in place of a checkpoint, for the message.

    Returns:
        The folder. A missing path that can't be a model's name, such as `/models/mine` or `a/b/c`, is
        returned unchanged.

    Raises:
        CheckpointError: The cache has no snapshot of that name, the name has no owner, the download failed,
            or the argument is neither a string nor a path.
    """
    if not isinstance(checkpoint, (str, Path)):
        raise CheckpointError(f"the checkpoint is {checkpoint!r:.80}; valid: a path or name", path=checkpoint)
    path, name = Path(checkpoint), str(checkpoint)
    if os.path.exists(path):  # `Path.exists` raises if a name is too long
        return path
    if _WORD.fullmatch(name):
        near, hint = nearest(name, words)
        valid = ", ".join((*words, "a checkpoint folder", f"or OWNER/{name}"))
        raise CheckpointError(
            f"there is no {name} in the current folder, and on the Hugging Face hub a model's name has an "
            f"owner{hint}; valid: {valid}",
            path=name,
            nearest=near,
        )
    if not _NAME.fullmatch(name):
        return path
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=list(files), local_files_only=not download))
    except Exception as error:  # from huggingface_hub or from its HTTP client, which depends on the version
        if download:
            raise CheckpointError(f"{name} can't be downloaded: {error}", path=name) from error
        raise CheckpointError(
            f"no checkpoint folder at {name}, and no model of that name in the local cache of the Hugging "
            f"Face hub; `hf download {name}` downloads it, and so does `switchrail run {name} --download`",
            path=name,
        ) from error
