"""Each kind of layer of `ring`, compared with results of SGLang that `references/make_ring.py` stored."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import switchrail
import torch
from safetensors.torch import load_file, save_file
from switchrail.engine import Engine
from switchrail.engine.models import ring
from switchrail.errors import CheckpointError
from torch import nn
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention

from tests.families.conftest import OPTIONS, Family
from tests.families.references.ring_config import CONFIG, LATENT, LAYER

KEPT = load_file(Path(__file__).with_name("references") / "ring.safetensors")
ROWS = KEPT["rows"][None]


def weights(name: str) -> dict[str, torch.Tensor]:
    """The weights of a layer, under the names that the definition uses."""
    own = {key.removeprefix(f"{name}."): value for key, value in KEPT.items() if key.startswith(f"{name}.")}
    del own["out"]
    joined = {
        "dense.weight": ("o_proj.weight",),
        "fused_qkv_a_proj_with_mqa.weight": ("q_a_proj.weight", "kv_a_proj_with_mqa.weight"),
        "gate.expert_bias": ("gate.e_score_correction_bias",),
        "experts.w13_weight": ("experts.gate_up_proj",),
        "experts.w2_weight": ("experts.down_proj",),
        "shared_experts.gate_up_proj.weight": (
            "shared_experts.gate_proj.weight",
            "shared_experts.up_proj.weight",
        ),
    }
    found: dict[str, torch.Tensor] = {}
    for key, value in own.items():
        parts = joined.get(key, (key,))
        sizes = [LATENT["q_lora_rank"]] if "q_a_proj" in parts[0] else [len(value) // len(parts)]
        sizes = [*sizes, len(value) - sum(sizes)] if len(parts) > 1 else [len(value)]
        found |= dict(zip(parts, value.split(sizes), strict=True))
    return found


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("lightning", ring.RingLightningAttention),
        ("attention", ring.RingAttention),
        ("latent", DeepseekV3Attention),
        ("experts", lambda config, layer: ring.RingExperts(config)),
    ],
)
@torch.no_grad()
def test_a_layer_is_that_of_sglang(name: str, make: Callable[[ring.RingConfig, int], nn.Module]) -> None:
    config = ring.RingConfig.from_dict({**CONFIG, **(LATENT if name == "latent" else {})})
    config._attn_implementation = "sdpa"
    model = ring.RingModel(
        ring.RingConfig.from_dict({**config.to_dict(), "vocab_size": 8, "pad_token_id": None})
    )
    layer = make(config, LAYER)
    layer.load_state_dict(weights(name))
    if name == "experts":
        out = layer(ROWS)
    else:
        rotary = model.rotary_emb["latent" if name == "latent" else "linear"]
        positions = torch.arange(ROWS.shape[1])[None]
        out, _ = layer(ROWS, position_embeddings=rotary(ROWS, positions), attention_mask=None)
    expected = KEPT[f"{name}.out"]
    assert expected.abs().mean() > 0.01
    worst = ((out[0] - expected).norm(dim=-1) / expected.norm(dim=-1)).max().item()
    print(f"{name}: {worst:.1e}")
    assert worst < 1e-5


def test_decays() -> None:
    """The decays equal those of the previous layer in SGLang. 12 heads have the slopes of 8 heads, and four
    slopes of 16 heads."""
    layers = CONFIG["num_hidden_layers"]
    assert torch.allclose(ring.decays(2, LAYER, layers), -KEPT["slopes"], rtol=1e-6)
    factor = 1 - 2 / 9 + 1e-5
    slopes = [2.0**-i for i in range(1, 9)] + [2.0 ** (-i / 2) for i in (1, 3, 5, 7)]
    found = ring.decays(12, 3, 10)
    assert found.tolist() == pytest.approx([-slope * factor for slope in slopes])
    assert ring.decays(16, 1, 20)[0].item() == pytest.approx(-(2**-0.5) * (1 + 1e-5))
    assert math.isclose(ring.decays(16, 0, 20)[0].item(), -(2**-0.5) * (1 + 1 / 19 + 1e-5), rel_tol=1e-6)


def test_a_draft_layer_is_passed_over(family_of: Callable[[str], Family], tmp_path: Path) -> None:
    """Published checkpoints have the weights of a draft layer after the last layer."""
    source = family_of("bailing_moe_v2_5").path
    weights = load_file(source / "model.safetensors")
    drafts = {
        name.replace(".5.", ".6.", 1): value.clone()
        for name, value in weights.items()
        if ".layers.5." in name
    }
    assert drafts
    for file in source.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    save_file({**weights, **drafts}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"layers after the 6 of .*: model\.layers\.6\."):
        Engine(tmp_path, runtime=switchrail.Runtime(), device="cpu", options=OPTIONS)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_nextn_predict_layers": 1}))
    with Engine(tmp_path, runtime=switchrail.Runtime(), device="cpu", options=OPTIONS) as engine:
        assert len(engine.plan.layout.layers) == 6
