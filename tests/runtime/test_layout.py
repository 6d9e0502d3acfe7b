from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import switchrail
from switchrail.errors import LayoutError, SchemaError, UnknownModelError

CONFIG = {"model_type": "qwen3_next", "num_hidden_layers": 4, "full_attention_interval": 4, "head_dim": 256}
CYCLE: dict[str, Any] = {}
CYCLE["again"] = [CYCLE]


def test_a_config_comes_as_mapping_file_or_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    layout = switchrail.Layout.from_config({**CONFIG, "id2label": {0: "a"}, "limit": float("inf")})
    folder, file = (switchrail.Layout.from_config(path) for path in (tmp_path, str(tmp_path / "config.json")))
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "limit": [0.0, float("inf")]}))
    assert folder == file == switchrail.Layout.from_config(tmp_path)
    assert folder.layers == layout.layers
    assert [layer.kind for layer in layout.layers] == ["gated_delta"] * 3 + ["full_attention"]
    assert [layer.id for layer in layout.layers] == [0, 1, 2, 3]
    assert len(layout) == 4
    assert layout.layer(3).ops == ["attention"]
    assert layout.shape("full_attention", "attention")["head_size_k"] == 256
    assert (layout.model_type, folder.model) == ("qwen3_next", tmp_path.name)


def test_configs_without_layers(tmp_path: Path) -> None:
    with pytest.raises(UnknownModelError, match='nearest: "qwen3_next"') as caught:
        switchrail.Layout.from_config({**CONFIG, "model_type": "qwen3_nxt"})
    assert isinstance(caught.value, ValueError)
    with pytest.raises(LayoutError):
        switchrail.Layout.from_config(tmp_path)
    with pytest.raises(LayoutError):
        switchrail.Layout.from_config({"model_type": "qwen3_next"})
    with pytest.raises(LayoutError, match="unknown layer kind"):
        switchrail.Layout.from_config(CONFIG).shape("full", "attention")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (CYCLE, "values are nested more than 100 deep"),
        ({"a": object()}, "is not a JSON value; valid: mappings"),
        ({(1, 2): 3}, "name in a JSON object"),
        ({"a": 2**70}, "an integer does not fit into 64 bits"),
        ({"a": b"bytes"}, "is not a JSON value; valid: mappings"),
    ],
)
def test_configs_that_json_can_not_hold(config: Any, said: str) -> None:
    with pytest.raises(SchemaError, match=said):
        switchrail.Layout.from_config(config)


def test_a_layer_with_a_window_asks_for_the_feature_that_backends_declare() -> None:
    layout = switchrail.Layout.from_config(
        {
            "model_type": "lfm3",
            "num_hidden_layers": 2,
            "layer_types": ["sliding_attention", "full_attention"],
            "sliding_window": 8,
            "head_dim": 16,
            "hidden_size": 64,
            "num_attention_heads": 4,
        }
    )
    runtime = switchrail.Runtime()
    runtime.register("blind", "switchrail.ops.attention.torch:TorchAttention", op="attention", priority=1)
    plan = runtime.plan(layout, device="cpu", dtype="float32", page_size=16, phases=("decode",))
    assert [(layer, name) for layer, _, _, name in plan.table] == [(0, "torch"), (1, "blind")]
