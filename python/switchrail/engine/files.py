"""Reads files of an untrusted checkpoint folder: only regular files, and text files only of limited size."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING, Any, Final

from safetensors import SafetensorError, safe_open

from switchrail.errors import CheckpointError
from switchrail.files import check_file
from switchrail.nearest import nearest

if TYPE_CHECKING:
    import torch

CONFIG: Final = "config.json"
GENERATION: Final = "generation_config.json"
INDEX: Final = "model.safetensors.index.json"
WEIGHTS: Final = "model.safetensors"
ADAPTER: Final = "adapter_config.json"
MTP_WEIGHTS: Final = "mtp.safetensors"
"""A file with the weights of an MTP head, beside the model's weights; the index does not name it."""

_READ: Final = ("*.json", "*.jinja", "*.txt", "*.model", "*.safetensors", "additional_chat_templates/*.jinja")
_TEXT_LIMIT: Final = 512 << 20
"""Maximum size in bytes of each file that is not a `.safetensors` file."""
_DTYPES: Final = ("F64", "F32", "F16", "BF16")


def check_files(path: Path) -> None:
    """Check that all files to be read are regular files, and that text files are not too large.

    Symbolic links are followed, because every file in a hub's cache is a symbolic link.

    Raises:
        CheckpointError: The folder is missing, or a file is too large or not a regular file.
    """
    if not os.path.isdir(path):  # `Path.is_dir` raises if a name is too long
        raise no_checkpoint(path)
    for file in sorted(found for pattern in _READ for found in path.glob(pattern)):
        try:
            check_file(file, sys.maxsize if file.suffix == ".safetensors" else _TEXT_LIMIT)
        except OSError as error:
            raise CheckpointError(f"{file} can't be read: {error.strerror}", path=str(file)) from error


def no_checkpoint(path: Path) -> CheckpointError:
    """The error for a path that is no folder."""
    if os.path.exists(path):
        return CheckpointError(f"no checkpoint folder at {path}, which is a file", path=str(path))
    try:
        beside = [each.name for each in path.parent.iterdir()]
    except OSError:
        beside = []
    near, hint = nearest(path.name, beside)
    return CheckpointError(f"no checkpoint folder at {path}{hint}", path=str(path), nearest=near)


def read_object(file: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        CheckpointError: The file is too large, can't be read, or does not contain a JSON object.
    """
    try:
        check_file(file)
        found = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise CheckpointError(f"{file} can't be read: {reason}", path=str(file)) from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{file} has a {type(found).__name__}, expected an object", path=str(file))
    return found


def read_weights(path: Path) -> dict[str, int]:
    """Read the headers of a checkpoint's weight files.

    Returns:
        The name of each tensor -> its number of values.

    Raises:
        CheckpointError: A file is missing or broken; the index has paths outside the folder, has tensors that
            its files don't contain, or leaves out a `model.safetensors` in the folder; or a tensor is
            duplicate or not floating-point.
    """
    index = path / INDEX
    listed = _read_index(index) if index.is_file() else {}
    sizes: dict[str, int] = {}
    owners: dict[str, str] = {}
    for name in sorted({*listed.values()} or {WEIGHTS}):
        for tensor, size in _read_head(path, name).items():
            if owners.setdefault(tensor, name) != name:
                raise CheckpointError(
                    f"{tensor} is in {owners[tensor]} and in {name} of {path}; valid: in one of them",
                    path=str(path),
                )
            sizes[tensor] = size
    if listed and WEIGHTS not in listed.values() and (path / WEIGHTS).is_file():
        raise CheckpointError(
            f"{path} has {WEIGHTS} beside {INDEX}, which doesn't name it; valid: one of them", path=str(path)
        )
    lost = [tensor for tensor, name in listed.items() if owners.get(tensor) != name]
    if lost:
        raise CheckpointError(
            f"{index} names {lost[0]} in {listed[lost[0]]}, which doesn't contain it"
            f"{f' (and {len(lost) - 1} more)' if lost[1:] else ''}",
            path=str(index),
            missing=tuple(lost),
        )
    return sizes


def read_tensors(path: Path, prefix: str) -> dict[str, torch.Tensor]:
    """Read the tensors of an MTP head.

    Args:
        path: The checkpoint folder.
        prefix: The common start of the tensors' names.

    Returns:
        Each tensor by its name after the prefix.

    Raises:
        CheckpointError: A file is missing or broken, the index has paths outside the folder, or a tensor is
            not floating-point.
    """
    index = path / INDEX
    files = (
        {name for tensor, name in _read_index(index).items() if tensor.startswith(prefix)}
        if index.is_file()
        else {WEIGHTS}
    )
    if (path / MTP_WEIGHTS).is_file():
        files.add(MTP_WEIGHTS)
    found: dict[str, torch.Tensor] = {}
    for name in sorted(files):
        wanted = [tensor for tensor in _read_head(path, name) if tensor.startswith(prefix)]
        with safe_open(path / name, framework="pt") as tensors:
            found |= {tensor.removeprefix(prefix): tensors.get_tensor(tensor) for tensor in wanted}
    return found


def check_names(weights: str, path: Path, problems: Mapping[str, Iterable[str]]) -> None:
    """Refuse weights that don't match a model.

    Args:
        weights: Which weights, for the message.
        path: The checkpoint folder.
        problems: Kind of problem -> the names of the tensors that have this problem, if any.

    Raises:
        CheckpointError: A tensor has a problem.
    """
    found = {problem: tuple(sorted(names)) for problem, names in problems.items() if names}
    if found:
        listed = "; ".join(
            f"{len(names)} {problem}: {first_names(names)}" for problem, names in found.items()
        )
        raise CheckpointError(
            f"{weights} in {path} don't match its config: {listed}",
            path=str(path),
            **{problem.replace(" ", "_"): names for problem, names in found.items()},
        )


def first_names(names: Sequence[str]) -> str:
    """The first few names, for a message."""
    return f"{', '.join(names[:5])}{', ...' if len(names) > 5 else ''}"


def _read_index(index: Path) -> Mapping[str, str]:
    found = read_object(index)
    weight_map = found.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(
            f"{index} can't be read: weight_map is {weight_map!r:.80}; valid: a file for each tensor",
            path=str(index),
        )
    for tensor, name in weight_map.items():
        if not isinstance(name, str) or not _is_inside(name):
            raise CheckpointError(
                f"{index} names {name!r:.200} for {tensor}; valid: a .safetensors file in the folder",
                path=str(index),
                found=name,
            )
    return weight_map


def _is_inside(name: str) -> bool:
    """Whether a path from the index stays in the folder and names a weight file."""
    parts = (*PurePosixPath(name).parts, *PureWindowsPath(name).parts)
    is_relative = not PurePosixPath(name).is_absolute() and not PureWindowsPath(name).anchor
    return is_relative and ".." not in parts and "\0" not in name and name.endswith(".safetensors")


def _read_head(path: Path, name: str) -> dict[str, int]:
    """The name of each tensor in a weight file -> its number of values."""
    file = path / name
    if not os.path.isfile(file):
        raise CheckpointError(f"{path} has no {name:.200}", path=str(file), missing=name)
    try:
        with safe_open(file, framework="pt") as tensors:
            heads = {tensor: tensors.get_slice(tensor) for tensor in tensors.keys()}  # noqa: SIM118
            dtypes = {tensor: head.get_dtype() for tensor, head in heads.items()}
            sizes = {tensor: math.prod(head.get_shape()) for tensor, head in heads.items()}
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{file} is broken: {error}", path=str(file)) from error
    for tensor, dtype in dtypes.items():
        if dtype not in _DTYPES:
            raise CheckpointError(
                f"{tensor} in {file} is of dtype {dtype}; valid: {', '.join(_DTYPES)}",
                path=str(file),
                found=dtype,
                valid=_DTYPES,
            )
    return sizes
