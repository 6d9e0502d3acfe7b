"""Qwen3-Next's draft head, compared with results of SGLang that `references/make_qwen_mtp.py` stored."""

from __future__ import annotations

from pathlib import Path

import switchrail
import torch
from safetensors.torch import load_file, save_file
from switchrail.engine.models.mtp import load_head
from transformers import AutoModelForCausalLM, Qwen3NextConfig

from tests.families.references.qwen_mtp_config import CONFIG

KEPT = load_file(Path(__file__).with_name("references") / "qwen_mtp.safetensors")


@torch.no_grad()
def test_logits_are_those_of_sglang(tmp_path: Path) -> None:
    """Logits equal those of SGLang. The weights have their published names, as for SGLang's own loader."""
    weights = {name: value for name, value in KEPT.items() if "." in name}
    save_file(weights, tmp_path / "mtp.safetensors")
    save_file({"model.norm.weight": torch.zeros(1)}, tmp_path / "model.safetensors")
    model = AutoModelForCausalLM.from_config(Qwen3NextConfig(**CONFIG)).eval()
    model.get_input_embeddings().weight.copy_(weights["model.embed_tokens.weight"])
    model.get_output_embeddings().weight.copy_(weights["lm_head.weight"])
    drafts = switchrail.Layout.from_config(CONFIG).drafts
    (step,) = load_head(tmp_path, model, drafts)
    embeddings = model.get_input_embeddings()(KEPT["tokens"][None])
    positions = torch.arange(len(KEPT["tokens"]))[None]
    rotary = model.get_decoder().rotary_emb(embeddings, positions)
    hidden = step(embeddings, KEPT["hidden"][None], rotary, attention_mask=None, position_ids=positions)
    logits = model.get_output_embeddings()(hidden)[0]
    worst = (logits - KEPT["logits"]).abs().max().item()
    print(f"worst {worst:.1e}, mean of logits {KEPT['logits'].abs().mean():.2f}")
    assert KEPT["logits"].abs().mean() > 0.3
    assert worst < 1e-4
