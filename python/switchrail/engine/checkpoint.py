"""Loads a checkpoint folder in transformers' format, with transformers and safetensors."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

from switchrail._core import Layout
from switchrail.checks import is_count
from switchrail.engine.dtypes import DTYPES
from switchrail.engine.files import (
    ADAPTER,
    CONFIG,
    GENERATION,
    check_files,
    check_names,
    first_names,
    read_object,
    read_weights,
)
from switchrail.engine.merging import MergedOn
from switchrail.engine.models.binding import check_shapes, find_mixers
from switchrail.engine.models.families import FAMILIES, Family, family_of
from switchrail.engine.models.softmax import IMPLEMENTATION
from switchrail.errors import CheckpointError, ConfigError, LayoutError
from switchrail.forks import lock_across_forks
from switchrail.hosts import release
from switchrail.nearest import nearest

# transformers modifies its own classes while it loads; concurrent loading breaks them permanently.
_loading = lock_across_forks()

_POSITIONS: Final = 2**31 - 1
"""Maximum tokens per sequence: lengths are int32 on the device."""

_REFUSED: Final = {"transformers_weights": "model.safetensors, or an index beside it"}
"""Config keys that name weight files which `read_weights` doesn't check, each with the files to use."""

_UNLIMITED: Final = 2**20
"""Maximum tokens per sequence of models without positions, small enough for the page table."""

_MULTIMODAL_SINCE: Final = "5.23"
"""The oldest transformers version that is known to run the language model of a multimodal checkpoint."""

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A loaded checkpoint.

    Attributes:
        path: The folder.
        family: The model's family.
        model: The model with its head, in eval mode, on its device.
        tokenizer: The model's tokenizer.
        end_tokens: The ids that end an output.
        max_length: Maximum tokens per sequence that the model supports.
        vocab_size: Rows of the model's embedding.
    """

    path: Path
    family: Family
    model: Any
    tokenizer: Any
    end_tokens: frozenset[int]
    max_length: int
    vocab_size: int


def read_config(
    path: Path, registered: Callable[[object], Any] = lambda model_type: None
) -> tuple[dict[str, Any], Family]:
    """Read a checkpoint's `config.json`, and check the other files in the folder.

    Args:
        path: The folder.
        registered: Returns the registered family for a model type, or None.

    Returns:
        The configuration and its family. If the model type has no family, as in some multimodal models, the
        keys in `text_config` replace those of the configuration.

    Raises:
        CheckpointError: The folder or the config is missing, a file is too large or not a regular file, the
            config is not a JSON object, or the engine does not run the model or read its weights.
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
    text = config.get("text_config")
    if isinstance(text, dict) and _find_family(config, registered) is None:
        config = {**config, **text}
    return config, _checked_family(file, config, _find_family(config, registered))


def _find_family(config: dict[str, Any], registered: Callable[[object], Any]) -> Family | None:
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        return None
    found = registered(model_type) or family_of(config)
    if found is not None and not isinstance(found, Family):
        raise CheckpointError(
            f"the family that was registered for model_type {model_type!r} is {found!r:.80}, expected a "
            f"{Family.__module__}.{Family.__qualname__}",
            found=found,
        )
    return found


def _checked_family(file: Path, config: dict[str, Any], family: Family | None) -> Family:
    """Return the family; refuse a model that the engine does not run, with the reason.

    Raises:
        CheckpointError: The config belongs to no supported family, a layer needs something that no op
            computes, the installed transformers is too old, or the weights have an unsupported quantisation.
    """
    model_type = config.get("model_type")
    valid = tuple(FAMILIES)
    reason = _reason(config, family)
    if family is None or reason is not None:
        names, hint = nearest(model_type, valid) if reason is None else ((), f": {reason}")
        raise CheckpointError(
            f"{file} names model_type {model_type!r}, which the engine does not run{hint}; "
            f"valid: {', '.join(valid)}",
            path=str(file),
            model_type=model_type,
            valid=valid,
            nearest=names,
        )
    quantization = config.get("quantization_config")
    if isinstance(quantization, dict) and quantization.get("quant_method") == "mxfp4":
        raise CheckpointError(
            f"{file} says that the weights are MXFP4, which the engine doesn't read; valid: dequantised "
            f"weights, in {', '.join(DTYPES)}",
            path=str(file),
            found="mxfp4",
            valid=DTYPES,
        )
    return family


def _reason(config: dict[str, Any], family: Family | None) -> str | None:
    """Why the engine refuses a model: transformers is too old, or no op computes a layer; otherwise None."""
    if family is not None:
        installed = transformers.__version__
        text = config.get("text_config")
        is_nested = isinstance(text, dict) and text.get("model_type") == config["model_type"]
        since = max(family.since or "0", _MULTIMODAL_SINCE if is_nested else "0", key=release)
        if release(installed) < release(since):
            return f"it needs transformers {since} or later, but {installed} is installed"
        return None
    try:
        layers = Layout.from_config(config).layers
    except LayoutError:
        return None
    return next(
        (
            f"layer {layer.id} needs {layer.uncovered}, which no op computes"
            for layer in layers
            if layer.uncovered
        ),
        None,
    )


def load(
    path: Path,
    config: dict[str, Any],
    family: Family,
    layout: Layout,
    *,
    device: torch.device,
    dtype: torch.dtype,
    max_length: int | None,
) -> Checkpoint:
    """Load the model and its tokenizer.

    Args:
        path: The checkpoint folder.
        config: The config from `read_config`.
        family: The family from `read_config`.
        layout: The checkpoint's layout.
        device: The device for the model.
        dtype: The dtype of weights and activations.
        max_length: Maximum tokens per sequence; None for the model's own limit.

    Raises:
        CheckpointError: A file is missing or broken, the weights don't fit the model, or a layer uses
            something that the engine does not support.
        ConfigError: The model's own maximum length is above 2**31 - 1.
        LayoutError: The layout does not match the model.
    """
    weights = read_weights(path)
    generation = path / GENERATION
    if generation.exists():
        read_object(generation)  # transformers ignores a broken file
    if (path / ADAPTER).exists():
        raise CheckpointError(
            f"{path} has {ADAPTER}, and the engine applies no adapters; valid: weights with adapters merged",
            path=str(path),
        )
    with _loading:
        model_config = _model_config(path, family, max_length)
        drafts = _draft_names(family, model_config, layout)
        skeleton = _skeleton(path, config, model_config, family, weights, drafts)
    check_shapes(find_mixers(skeleton, family, layout.layers), layout)
    tokenizer = load_tokenizer(path)
    with _loading, nullcontext() if device.type == "cpu" else MergedOn(device):
        model, report = _loaded(
            "model",
            path,
            AutoModelForCausalLM.from_pretrained,
            config=model_config,
            dtype=dtype,
            attn_implementation=IMPLEMENTATION,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # the loading report names these keys
            output_loading_info=True,
        )
    problems = {
        "missing": report["missing_keys"],
        "unexpected": [name for name in report["unexpected_keys"] if not drafts.match(name)],
        "of another shape": [name for name, *_ in report["mismatched_keys"]],
    }
    check_names("the weights", path, problems)
    vocab_size = model.get_input_embeddings().weight.shape[0]
    ends = model.generation_config.eos_token_id
    if ends is None:
        ends = tokenizer.eos_token_id
    return Checkpoint(
        path=path,
        family=family,
        model=model.eval().requires_grad_(False).to(device),
        tokenizer=tokenizer,
        end_tokens=_end_tokens(path, ends, vocab_size),
        max_length=_length_of(model_config),
        vocab_size=vocab_size,
    )


def load_tokenizer(path: Path) -> Any:
    """Load the tokenizer of a checkpoint.

    Raises:
        CheckpointError: The tokenizer is missing or broken.
    """
    if not any((path / name).is_file() for name in _TOKENIZER_FILES):
        raise CheckpointError(
            f"{path} has no tokenizer; one of {', '.join(_TOKENIZER_FILES)} is needed", path=str(path)
        )
    return _loaded("tokenizer", path, AutoTokenizer.from_pretrained)


def _loaded(what: str, path: Path, load: Callable[..., Any], **arguments: Any) -> Any:
    """Call one of transformers' loaders, which must not run code from the folder.

    Raises:
        CheckpointError: The loader fails.
    """
    try:
        return load(path, local_files_only=True, trust_remote_code=False, **arguments)
    except Exception as error:
        raise CheckpointError(f"the {what} in {path} can't be loaded: {error}", path=str(path)) from error


def _model_config(path: Path, family: Family, max_length: int | None) -> Any:
    model_config = _loaded("config", path, family.config_class().from_pretrained)
    _check_length(path, model_config)
    _check_rotary(path, model_config, max_length)
    return model_config


def _length_of(model_config: Any) -> Any:
    """The model's maximum tokens per sequence; `_UNLIMITED` for models without positions."""
    return getattr(model_config.get_text_config(), "max_position_embeddings", _UNLIMITED)


def _check_length(path: Path, model_config: Any) -> None:
    length = _length_of(model_config)
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


def _check_rotary(path: Path, model_config: Any, max_length: int | None) -> None:
    """Refuse rotary embeddings whose factors depend on the longest sequence of a step.

    Raises:
        CheckpointError: The config has such embeddings, and a sequence may be long enough to change the
            factors of the other sequences in its step.
    """
    given = getattr(model_config.get_text_config(), "rope_parameters", None)
    own = given if isinstance(given, dict) else {}
    for rotary in (own, *own.values()):  # one set of parameters for the model, or one per kind of layer
        if not isinstance(rotary, dict) or rotary.get("rope_type") != "longrope":
            continue
        original = rotary.get("original_max_position_embeddings")
        if original is None or (max_length or _length_of(model_config)) > original:
            raise CheckpointError(
                f"{path / CONFIG} has rope_type 'longrope', whose factors depend on the longest sequence of "
                "a step; valid: a max_length of at most original_max_position_embeddings, which is "
                f"{'missing' if original is None else original}",
                path=str(path / CONFIG),
                found="longrope",
            )


def load_skeleton(path: Path, family: Family, dtype: torch.dtype, max_length: int | None) -> tuple[Any, int]:
    """Create a config's model without weights. Return it with the maximum tokens per sequence.

    Raises:
        CheckpointError: transformers can't create the model, or the engine doesn't run its rotary embedding.
        ConfigError: The model's own maximum length is above 2**31 - 1.
    """
    with _loading:
        model_config = _model_config(path, family, max_length)
        return _make_skeleton(path, model_config, dtype=dtype), _length_of(model_config)


def _make_skeleton(path: Path, model_config: Any, **options: Any) -> Any:
    """Create a config's model without weights.

    Raises:
        CheckpointError: transformers can't create it.
    """
    try:
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(model_config, trust_remote_code=False, **options)
    except Exception as error:
        raise CheckpointError(
            f"transformers can't make a model from {path / CONFIG}: {error}", path=str(path)
        ) from error


def _skeleton(
    path: Path,
    config: dict[str, Any],
    model_config: Any,
    family: Family,
    weights: Mapping[str, int],
    drafts: re.Pattern[str],
) -> Any:
    """Create a model without weights. Refuse it if it is larger than the weight files.

    Raises:
        CheckpointError: The model is larger than the weight files, the files have layers after the model's
            last one, or the config is invalid.
    """
    layers = model_config.get_text_config().num_hidden_layers
    if layers > len(weights):
        raise CheckpointError(
            f"{path / CONFIG} has {layers} layers, but the weight files have {len(weights)} tensors",
            path=str(path),
        )
    model = _make_skeleton(path, model_config)
    _check_later_layers(path, model, family, layers, weights, drafts)
    if config.get("quantization_config") is not None:  # quantised tensors hold several values per element
        return model
    tied = model.get_output_embeddings() if model.config.tie_word_embeddings else None
    shared = {id(parameter) for parameter in tied.parameters()} if tied is not None else set()
    sizes = {name: one.numel() for name, one in model.named_parameters() if id(one) not in shared}
    wanted, held = sum(sizes.values()), sum(weights.values())
    if wanted > held:
        others = [name for name, size in sizes.items() if weights.get(name) != size]
        raise CheckpointError(
            f"{path / CONFIG} describes a model of {wanted} values, but the weight files hold {held}; "
            f"{first_names(others)}, for example, can't be read from them",
            path=str(path),
        )
    return model


def _draft_names(family: Family, model_config: Any, layout: Layout) -> re.Pattern[str]:
    """A pattern for the weights of a draft head whose layers are numbered after the model's layers."""
    first = model_config.get_text_config().num_hidden_layers
    numbers = "|".join(str(first + step) for step in range(len(layout.drafts)))
    return re.compile(rf"{re.escape(family.layers)}\.({numbers})\." if numbers else r"(?!)")


def _check_later_layers(
    path: Path,
    model: Any,
    family: Family,
    layers: int,
    weights: Mapping[str, int],
    drafts: re.Pattern[str],
) -> None:
    """Refuse weights of layers after the model's last one, except a draft head's and ignored ones.

    Raises:
        CheckpointError: The weight files have such weights.
    """
    ignored = [re.compile(pattern) for pattern in model._keys_to_ignore_on_load_unexpected or ()]
    after = re.compile(rf"{re.escape(family.layers)}\.(\d+)\.")
    more = sorted(
        name
        for name in weights
        if (found := after.match(name)) is not None
        and int(found[1]) >= layers
        and not drafts.match(name)
        and not any(pattern.search(name) for pattern in ignored)
    )
    if more:
        raise CheckpointError(
            f"the weight files in {path} have layers after the {layers} of {path / CONFIG}: "
            f"{first_names(more)}; remove them, or, if they draft tokens, set num_nextn_predict_layers in "
            "the config to their number",
            path=str(path),
            unexpected=tuple(more),
        )


def _end_tokens(path: Path, ends: Any, vocab_size: int) -> frozenset[int]:
    """The ids that end an output, from a config that gives one id, several, or none.

    Raises:
        CheckpointError: An id is not a token of the model.
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
