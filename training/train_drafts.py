"""Trains the drafts of a small checkpoint: an MTP head, and a smaller model. The checkpoint is not changed.

    python training/train_drafts.py prepare kjv.txt tests/checkpoints/kjv-qwen3-next states.pt
    python training/train_drafts.py head tests/checkpoints/kjv-qwen3-next states.pt
    python training/train_drafts.py model tests/checkpoints/kjv-qwen3-next states.pt DRAFT

Both learn the checkpoint's own distribution (distillation), on windows of the training chapters and on
continuations that the checkpoint wrote. `prepare` computes its last hidden states for all of these once.
Weights that are there already are trained further.
"""

from __future__ import annotations

import argparse
import math
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import switchrail
import torch
from safetensors.torch import save_file
from switchrail.engine import Engine, SamplingParams
from switchrail.engine.files import MTP_WEIGHTS, read_tensors
from switchrail.engine.models.mtp import QwenHead, join_experts
from torch import Tensor, nn
from train_kjv import SHAPES, Recipe, Windows, optimizers, split_documents
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3NextConfig

LENGTH, GIVEN = 192, 8
"""Tokens of a sequence, and of the book's part at the start of a continuation."""
PASSES = 2
"""Passes of the head over a sequence. Each takes the results of the one before, as when it drafts."""
SHARE = 4
"""One of this many tokens counts in a loss: most of the time of a small model goes to its vocabulary."""


def prepare(text: Path, checkpoint: Path, output: Path, windows: int, continuations: int) -> None:
    """Writes sequences, int16 [N, LENGTH], and their hidden states, float16 [N, LENGTH, hidden]."""
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    split = split_documents(text.read_text(encoding="utf-8"))
    source = Windows(split.train, tokenizer, Recipe(sequence_length=LENGTH))
    prompts = source.draw(continuations, GIVEN).tolist()
    new = LENGTH - GIVEN
    params = [
        SamplingParams(max_new_tokens=new, ignore_eos=True, temperature=float(i % 4 == 3), seed=i)
        for i in range(continuations)
    ]
    options = {"max_sequences": 64, "max_length": LENGTH}
    with Engine(checkpoint, runtime=switchrail.Runtime(), device="cpu", options=options) as engine:
        outputs = engine.generate(prompts, params)
    written = torch.tensor([[*prompt, *one.tokens] for prompt, one in zip(prompts, outputs, strict=True)])
    ids = torch.cat((written, source.draw(windows, LENGTH)))
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    with torch.no_grad():
        hidden = [model.model(rows).last_hidden_state.half() for rows in ids.split(16)]
    torch.save({"ids": ids.short(), "hidden": torch.cat(hidden)}, output)


def loss_of(teacher: Tensor, logits: Tensor) -> tuple[Tensor, float]:
    """The cross-entropy of a draft relative to the model, and how often their largest logits agree."""
    loss = -(teacher.softmax(-1) * logits.log_softmax(-1)).sum(-1).mean()
    return loss, (teacher.argmax(-1) == logits.argmax(-1)).float().mean().item()


def train(
    parameters: nn.Module,
    loss: Callable[[Tensor, Tensor], tuple[Tensor, list[float]]],
    states: Path,
    *,
    steps: int,
    rate: float,
    batch: int,
) -> None:
    """Takes optimizer steps on batches of sequences.

    Args:
        parameters: The module to train.
        loss: Maps tokens and hidden states to the loss, and to shares of right drafts.
        states: The file that `prepare` wrote.
        steps: Optimizer steps.
        rate: The highest learning rate.
        batch: Sequences of a step.
    """
    kept = torch.load(states)
    chosen = optimizers(parameters, Recipe(learning_rate=rate, weight_decay=0.02))
    begin = time.monotonic()
    order = batches(len(kept["ids"]), batch)
    for step in range(steps):
        factor = min(1.0, (step + 1) / 20) * (0.02 + 0.98 * (1 + math.cos(math.pi * step / steps)) / 2)
        for group in (group for one in chosen for group in one.param_groups):
            group["lr"] = rate * factor
        rows = next(order)
        value, shares = loss(kept["ids"][rows].long(), kept["hidden"][rows].float())
        value.backward()
        nn.utils.clip_grad_norm_(parameters.parameters(), 1.0)
        for one in chosen:
            one.step()
            one.zero_grad()
        if step % 20 == 0 or step == steps - 1:
            listed = " ".join(f"{share:.3f}" for share in shares)
            print(
                f"step {step}/{steps}, {time.monotonic() - begin:.0f} s: loss {value:.3f}, right {listed}",
                flush=True,
            )


def batches(count: int, size: int) -> Iterator[Tensor]:
    """Yields batches of the numbers below `count`, in a new order in each epoch."""
    generator = torch.Generator().manual_seed(0)
    while True:
        yield from torch.randperm(count, generator=generator)[: count // size * size].split(size)


def train_head(checkpoint: Path, states: Path, steps: int) -> None:
    """Trains an MTP head and writes its weights beside the checkpoint's."""
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval().requires_grad_(False)
    draft = switchrail.Layout.from_config(
        {**model.config.to_dict(), "mtp_num_hidden_layers": 1, "mtp_layer_types": ["full_attention"]}
    ).drafts
    head = QwenHead(model, draft)
    for name, weight in head.named_parameters():
        if weight.dim() > 1:
            weight.data.normal_(0, weight.shape[-1] ** -0.5)
        elif "norm" not in name:
            weight.data.zero_()
    if (checkpoint / MTP_WEIGHTS).exists():
        head.load_state_dict(join_experts(read_tensors(checkpoint, "mtp.")))
    (step,) = head.steps()
    rotary = model.model.rotary_emb(torch.zeros(1), torch.arange(LENGTH)[None])

    def loss(ids: Tensor, hidden: Tensor) -> tuple[Tensor, list[float]]:
        total, shares = torch.zeros(()), list[float]()
        before = hidden
        for turn in range(PASSES):
            entries = LENGTH - 1 - turn
            hidden = hidden[:, :entries]
            around = tuple(part[:, :entries] for part in rotary)
            hidden = step(model.model.embed_tokens(ids[:, 1 + turn :]), hidden, around, attention_mask=None)
            rows = torch.randperm(entries)[: entries // SHARE]
            value, share = loss_of(model.lm_head(before[:, rows + 1 + turn]), model.lm_head(hidden[:, rows]))
            total, shares = total + value * 0.8**turn, [*shares, share]
        return total, shares

    train(head, loss, states, steps=steps, rate=4e-3, batch=16)
    tensors = {}
    for name, weight in head.state_dict().items():
        stem, _, last = name.rpartition(".")
        rounded = weight.to(torch.bfloat16)
        if last == "gate_up_proj":
            for i, expert in enumerate(rounded):
                gate, up = expert.chunk(2)
                tensors |= {f"mtp.{stem}.{i}.gate_proj.weight": gate, f"mtp.{stem}.{i}.up_proj.weight": up}
        elif last == "down_proj" and stem.endswith("experts"):
            tensors |= {f"mtp.{stem}.{i}.down_proj.weight": expert for i, expert in enumerate(rounded)}
        else:
            tensors[f"mtp.{name}"] = rounded
    save_file({name: one.contiguous() for name, one in tensors.items()}, checkpoint / MTP_WEIGHTS)


def train_model(checkpoint: Path, states: Path, steps: int, output: Path) -> None:
    """Trains a small model with the checkpoint's vocabulary, and writes it to a folder of its own."""
    teacher = (
        AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval().requires_grad_(False)
    )
    own = teacher.config
    config = Qwen3NextConfig(
        **SHAPES["draft"],
        vocab_size=own.vocab_size,
        max_position_embeddings=own.max_position_embeddings,
        tie_word_embeddings=True,
        eos_token_id=own.eos_token_id,
        pad_token_id=own.pad_token_id,
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    if output.exists():
        model = AutoModelForCausalLM.from_pretrained(output, dtype=torch.float32)

    def loss(ids: Tensor, hidden: Tensor) -> tuple[Tensor, list[float]]:
        rows = torch.randperm(LENGTH)[: LENGTH // SHARE]
        logits = model(ids, use_cache=False, logits_to_keep=rows).logits
        value, share = loss_of(teacher.lm_head(hidden[:, rows]), logits)
        return value, [share]

    train(model, loss, states, steps=steps, rate=8e-3, batch=16)
    model.to(torch.bfloat16).save_pretrained(output)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(checkpoint / name, output / name)


def main() -> None:
    """Runs one of the three parts."""
    parser = argparse.ArgumentParser(description="Train drafts for a small checkpoint.")
    parts: Any = parser.add_subparsers(required=True)
    part = parts.add_parser("prepare")
    part.add_argument("text", type=Path)
    part.add_argument("checkpoint", type=Path)
    part.add_argument("output", type=Path)
    part.add_argument("--windows", type=int, default=800)
    part.add_argument("--continuations", type=int, default=640)
    part.set_defaults(run=prepare)
    part = parts.add_parser("head")
    part.add_argument("checkpoint", type=Path)
    part.add_argument("states", type=Path)
    part.add_argument("--steps", type=int, default=600)
    part.set_defaults(run=train_head)
    part = parts.add_parser("model")
    part.add_argument("checkpoint", type=Path)
    part.add_argument("states", type=Path)
    part.add_argument("output", type=Path)
    part.add_argument("--steps", type=int, default=900)
    part.set_defaults(run=train_model)
    options = vars(parser.parse_args())
    run = options.pop("run")
    torch.manual_seed(0)
    run(**options)


if __name__ == "__main__":
    main()
