"""A checkpoint folder in transformers' own format, read with transformers and safetensors."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer

from switchrail.engine.models.families import FAMILIES, Family
from switchrail.engine.models.softmax import IMPLEMENTATION
from switchrail.errors import CheckpointError
from switchrail.forks import lock_across_forks
from switchrail.nearest import nearest

# transformers changes its own classes while it loads: two threads at it at once break them for good.
_loading = lock_across_forks()

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A model, ready to run.

    Attributes:
        path: The folder.
        family: The model's family.
        model: The model with its head, in eval mode on its device.
        tokenizer: Its tokenizer.
        end_tokens: The ids that end an output.
        max_length: The longest sequence that the model was made for.
        vocab_size: Rows of its embedding.
    """

    path: Path
    family: Family
    model: Any
    tokenizer: Any
    end_tokens: frozenset[int]
    max_length: int
    vocab_size: int


def read_config(path: Path) -> dict[str, Any]:
    """Reads a checkpoint's `config.json`.

    Raises:
        CheckpointError: There is no such folder or file, it is no JSON object, or its model type is none that
            the engine runs.
    """
    if not path.is_dir():
        raise CheckpointError(f"no checkpoint folder at {path}", path=str(path))
    file = path / "config.json"
    try:
        config = json.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        raise CheckpointError(
            f"{path} has no config.json; is it a checkpoint folder?", path=str(path)
        ) from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file} can't be read: {error}", path=str(file)) from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{file} holds a {type(config).__name__}, not an object", path=str(file))
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        valid = tuple(FAMILIES)
        names, hint = nearest(model_type, valid)
        raise CheckpointError(
            f"{file} names model_type {model_type!r}, which the engine does not run{hint}; "
            f"valid: {', '.join(valid)}",
            path=str(file),
            model_type=model_type,
            valid=valid,
            nearest=names,
        )
    return config


def load(path: Path, config: dict[str, Any], *, device: torch.device, dtype: torch.dtype) -> Checkpoint:
    """Loads model and tokenizer.

    Args:
        path: The checkpoint folder.
        config: What `read_config` gave.
        device: Where the model goes.
        dtype: Of its weights and activations.

    Raises:
        CheckpointError: A file is missing or broken, or the weights are not those of the model.
    """
    _check_weight_files(path)
    tokenizer = load_tokenizer(path)
    try:
        with _loading:
            model, report = AutoModelForCausalLM.from_pretrained(
                path,
                dtype=dtype,
                attn_implementation=IMPLEMENTATION,
                local_files_only=True,
                use_safetensors=True,
                ignore_mismatched_sizes=True,  # they are in the report, which names them
                output_loading_info=True,
            )
    except Exception as error:
        raise CheckpointError(f"the model in {path} can't be loaded: {error}", path=str(path)) from error
    _check_report(path, report)
    ends = model.generation_config.eos_token_id
    if ends is None:
        ends = tokenizer.eos_token_id
    return Checkpoint(
        path=path,
        family=FAMILIES[config["model_type"]],
        model=model.eval().requires_grad_(False).to(device),
        tokenizer=tokenizer,
        end_tokens=frozenset([] if ends is None else [ends] if isinstance(ends, int) else ends),
        max_length=model.config.max_position_embeddings,
        vocab_size=model.get_input_embeddings().weight.shape[0],
    )


def load_tokenizer(path: Path) -> Any:
    """Loads the tokenizer of a checkpoint.

    Raises:
        CheckpointError: It is missing or broken.
    """
    if not any((path / name).is_file() for name in _TOKENIZER_FILES):
        raise CheckpointError(
            f"{path} has no tokenizer; one of {', '.join(_TOKENIZER_FILES)} is needed", path=str(path)
        )
    try:
        return AutoTokenizer.from_pretrained(path, local_files_only=True)
    except Exception as error:
        raise CheckpointError(f"the tokenizer in {path} can't be loaded: {error}", path=str(path)) from error


def _check_weight_files(path: Path) -> None:
    """Looks at the head of each weight file, so that a broken one is named."""
    index = path / "model.safetensors.index.json"
    if index.is_file():
        try:
            files = sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{index} can't be read: {error!r}", path=str(index)) from error
    else:
        files = ["model.safetensors"]
    for name in files:
        file = path / name
        if not file.is_file():
            raise CheckpointError(f"{path} has no {name}", path=str(file), missing=name)
        try:
            with safe_open(file, framework="pt"):
                pass
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{file} is broken: {error}", path=str(file)) from error


def _check_report(path: Path, report: dict[str, Any]) -> None:
    problems = {
        what: sorted(name if isinstance(name, str) else name[0] for name in names)
        for what, names in (
            ("missing", report["missing_keys"]),
            ("unexpected", report["unexpected_keys"]),
            ("of another shape", report["mismatched_keys"]),
        )
        if names
    }
    if problems:
        listed = "; ".join(
            f"{len(names)} {what}: {', '.join(names[:5])}{', ...' if len(names) > 5 else ''}"
            for what, names in problems.items()
        )
        raise CheckpointError(
            f"the weights in {path} are not those of its config: {listed}",
            path=str(path),
            **{what.replace(" ", "_"): tuple(names) for what, names in problems.items()},
        )


__all__ = ["Checkpoint", "load", "load_tokenizer", "read_config"]
