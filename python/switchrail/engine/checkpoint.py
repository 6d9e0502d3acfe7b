"""A checkpoint folder in transformers' own format, read with transformers and safetensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from switchrail.checks import is_count
from switchrail.engine.files import ADAPTER, CONFIG, GENERATION, check_files, read_object, read_weights
from switchrail.engine.models.families import FAMILIES, Family
from switchrail.engine.models.softmax import IMPLEMENTATION
from switchrail.errors import CheckpointError, ConfigError
from switchrail.forks import lock_across_forks
from switchrail.nearest import nearest

# transformers changes its own classes while it loads: two threads at it at once break them for good.
_loading = lock_across_forks()

_POSITIONS: Final = 2**31 - 1
"""Positions and lengths are int32 on the device."""

_REFUSED: Final = {"transformers_weights": "model.safetensors, or an index beside it"}
"""Keys of a config that make transformers read files which `read_weights` doesn't check -> what is valid."""

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
    """Reads a checkpoint's `config.json`, and looks at the other files of its folder.

    Raises:
        CheckpointError: There is no such folder or file, something else is in place of a file, it is no JSON
            object, or its model type is none that the engine runs.
    """
    check_files(path)
    file = path / CONFIG
    if not file.exists():
        raise CheckpointError(f"{path} has no {CONFIG}; is it a checkpoint folder?", path=str(path))
    config = read_object(file)
    for key, advice in _REFUSED.items():
        if config.get(key) is not None:
            raise CheckpointError(
                f"{file} has {key}, which the engine doesn't read; valid: {advice}", path=str(file)
            )
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
        ConfigError: The model's sequences are longer than positions can be counted.
    """
    weights = read_weights(path)
    generation = path / GENERATION
    if generation.exists():
        read_object(generation)  # transformers passes over one that is broken
    if (path / ADAPTER).exists():
        raise CheckpointError(
            f"{path} has {ADAPTER}, and adapters aren't served; valid: weights that they were merged into",
            path=str(path),
        )
    with _loading:
        model_config = _loaded("config", path, AutoConfig.from_pretrained)
        _check_size(path, config, model_config, weights)
    tokenizer = load_tokenizer(path)
    with _loading:
        model, report = _loaded(
            "model",
            path,
            AutoModelForCausalLM.from_pretrained,
            config=model_config,
            dtype=dtype,
            attn_implementation=IMPLEMENTATION,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # they are in the report, which names them
            output_loading_info=True,
        )
    _check_report(path, report)
    vocab_size = model.get_input_embeddings().weight.shape[0]
    ends = model.generation_config.eos_token_id
    if ends is None:
        ends = tokenizer.eos_token_id
    return Checkpoint(
        path=path,
        family=FAMILIES[config["model_type"]],
        model=model.eval().requires_grad_(False).to(device),
        tokenizer=tokenizer,
        end_tokens=_end_tokens(path, ends, vocab_size),
        max_length=model_config.max_position_embeddings,
        vocab_size=vocab_size,
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
    return _loaded("tokenizer", path, AutoTokenizer.from_pretrained)


def _loaded(what: str, path: Path, load: Callable[..., Any], **arguments: Any) -> Any:
    """Calls one of transformers' loaders; code that lies in the folder never runs.

    Raises:
        CheckpointError: It fails.
    """
    try:
        return load(path, local_files_only=True, trust_remote_code=False, **arguments)
    except Exception as error:
        raise CheckpointError(f"the {what} in {path} can't be loaded: {error}", path=str(path)) from error


def _check_size(path: Path, config: dict[str, Any], model_config: Any, weights: Mapping[str, int]) -> None:
    """Refuses a config that asks for more than the weight files hold, before any of it is allocated.

    Raises:
        CheckpointError: It does, or it can't be a model's.
        ConfigError: The sequences are too long.
    """
    length = model_config.max_position_embeddings
    if not is_count(length):
        raise CheckpointError(
            f"max_position_embeddings is {length!r:.80} in {path / CONFIG}; valid: an integer of at least 1",
            path=str(path / CONFIG),
        )
    if length > _POSITIONS:
        raise ConfigError(
            f"max_position_embeddings is {length:.3g} in {path / CONFIG}; valid: at most {_POSITIONS}",
            problems={"max_position_embeddings": f"found {length:.3g}"},
            valid={"max_position_embeddings": f"an integer from 1 to {_POSITIONS}"},
        )
    layers = model_config.num_hidden_layers
    if layers > len(weights):
        raise CheckpointError(
            f"{path / CONFIG} has {layers} layers, but the weight files have {len(weights)} tensors",
            path=str(path),
        )
    if config.get("quantization_config") is not None:  # whose tensors hold several values in one
        return
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(model_config, trust_remote_code=False)
    except Exception as error:
        raise CheckpointError(f"there is no model for {path / CONFIG}: {error}", path=str(path)) from error
    tied = model.get_output_embeddings() if model_config.tie_word_embeddings else None
    shared = {id(parameter) for parameter in tied.parameters()} if tied is not None else set()
    sizes = {name: one.numel() for name, one in model.named_parameters() if id(one) not in shared}
    wanted, held = sum(sizes.values()), sum(weights.values())
    if wanted > held:
        others = [name for name, size in sizes.items() if weights.get(name) != size]
        raise CheckpointError(
            f"{path / CONFIG} describes a model of {wanted} values, but the weight files hold {held}; "
            f"{_listed(others)}, for example, can't be read from them",
            path=str(path),
        )


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:5])}{', ...' if len(names) > 5 else ''}"


def _end_tokens(path: Path, ends: Any, vocab_size: int) -> frozenset[int]:
    """The ids that end an output, from one, several or none.

    Raises:
        CheckpointError: They are no tokens of the model.
    """
    several = [] if ends is None else ends if isinstance(ends, (list, tuple)) else [ends]
    if not all(is_count(token, 0) and token < vocab_size for token in several):
        raise CheckpointError(
            f"eos_token_id is {ends!r:.80} in {path}; valid: an integer from 0 to {vocab_size - 1}, "
            "several of them, or none",
            path=str(path),
            found=ends,
        )
    return frozenset(several)


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
        listed = "; ".join(f"{len(names)} {what}: {_listed(names)}" for what, names in problems.items())
        raise CheckpointError(
            f"the weights in {path} are not those of its config: {listed}",
            path=str(path),
            **{what.replace(" ", "_"): tuple(names) for what, names in problems.items()},
        )


__all__ = ["Checkpoint", "load", "load_tokenizer", "read_config"]
