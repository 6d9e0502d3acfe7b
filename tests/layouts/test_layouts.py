"""The layout of each family compared with the mixers that the installed transformers creates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from switchrail import Layout
from switchrail.errors import LayoutError

from .families import CONFIGS, build


def _write(folder: Path, config: dict[str, Any]) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("name", CONFIGS)
def test_kinds_are_those_of_the_mixers(name: str, tmp_path: Path) -> None:
    built = build(CONFIGS[name])
    assert built.kinds
    for config in (CONFIGS[name], built.saved):
        layout = Layout.from_config(_write(tmp_path, config))
        assert [layer.kind for layer in layout.layers] == built.kinds
        assert [layer.id for layer in layout.layers] == list(range(len(built.kinds)))
        assert [sorted(layer.ops) for layer in layout.layers] == [sorted(shapes) for shapes in built.shapes]


def test_a_dict_is_read_as_a_file_is(tmp_path: Path) -> None:
    config = CONFIGS["qwen3_next"]
    from_dict = Layout.from_config(config)
    from_file = Layout.from_config(_write(tmp_path, config))
    assert [layer.kind for layer in from_dict.layers] == [layer.kind for layer in from_file.layers]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "qwen3next"}, ["qwen3next", "nearest", "qwen3_next"]),
        ({"model_type": "lfm2", "num_hidden_layers": 2, "layer_types": ["conv"]}, ["layer_types", "1", "2"]),
        ({"model_type": "lfm2", "layer_types": ["convv"]}, ["convv", "conv", "full_attention"]),
        (
            {"model_type": "bamba", "num_hidden_layers": 2, "attn_layer_indices": [2]},
            ["attn_layer_indices", "2", "0 to 1"],
        ),
    ],
)
def test_a_bad_config_is_a_typed_error(config: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(LayoutError) as caught:
        Layout.from_config(config)
    assert isinstance(caught.value, ValueError)
    for word in words:
        assert word in str(caught.value)


def test_a_checkpoint_without_config_is_a_typed_error(tmp_path: Path) -> None:
    with pytest.raises(LayoutError, match=r"config\.json"):
        Layout.from_config(tmp_path)
