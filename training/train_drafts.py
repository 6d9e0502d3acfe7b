"""Trains two drafts for a small checkpoint, without changing it: an MTP head and a smaller model.

    python training/train_drafts.py prepare kjv.txt tests/checkpoints/kjv-qwen3-next states.pt
    python training/train_drafts.py head tests/checkpoints/kjv-qwen3-next states.pt HEAD
    python training/train_drafts.py model tests/checkpoints/kjv-qwen3-next states.pt DRAFT

Both learn the checkpoint's distribution and its most likely tokens (distillation), on windows of the training
chapters and on continuations that the checkpoint wrote. `prepare` computes the checkpoint's last hidden
states for these texts. If the output folder already has weights, training starts from them. The progress
lines show how many tokens of a draft chain are accepted, on continuations of held-out chapters.
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
from safetensors.torch import load_file, save_file
from switchrail.engine.files import MTP_WEIGHTS
from switchrail.engine.models.mtp import QwenHead, join_experts
from torch import Tensor, nn
from train_kjv import DEVICE, SHAPES, Recipe, Windows, optimizers, split_documents, take_step
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3NextConfig

LENGTH, GIVEN = 192, (8, 16, 32, 64)
"""Tokens per sequence, and the possible lengths in tokens of the book's passages that are continued."""
DRAFTS = 4
"""Number of tokens of a draft chain, in the head's training and in the progress lines."""
SHARE = 4
"""A loss uses one in SHARE tokens, because the output layer takes most of a small model's time."""
HELD = 128
"""Number of sequences of held-out chapters. They come first in a file of states."""
SAVES = 5
"""How many times a run writes its weights."""


def teacher_of(checkpoint: Path) -> Any:
    """The checkpoint's model in float32. It generates without stopping at EOS."""
    model: Any = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    model.generation_config.eos_token_id = None
    return model.to(DEVICE).eval().requires_grad_(False)


@torch.inference_mode()
def prepare(text: Path, checkpoint: Path, output: Path, windows: int, continuations: int, batch: int) -> None:
    """Writes sequences, int16 [N, LENGTH], and their hidden states, float16 [N, LENGTH, hidden].

    Continuations of held-out chapters are greedy. Of the batches of other continuations, one in four is
    sampled, and the others are greedy.
    """
    tokenizer, model = AutoTokenizer.from_pretrained(checkpoint), teacher_of(checkpoint)
    split = split_documents(text.read_text(encoding="utf-8"))
    source = Windows(split.train, tokenizer, Recipe(sequence_length=LENGTH))
    held = Windows(split.test, tokenizer, Recipe(sequence_length=LENGTH))

    def continued(prompts: Tensor, *, drawn: bool) -> Tensor:
        ids = prompts.to(DEVICE)
        begin = time.monotonic()
        new = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=LENGTH - ids.shape[1],
            do_sample=drawn,
            top_k=0,
        )
        print(f"continued {len(ids)} sequences in {time.monotonic() - begin:.1f} s", flush=True)
        return new.cpu()

    parts = [continued(held.draw(HELD, GIVEN[-1]), drawn=False)]
    for turn, start in enumerate(range(0, continuations, batch)):
        prompts = source.draw(min(batch, continuations - start), GIVEN[turn % len(GIVEN)])
        parts.append(continued(prompts, drawn=turn // len(GIVEN) % len(GIVEN) == turn % len(GIVEN)))
    ids = torch.cat((*parts, source.draw(windows, LENGTH)))
    rows = 16 if DEVICE.type == "cpu" else 512
    hidden = [model.model(one.to(DEVICE)).last_hidden_state.half().cpu() for one in ids.split(rows)]
    torch.save({"ids": ids.short(), "hidden": torch.cat(hidden)}, output)


def loss_of(teacher: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
    """The loss relative to a teacher's logits, and where the most likely tokens of both agree.

    The loss is the mean of two cross-entropies: with the teacher's distribution, and with its most likely
    tokens.
    """
    best = teacher.argmax(-1)
    log = logits.log_softmax(-1)
    loss = -(teacher.softmax(-1) * log).sum(-1).mean() - log.gather(-1, best[..., None]).mean()
    return loss / 2, best == logits.argmax(-1)


def train(
    parameters: nn.Module,
    loss: Callable[[Tensor, Tensor], Tensor],
    accepted: Callable[[Tensor, Tensor], float],
    save: Callable[[], None],
    states: Path,
    *,
    rate: float,
    steps: int,
    batch: int,
    max_seconds: float,
) -> None:
    """Takes optimizer steps on batches of sequences.

    Args:
        parameters: The module to train.
        loss: Maps tokens and hidden states to the loss.
        accepted: Maps tokens and hidden states to the mean number of accepted drafts.
        save: Writes the weights.
        states: The file that `prepare` wrote.
        rate: The highest learning rate.
        steps: Optimizer steps.
        batch: Sequences of a step.
        max_seconds: A time limit; the schedule is shortened to keep it.
    """
    kept = {name: tensor.to(DEVICE) for name, tensor in torch.load(states).items()}
    held = kept["ids"][:HELD].long(), kept["hidden"][:HELD].float()
    chosen = optimizers(parameters, Recipe(learning_rate=rate, weight_decay=0.02))
    begin, step, progress, saved = time.monotonic(), 0, 0.0, 0.0
    order = batches(HELD, len(kept["ids"]), batch)
    while progress < 1.0:
        factor = min(1.0, (step + 1) / 50) * (0.01 + 0.99 * (1 + math.cos(math.pi * progress)) / 2)
        for group in (group for one in chosen for group in one.param_groups):
            group["lr"] = rate * factor
        rows = next(order).to(DEVICE)
        value = loss(kept["ids"][rows].long(), kept["hidden"][rows].float())
        take_step(value, parameters, chosen)
        step += 1
        seconds = time.monotonic() - begin
        progress = max(step / steps, seconds / max_seconds)
        if step == 1 or progress >= min(1.0, saved + 1 / SAVES):
            with torch.no_grad():
                print(
                    f"step {step}/{steps}, {seconds:.0f} s: loss {value.item():.3f}, "
                    f"{accepted(*held):.3f} of {DRAFTS} drafts accepted",
                    flush=True,
                )
            if step > 1:
                saved = progress
                save()


def batches(first: int, last: int, size: int) -> Iterator[Tensor]:
    """Yields batches of the numbers from `first` to `last` - 1, shuffled anew in each epoch."""
    generator = torch.Generator().manual_seed(0)
    while True:
        order = first + torch.randperm(last - first, generator=generator)
        yield from order[: len(order) // size * size].split(size)


def train_head(checkpoint: Path, states: Path, output: Path, **options: Any) -> None:
    """Trains an MTP head and writes its weights to `output`, which may be the checkpoint's folder."""
    model = teacher_of(checkpoint)
    draft = switchrail.Layout.from_config(
        {**model.config.to_dict(), "mtp_num_hidden_layers": 1, "mtp_layer_types": ["full_attention"]}
    ).drafts
    head = QwenHead(model, draft).to(DEVICE)
    for name, weight in head.named_parameters():
        if weight.dim() > 1:
            weight.data.normal_(0, weight.shape[-1] ** -0.5)
        elif "norm" not in name:
            weight.data.zero_()
    if (output / MTP_WEIGHTS).exists():
        known = load_file(output / MTP_WEIGHTS)
        head.load_state_dict(join_experts({name.removeprefix("mtp."): one for name, one in known.items()}))
    (step,) = head.steps()

    def drafted(ids: Tensor, hidden: Tensor) -> list[Tensor]:
        """Run the head as in drafting, for all chains at once; return its results for each depth.

        Row (n, i) is position i at depth n of a chain. In this chain, positions up to i - n take the model's
        hidden states. Each of the n positions after them takes the head's result at the position before. So
        row (n, i) attends to two sets of rows: (0, j) with j <= i - n, and (m, i - n + m) with 0 < m <= n.
        Rows with i < n belong to no chain; their results are meaningless.
        """
        count = ids.shape[1] - 1
        embedded = model.model.embed_tokens(ids[:, 1:])
        positions = torch.arange(count, device=DEVICE)
        rotary = model.model.rotary_emb(embedded, positions[None])
        n, i = torch.arange(DRAFTS, device=DEVICE).repeat_interleave(count), positions.repeat(DRAFTS)
        start = i - n
        seen = torch.where(
            n[None] == 0, i[None] <= start[:, None], (n[None] <= n[:, None]) & (start[None] == start[:, None])
        )
        seen |= torch.eye(len(n), dtype=torch.bool, device=DEVICE)
        inputs, results = [hidden[:, :count]], list[Tensor]()
        for turn in range(1, DRAFTS + 1):
            rows = turn * count
            out = step(
                embedded.repeat(1, turn, 1),
                torch.cat(inputs, 1),
                tuple(part.repeat(1, turn, 1) for part in rotary),
                attention_mask=seen[None, None, :rows, :rows],
            )
            results.append(out[:, rows - count :])
            inputs.append(results[-1].roll(1, 1))
        return results

    def loss(ids: Tensor, hidden: Tensor) -> Tensor:
        total = torch.zeros((), device=DEVICE)
        for depth, result in enumerate(drafted(ids, hidden)):
            rows = depth + torch.randperm(LENGTH - 1 - depth, device=DEVICE)[: LENGTH // SHARE]
            value, _ = loss_of(model.lm_head(hidden[:, rows + 1]), model.lm_head(result[:, rows]))
            total = total + value * 0.8**depth
        return total

    def accepted(ids: Tensor, hidden: Tensor) -> float:
        """The head's result at position i predicts token i + 2, like the model's state at i + 1."""
        given = GIVEN[-1]
        right = [
            loss_of(model.lm_head(hidden[:, 1:]), model.lm_head(result))[1] for result in drafted(ids, hidden)
        ]
        last = ids.shape[1] - 1 - DRAFTS
        chain = torch.stack([one[:, given + n : last + n] for n, one in enumerate(right)], -1)
        return chain.cumprod(-1).sum(-1).float().mean().item()

    def save() -> None:
        output.mkdir(parents=True, exist_ok=True)
        save_file(published(head), output / MTP_WEIGHTS)

    train(head, loss, accepted, save, states, **options)


def published(head: QwenHead) -> dict[str, Tensor]:
    """A head's weights in bfloat16, under the names that published checkpoints use."""
    tensors = {}
    for name, weight in head.state_dict().items():
        stem, _, last = name.rpartition(".")
        rounded = weight.to("cpu", torch.bfloat16)
        if last == "gate_up_proj":
            for i, expert in enumerate(rounded):
                gate, up = expert.chunk(2)
                tensors |= {f"mtp.{stem}.{i}.gate_proj.weight": gate, f"mtp.{stem}.{i}.up_proj.weight": up}
        elif last == "down_proj" and stem.endswith("experts"):
            tensors |= {f"mtp.{stem}.{i}.down_proj.weight": expert for i, expert in enumerate(rounded)}
        else:
            tensors[f"mtp.{name}"] = rounded
    return {name: one.contiguous() for name, one in tensors.items()}


def train_model(checkpoint: Path, states: Path, output: Path, **options: Any) -> None:
    """Trains a small model with the checkpoint's vocabulary, and writes it to `output`."""
    teacher = teacher_of(checkpoint)
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
    model = model.to(DEVICE)

    def loss(ids: Tensor, hidden: Tensor) -> Tensor:
        rows = torch.randperm(LENGTH, device=DEVICE)[: LENGTH // SHARE]
        logits = model(ids, use_cache=False, logits_to_keep=rows).logits
        value, _ = loss_of(teacher.lm_head(hidden[:, rows]), logits)
        return value

    def accepted(ids: Tensor, hidden: Tensor) -> float:
        _, right = loss_of(teacher.lm_head(hidden), model(ids, use_cache=False).logits)
        return right[:, GIVEN[-1] :].unfold(1, DRAFTS, 1).cumprod(-1).sum(-1).float().mean().item()

    def save() -> None:
        rounded = {name: weight.to("cpu", torch.bfloat16) for name, weight in model.state_dict().items()}
        rounded.pop("lm_head.weight", None)  # tied to the embedding
        output.mkdir(parents=True, exist_ok=True)
        model.config.dtype = torch.bfloat16
        model.config.architectures = [type(model).__name__]
        model.config.save_pretrained(output)
        model.generation_config.save_pretrained(output)
        save_file(rounded, output / "model.safetensors", metadata={"format": "pt"})
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(checkpoint / name, output / name)

    train(model, loss, accepted, save, states, **options)


def main() -> None:
    """Runs one of the three commands."""
    parser = argparse.ArgumentParser(description="Train drafts for a small checkpoint.")
    commands: Any = parser.add_subparsers(required=True)
    command = commands.add_parser("prepare")
    command.add_argument("text", type=Path)
    command.add_argument("checkpoint", type=Path)
    command.add_argument("output", type=Path)
    command.add_argument("--windows", type=int, default=2048)
    command.add_argument("--continuations", type=int, default=32768)
    command.add_argument("--batch", type=int, default=4096, help="sequences that are continued together")
    command.set_defaults(run=prepare)
    for name, run, rate in (("head", train_head, 4e-3), ("model", train_model, 8e-3)):
        command = commands.add_parser(name)
        command.add_argument("checkpoint", type=Path)
        command.add_argument("states", type=Path)
        command.add_argument("output", type=Path)
        command.add_argument("--steps", type=int, default=4000)
        command.add_argument("--batch", type=int, default=64)
        command.add_argument("--rate", type=float, default=rate)
        command.add_argument("--max-seconds", type=float, default=300.0, help="time limit")
        command.set_defaults(run=run)
    options = vars(parser.parse_args())
    run = options.pop("run")
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    run(**options)


if __name__ == "__main__":
    main()
