"""Random MTP heads for checkpoints, with the names of published weights, and a reference without caches."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import switchrail
import torch
from safetensors.torch import save_file
from switchrail.engine.models.mtp import MtpStep, QwenHead
from transformers import AutoModelForCausalLM

LINEAR, FULL = "linear_attention", "full_attention"


def split_experts(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights with a tensor for each expert, as they are published."""
    found = {}
    for name, weight in weights.items():
        stem, _, last = name.rpartition(".")
        parts = [(last, weight)]
        if last == "gate_up_proj" and weight.dim() == 3:
            gate, up = weight.chunk(2, dim=1)
            parts = [("gate_proj", gate), ("up_proj", up)]
        elif weight.dim() != 3 or last != "down_proj":
            found[name] = weight
            continue
        for kind, stacked in parts:
            found |= {f"{stem}.{i}.{kind}.weight": one.contiguous() for i, one in enumerate(stacked)}
    return found


def randomize(module: torch.nn.Module, seed: int) -> None:
    """Set random weights, with which linear layers remember up to a few hundred tokens."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in module.named_parameters():
            if weight.dim() > 1:
                scale = 0.5 if "conv1d" in name else weight.shape[-1] ** -0.5
                weight.copy_(torch.randn(weight.shape, generator=generator) * scale)
            elif "norm" in name:
                weight.copy_(torch.randn(weight.shape, generator=generator) * 0.1)
            elif name.endswith("A_log"):
                weight.copy_(torch.linspace(-5, 0, weight.numel()))
            else:
                weight.zero_()


def make_head(checkpoint: Path, folder: Path, kinds: Sequence[str] = (FULL,), seed: int = 5) -> Path:
    """A copy of a Qwen3-Next checkpoint with a random head. Each step of the head has a layer of one kind."""
    shutil.copytree(checkpoint, folder, dirs_exist_ok=True)
    config = json.loads((folder / "config.json").read_text())
    config |= {"mtp_num_hidden_layers": len(kinds), "mtp_layer_types": list(kinds)}
    (folder / "config.json").write_text(json.dumps(config))
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    head = QwenHead(model, switchrail.Layout.from_config(folder).drafts)
    randomize(head, seed)
    weights = {f"mtp.{name}": weight for name, weight in split_experts(head.state_dict()).items()}
    save_file(weights, folder / "mtp.safetensors")
    return folder


class Scratch:
    """A reference that runs a model and its head without caches."""

    def __init__(self, model: Any, steps: list[MtpStep]) -> None:
        self.model, self.steps = model, steps
        self._known: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[torch.Tensor, ...]] = {}

    def propose(self, text: list[int], count: int) -> list[int]:
        """The greedy drafts after a text whose last token the model has not run."""
        drafts: list[int] = []
        for _ in range(count):
            drafts.append(int(self.logits(text, drafts).argmax()))
        return drafts

    @torch.no_grad()
    def logits(self, text: list[int], drafts: list[int]) -> torch.Tensor:
        """The logits [vocabulary] of the draft after a text and `drafts`."""
        *_, hidden = self._run_after((*text,), (*drafts,))
        return self.model.get_output_embeddings()(hidden[0, -1])

    def _run_after(self, text: tuple[int, ...], drafts: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
        """Run the step after `drafts`; return its tokens, inputs and results."""
        if (key := (text, drafts)) in self._known:
            return self._known[key]
        turn = len(drafts)
        if turn:
            newest = torch.tensor([drafts[-1:]])
            tokens, inputs, hidden = self._run_after(text, drafts[:-1])
            if turn < len(self.steps):
                tokens = torch.cat((tokens[:, 1:], newest), 1)
                inputs = hidden
            else:  # the last step drafts further tokens from its own result
                tokens = torch.cat((tokens, newest), 1)
                inputs = torch.cat((inputs, hidden[:, -1:]), 1)
        else:
            ids = torch.tensor([text])
            tokens = ids[:, 1:]
            inputs = self.model.get_decoder()(ids[:, :-1], use_cache=False).last_hidden_state
        step = self.steps[min(turn, len(self.steps) - 1)]
        self._known[key] = tokens, inputs, self.run(step, tokens, inputs)
        return self._known[key]

    def run(self, step: MtpStep, tokens: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        embeddings = self.model.get_input_embeddings()(tokens)
        positions = torch.arange(tokens.shape[1])[None]
        rotary = self.model.get_decoder().rotary_emb(embeddings, positions)
        return step(embeddings, hidden, rotary, attention_mask=None, position_ids=positions)
