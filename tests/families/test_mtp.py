"""Draft heads of DeepSeek-V3 and Ling 3, compared with transformers' `MtpModel`."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import switchrail
import torch
from safetensors.torch import load_file, save_file
from switchrail.engine import Engine, EngineOptions, SamplingParams
from switchrail.engine.footprint import footprint
from switchrail.errors import CheckpointError, ConfigError
from transformers import AutoModelForCausalLM
from transformers.modeling_layers import MtpModel

from tests.engine.drafting import FORCED, Oracle, use
from tests.engine.test_mtp import Steered, drafts_of
from tests.families.conftest import OPTIONS, Family
from tests.families.made import CONFIGS, make

FULL, LINEAR = "full_attention", "linear_attention"

FREE = SamplingParams(max_new_tokens=16, ignore_eos=True)


def with_head(source: Path, folder: Path, steps: int, norm: str = "shared_head.norm") -> Path:
    """A copy of a checkpoint with a draft head of `steps` layers under the published names.

    Each layer of the head has the weights of the model's last layer with noise added. `norm` is the name of
    the layer's last norm.
    """
    shutil.copytree(source, folder, dirs_exist_ok=True)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_nextn_predict_layers": steps}))
    weights = load_file(folder / "model.safetensors")
    layers, hidden = config["num_hidden_layers"], config["hidden_size"]
    torch.manual_seed(3)
    last = f"model.layers.{layers - 1}."
    for step in range(steps):
        own = f"model.layers.{layers + step}."
        weights |= {
            own + name.removeprefix(last): value + 0.05 * torch.randn_like(value) * value.std()
            for name, value in list(weights.items())
            if name.startswith(last)
        }
        weights |= {f"{own}{norm}.weight": 1 + 0.1 * torch.randn(hidden) for norm in ("enorm", "hnorm")}
        weights[f"{own}{norm}.weight"] = 1 + 0.1 * torch.randn(hidden)
        weights[f"{own}eh_proj.weight"] = torch.randn(hidden, 2 * hidden) * hidden**-0.5
        # not used: the head embeds tokens with the model's embedding
        weights[f"{own}embed_tokens.weight"] = torch.zeros(config["vocab_size"], hidden)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize(
    ("model_type", "steps"),
    [("deepseek_v3", 1), ("deepseek_v3", 2), *[(name, 2) for name in ("bailing_hybrid",) if name in CONFIGS]],
)
def test_proposals_are_those_of_transformers(
    model_type: str, steps: int, family_of: Callable[[str], Family], tmp_path: Path
) -> None:
    """Proposals equal those of transformers. Published weights of Ling name the last norm differently from
    transformers."""
    family, norm, known = family_of(model_type), "shared_head.norm", {}
    if model_type == "bailing_hybrid":
        layers = {"layer_types": [LINEAR, LINEAR, FULL]}
        family = Family(model_type, make(model_type, tmp_path / "made", **layers), None)
        norm = "final_layernorm"
        known = {"mtp_layer_types": [FULL] * steps, "mtp_mlp_layer_types": ["sparse"] * steps}
    folder = with_head(family.path, tmp_path / "headed", steps, norm)
    prompts = family.prompts((1, 2, 7, 33))
    with Engine(folder, runtime=switchrail.Runtime(), device="cpu", options=OPTIONS) as engine:
        expected = engine.generate(prompts, FREE)
    options = {**OPTIONS, "draft": "mtp", "draft_tokens": steps}
    with Engine(folder, runtime=switchrail.Runtime(), device="cpu", options=options) as engine:
        steered = Steered(drafts_of(engine), Oracle(expected, FORCED["random"]))
        use(engine, steered)
        assert engine.generate(prompts, FREE) == expected
        assert [runner.dispatcher.bound.plan.layout for runner in steered.head.runners] == (  # type: ignore[attr-defined]
            switchrail.Layout.from_config(folder).drafts
        )
    folder = with_head(family.path, tmp_path / "reference", steps)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    first = model.config.num_hidden_layers
    model.config.update(known)
    model._keys_to_ignore_on_load_unexpected = [rf"model\.layers\.{first + step}\." for step in range(steps)]
    head = MtpModel.from_pretrained(model.eval()).eval()
    for text, tokens in random.Random(0).sample(steered.found, 8):
        ids = torch.tensor([text])
        with torch.no_grad():
            hidden = model.model(ids[:, :-1], use_cache=False).last_hidden_state
            positions = torch.arange(1, len(text))[None]
            found, _, _ = head(ids[:, 1:], hidden, None, positions, None)
        assert found[0, : len(tokens)].tolist() == tokens


@pytest.mark.parametrize(
    "model_type", [name for name in ("deepseek_v3", "bailing_hybrid") if name in CONFIGS]
)
def test_the_memory_of_a_head(model_type: str, tmp_path: Path) -> None:
    """The pools of an engine with a draft head have the bytes that `footprint` plans."""
    layers = {"layer_types": [LINEAR, LINEAR, FULL]} if model_type == "bailing_hybrid" else {}
    folder = with_head(make(model_type, tmp_path / "made", **layers), tmp_path / "headed", 2)
    options = EngineOptions(**OPTIONS, draft="mtp", draft_tokens=2)
    runtime, layout = switchrail.Runtime(), switchrail.Layout.from_config(folder)
    with Engine(folder, runtime=runtime, device="cpu", options=options) as engine:
        drafts: Any = engine._core.drafts
        pools = engine.pools.nbytes + sum(runner.pools.nbytes for runner in drafts.runners)
        given: Any = {"drafts": layout.drafts, "platform": engine.platform, "dtype": torch.float32}
        found = footprint(runtime, folder, layout, options, **given, memory=2**30)
    token = sum(kind.token for kind in found.kinds)
    assert found.states + token * OPTIONS["num_pages"] * OPTIONS["page_size"] == pools


def test_heads_that_cannot_run_are_refused(family_of: Callable[[str], Family], tmp_path: Path) -> None:
    options = {**OPTIONS, "draft": "mtp"}
    path = Path(shutil.copytree(family_of("nemotron_h").path, tmp_path / "nemotron"))
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "num_nextn_predict_layers": 1}))
    with pytest.raises(
        ConfigError,
        match="the MTP head of model_type 'nemotron_h', since transformers has no class for it; valid: qwen3",
    ):
        Engine(path, runtime=switchrail.Runtime(), device="cpu", options=options)
    path = Path(shutil.copytree(family_of("bailing_moe_v2_5").path, tmp_path / "ring"))
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "num_nextn_predict_layers": 1}))
    with pytest.raises(ConfigError, match="'bailing_hybrid' with lightning layers, since transformers"):
        Engine(path, runtime=switchrail.Runtime(), device="cpu", options=options)
    path = with_head(family_of("deepseek_v3").path, tmp_path / "deepseek", 1)
    weights = load_file(path / "model.safetensors")
    weights = {name: value for name, value in weights.items() if "eh_proj" not in name}
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match="eh_proj"):
        Engine(path, runtime=switchrail.Runtime(), device="cpu", options=options)
