"""Finds a checkpoint's own MTP (NEXTN) head, without importing torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from switchrail._core import Layout
from switchrail.engine.files import CONFIG, MTP_WEIGHTS, read_weights
from switchrail.engine.options import MTP
from switchrail.errors import ConfigError

HEAD_TYPES: Final = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "deepseek_v3", "bailing_hybrid")
"""The model types whose draft heads the engine runs, except for models with lightning layers."""

_COUNT: Final = "mtp_num_hidden_layers"


def find_mtp(path: Path, config: dict[str, Any], layout: Layout) -> list[Layout]:
    """Find the draft head of a checkpoint, before the model is loaded.

    The published configs of Qwen3-Next don't name the head. If the weight files contain a head, it is assumed
    to have one step.

    Args:
        path: The checkpoint folder.
        config: The config from `read_config`.
        layout: The model's layout.

    Returns:
        The layout of each step of the head; `switchrail.engine.models.mtp` describes the steps.

    Raises:
        ConfigError: The checkpoint has no head, or one that the engine doesn't run.
        CheckpointError: The weight files are broken.
    """
    drafts, model_type = layout.drafts, layout.model_type
    is_known = model_type in HEAD_TYPES and "lightning" not in {layer.kind for layer in layout.layers}
    if not drafts and is_known and _has_weights(path):
        drafts = Layout.from_config({**config, _COUNT: 1}).drafts
    if drafts and is_known:
        return drafts
    which = f"{model_type!r}{' with lightning layers' * (model_type in HEAD_TYPES)}"
    reason = (
        f"the engine doesn't run the MTP head of model_type {which}, since transformers has no class for it; "
        f"valid: {', '.join(HEAD_TYPES)}, without lightning layers"
        if drafts
        else f"{path / CONFIG} names no MTP head; valid: a checkpoint with {_COUNT} or "
        "num_nextn_predict_layers of at least 1, or with the weights of a head"
    )
    raise ConfigError(
        f"draft is {MTP!r}, but {reason}",
        problems={"draft": f"found {MTP!r}"},
        valid={"draft": "None, 'ngram' or a checkpoint"},
    )


def _has_weights(path: Path) -> bool:
    return (path / MTP_WEIGHTS).is_file() or any(name.startswith("mtp.") for name in read_weights(path))
