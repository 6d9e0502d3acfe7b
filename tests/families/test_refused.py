"""Checkpoints that the engine refuses with a reason, and similar ones that it runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import switchrail
import torch
import transformers
from safetensors.torch import load_file, save_file
from switchrail import Layout
from switchrail.engine import Engine, checkpoint
from switchrail.engine.models.families import FAMILIES
from switchrail.errors import CheckpointError, LayoutError

from tests.families.conftest import OPTIONS, Family
from tests.families.made import make
from tests.layouts.families import CONFIGS as PUBLISHED

_SMALL_VISION: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}


def refused(folder: Path, config: dict[str, Any]) -> str:
    """The message of the engine's error for a folder that has a config but no weights."""
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError) as caught:
        Engine(folder, runtime=switchrail.Runtime(), device="cpu")
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("jamba", "the selective scan of mamba1"),
        ("zamba", "the selective scan of mamba1"),
        ("mamba", "the selective scan of mamba1"),
        ("falcon_mamba", "the selective scan of mamba1"),
        ("recurrent_gemma", "the RG-LRU recurrence"),
    ],
)
def test_a_layer_that_no_op_computes(name: str, reason: str, tmp_path: Path) -> None:
    message = refused(tmp_path, PUBLISHED[name])
    for word in (repr(name), "does not run", "layer 0 needs", reason, "valid: qwen3_next"):
        assert word in message


def test_every_layout_runs_or_is_refused_with_a_reason(tmp_path: Path) -> None:
    for name, config in PUBLISHED.items():
        model_type = Layout.from_config(config).model_type
        if model_type not in FAMILIES:
            assert "needs" in refused(tmp_path, config), name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"score_function": "softmax"}, "score_function is 'softmax'; valid: 'sigmoid'"),
        ({"use_qkv_bias": True}, "use_qkv_bias is True; valid: False"),
        ({"linear_silu": True}, "linear_silu is True; valid: False"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "has type 'linear'; valid: no scaling"),
        ({"num_kv_heads_for_linear_attn": 2}, "num_kv_heads_for_linear_attn is 2; valid: 4"),
        ({"num_hidden_layers": 5}, "num_hidden_layers is 5; valid: a multiple of layer_group_size"),
    ],
)
def test_a_ring_config_with_an_unsupported_value_is_refused(
    change: dict[str, Any], message: str, family_of: Callable[[str], Family], tmp_path: Path
) -> None:
    path = family_of("bailing_moe_v2_5").path
    for file in path.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(CheckpointError, match="the config in ") as caught:
        Engine(tmp_path, runtime=switchrail.Runtime(), device="cpu")
    assert message in str(caught.value)


def test_a_plugin_can_replace_a_definition(tmp_path: Path) -> None:
    family = replace(FAMILIES["bailing_hybrid"], module="a_plugin")
    config = {**PUBLISHED["bailing_hybrid_groups"], "architectures": ["BailingMoeV2_5ForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert checkpoint.read_config(tmp_path, {"bailing_hybrid": family}.get) == (config, family)


def test_weights_in_mxfp4(tmp_path: Path) -> None:
    config = {**PUBLISHED["gpt_oss"], "quantization_config": {"quant_method": "mxfp4"}}
    assert "MXFP4" in refused(tmp_path, config)


def test_a_family_that_needs_a_later_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "transformers", SimpleNamespace(__version__="5.19.1"))
    message = refused(tmp_path, PUBLISHED["bailing_hybrid"])
    assert "it needs transformers 5.20 or later, but 5.19.1 is installed" in message


def test_a_multimodal_checkpoint_that_needs_a_later_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "transformers", SimpleNamespace(__version__="5.22.0"))
    message = refused(tmp_path, PUBLISHED["qwen3_5_nested"])
    assert "it needs transformers 5.23 or later, but 5.22.0 is installed" in message


def test_attention_to_later_tokens(family_of: Callable[[str], Family], tmp_path: Path) -> None:
    path = make("gemma3_text", tmp_path, use_bidirectional_attention=True)
    with pytest.raises(CheckpointError, match=r"layer 0 attends to later tokens too"):
        Engine(path, runtime=switchrail.Runtime(), device="cpu")


def test_a_multimodal_model_that_transformers_loads_whole(
    family_of: Callable[[str], Family], tmp_path: Path
) -> None:
    text = family_of("gemma3_text")
    whole = transformers.Gemma3Config(text_config=text.model.config.to_dict(), vision_config=_SMALL_VISION)
    transformers.Gemma3ForConditionalGeneration(whole).save_pretrained(tmp_path)
    with pytest.raises(
        CheckpointError, match=r"loads no text model of model_type 'gemma3'|needs transformers 5\.23"
    ):
        Engine(tmp_path, runtime=switchrail.Runtime(), device="cpu")


@pytest.mark.parametrize(("model_type", "size"), [("qwen3", 128), ("gpt_oss", 64), ("llama", 16)])
def test_a_config_without_head_size_runs(model_type: str, size: int, tmp_path: Path) -> None:
    path = make(model_type, tmp_path, head_dim=size)
    file = path / "config.json"
    config = json.loads(file.read_text())
    del config["head_dim"]
    file.write_text(json.dumps(config))
    with Family(model_type, path, None).engine("torch", "cpu") as engine:
        assert engine.pools.of(0, "attention") is not None


@pytest.mark.parametrize("model_type", ["deepseek_v3", "nemotron_h"])
def test_draft_layers_that_the_definition_does_not_ignore(
    model_type: str, family_of: Callable[[str], Family], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights of draft layers are an error if the config has no draft layers.

    transformers would ignore only the weights with the layer numbers of the published models.
    """
    source = family_of(model_type).path
    for file in source.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((source / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_nextn_predict_layers": 0}))
    weights = load_file(source / "model.safetensors")
    layers = FAMILIES[model_type].layers
    first = len(Layout.from_config(source).layers)
    name = f"{layers}.{first}.eh_proj.weight"
    save_file({**weights, name: torch.zeros(2, 2)}, tmp_path / "model.safetensors", {"format": "pt"})
    monkeypatch.setattr(checkpoint.AutoModelForCausalLM, "from_pretrained", None)  # would read the weights
    with pytest.raises(CheckpointError, match=f"layers after the {first} of ") as caught:
        Engine(tmp_path, runtime=switchrail.Runtime(), device="cpu")
    assert caught.value.fields["unexpected"] == (name,)


_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0] * 8,
    "long_factor": [4.0] * 8,
    "factor": 16.0,
    "original_max_position_embeddings": 64,
}


@pytest.mark.parametrize(
    ("model_type", "rotary"),
    [
        ("llama", _LONGROPE),
        (
            "gemma3_text",
            {
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                "full_attention": _LONGROPE,
            },
        ),
    ],
)
def test_rotary_factors_that_depend_on_other_sequences(
    model_type: str, rotary: dict[str, Any], tmp_path: Path
) -> None:
    family = Family(model_type, make(model_type, tmp_path, rope_parameters=rotary), None)
    for options in ({}, {"max_length": 65}):
        with pytest.raises(CheckpointError, match=r"'longrope'.* at most .* is 64$"):
            family.engine("torch", "cpu", options={**OPTIONS, **options})
    with family.engine("torch", "cpu", options={**OPTIONS, "max_length": 64}) as engine:
        assert engine.max_length == 64


def test_a_layout_that_is_not_the_models(family_of: Callable[[str], Family], tmp_path: Path) -> None:
    """A model that doesn't match the layout is refused: here a key that the layout ignores adds windows."""
    path = make("qwen3", tmp_path)
    file = path / "config.json"
    config = json.loads(file.read_text())
    del config["layer_types"]
    file.write_text(json.dumps({**config, "max_window_layers": 1, "use_sliding_window": True}))
    with pytest.raises(LayoutError, match="window"):
        Engine(path, runtime=switchrail.Runtime(), device="cpu")


def test_a_multimodal_checkpoint_is_loaded_as_text(
    family_of: Callable[[str], Family], tmp_path: Path
) -> None:
    text = family_of("qwen3_5_text")
    config = transformers.Qwen3_5Config(
        text_config=text.model.config.to_dict(),
        vision_config={
            "depth": 1,
            "hidden_size": 32,
            "intermediate_size": 32,
            "num_heads": 2,
            "out_hidden_size": 64,
        },
        tie_word_embeddings=False,
    )
    model = transformers.Qwen3_5ForConditionalGeneration(config).eval()
    model.model.language_model.load_state_dict(text.model.model.state_dict())
    model.lm_head.load_state_dict(text.model.lm_head.state_dict())
    model.save_pretrained(tmp_path)
    for file in text.path.glob("tokenizer*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    whole = Family("qwen3_5", tmp_path, text.model)
    if [*map(int, transformers.__version__.split(".")[:2])] < [5, 23]:
        with pytest.raises(CheckpointError, match=r"needs transformers 5\.23"):
            whole.engine("torch", "cpu")
        return
    prompts = whole.prompts((3, 20))
    whole.check(prompts, whole.run(prompts, 4))
    assert torch.is_tensor(model.lm_head.weight)
