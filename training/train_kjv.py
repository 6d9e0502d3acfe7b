"""Trains one of the small checkpoints of this repository on a plain text file, in one command.

    python training/train_kjv.py kjv.txt tests/checkpoints/kjv-qwen3-next

The text consists of documents separated by empty lines (`extract_kjv.py` makes such a file). Of every 40
documents, one is for validation, which selects the best weights of the run, and one for the reported test
figure. The tokenizer and the weights are trained on the other documents. The model class is transformers' own
for `--shape`. The reported figures are those of the saved weights, which are rounded to bfloat16.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.models.kimi_linear import modeling_kimi_linear

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
EOS, PAD = "<|endoftext|>", "<|pad|>"
PROMPTS = ("In the beginning", "And the LORD", "Blessed are", "The", "And it came to pass in those days")


@dataclass(frozen=True)
class Recipe:
    """The options of a run. The defaults are those of the checkpoint `kjv-qwen3-next`."""

    vocab_size: int = 3072
    sequence_length: int = 1024
    batch_size: int = 16
    epochs: float = 24.0
    learning_rate: float = 6e-3
    weight_decay: float = 0.1
    dropout: float = 0.15
    warmup: float = 0.02
    evaluations: int = 20
    repeat_rounds: int = 30
    repeat_batch: int = 128
    repeat_learning_rate: float = 6e-4
    seed: int = 0


@dataclass(frozen=True)
class Split:
    """The documents by use."""

    train: list[str]
    validation: list[str]
    test: list[str]


def split_documents(text: str) -> Split:
    """Splits `text` at empty lines. Held-out documents are at regular intervals, so they cover all genres."""
    documents = [document.strip("\n") for document in text.split("\n\n")]
    uses: dict[int, list[str]] = {19: [], 39: []}
    train: list[str] = []
    for number, document in enumerate(documents):
        uses.get(number % 40, train).append(document)
    return Split(train, uses[19], uses[39])


def train_tokenizer(documents: Sequence[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Trains a byte-level BPE, which reproduces any text exactly. Token 0 is EOS, token 1 padding."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[EOS, PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(documents, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=EOS,
        pad_token=PAD,
        clean_up_tokenization_spaces=False,
        model_max_length=4096,
    )


SHAPES: Mapping[str, Mapping[str, Any]] = json.loads(Path(__file__).with_name("shapes.json").read_text())
"""The sizes of each checkpoint's model, by model type.

Every fourth layer of `qwen3_next` is full attention, and every second MLP a mixture of experts. One layer in
four of `kimi_linear` is latent attention, and only the first MLP is dense. Each layer of `nemotron_h` is a
mixer, experts or a dense MLP. `draft` is the model that drafts for `qwen3_next`.
"""


def config_of(shape: str, tokenizer: PreTrainedTokenizerFast) -> PreTrainedConfig:
    """The transformers config of a shape, with the tokenizer's vocabulary."""
    config = AutoConfig.for_model(
        shape,
        vocab_size=len(tokenizer),
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **SHAPES[shape],
    )
    if config.bos_token_id is not None:  # the default lies outside a small vocabulary
        config.bos_token_id = tokenizer.eos_token_id
    return config


def add_dropout(model: nn.Module, probability: float) -> None:
    """Adds dropout to the embeddings and to the outputs of mixers and MLPs, active while `model` is training.

    Args:
        model: A causal model of transformers, whose classes have no such dropout.
        probability: Share of the elements that are zeroed, in [0, 1).
    """

    def drop(
        module: nn.Module, _: object, output: Tensor | tuple[Tensor, object]
    ) -> Tensor | tuple[Tensor, object]:
        if isinstance(output, tuple):
            return (F.dropout(output[0], probability, module.training), *output[1:])
        return F.dropout(output, probability, module.training)

    for name, module in model.named_modules():
        if name.endswith(("embed_tokens", "embeddings", ".linear_attn", ".self_attn", ".mlp", ".mixer")):
            module.register_forward_hook(drop)


def take_step(loss: Tensor, model: nn.Module, optimizers: list[torch.optim.Optimizer]) -> None:
    """Takes a step of each optimizer, with the gradients of `loss` clipped to a norm of 1."""
    loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()


def optimizers(model: nn.Module, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Returns Muon for the hidden matrices, with updates scaled to AdamW's size, and AdamW for the rest."""
    matrices: list[Tensor] = []
    decayed: list[Tensor] = []
    plain: list[Tensor] = []
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2 and "embed" not in name and "lm_head" not in name:
            matrices.append(parameter)
        elif parameter.ndim >= 2:
            decayed.append(parameter)
        else:
            plain.append(parameter)
    groups: list[dict[str, Any]] = [{"params": decayed}, {"params": plain, "weight_decay": 0.0}]
    return [
        torch.optim.Muon(
            matrices,
            lr=recipe.learning_rate,
            weight_decay=recipe.weight_decay,
            adjust_lr_fn="match_rms_adamw",
        ),
        torch.optim.AdamW(
            groups, lr=recipe.learning_rate, betas=(0.9, 0.98), weight_decay=recipe.weight_decay
        ),
    ]


class Windows:
    """Draws training windows. Half of them begin at any token, half at the start of a line, like a prompt."""

    def __init__(self, documents: Sequence[str], tokenizer: PreTrainedTokenizerFast, recipe: Recipe) -> None:
        """Encodes `documents`, each followed by EOS, into one stream."""
        newline = tokenizer.convert_tokens_to_ids("\u010a")  # a line feed in byte-level BPE
        stream: list[int] = []
        for ids in tokenizer(list(documents))["input_ids"]:
            stream.extend((*ids, tokenizer.eos_token_id))
        self.tokens = torch.tensor(stream)
        ends = (self.tokens == newline) | (self.tokens == tokenizer.eos_token_id)
        self.starts = torch.cat((torch.zeros(1, dtype=torch.long), ends.nonzero().flatten() + 1))
        self.starts = self.starts[self.starts < len(self.tokens) - recipe.sequence_length]
        self.generator = torch.Generator().manual_seed(recipe.seed)

    def draw(self, count: int, length: int) -> Tensor:
        """Returns `count` windows, int64 [count, length]; `length` is at most one more than the recipe's."""
        anywhere = torch.randint(len(self.tokens) - length, (count,), generator=self.generator)
        line = self.starts[torch.randint(len(self.starts), (count,), generator=self.generator)]
        start = torch.where(torch.arange(count) % 2 == 0, anywhere, line)
        return self.tokens[start[:, None] + torch.arange(length)]


def batches(ids: list[list[int]], tokens: int) -> Iterator[list[list[int]]]:
    """Yields groups of sequences of similar length, longest first.

    A group has at most `tokens` tokens including padding, or consists of one longer sequence.
    """
    group: list[list[int]] = []
    for sequence in sorted(ids, key=len, reverse=True):
        if group and (len(group) + 1) * len(group[0]) > tokens:
            yield group
            group = []
        group.append(sequence)
    if group:
        yield group


@torch.no_grad()
def bits_per_byte(model: nn.Module, tokenizer: PreTrainedTokenizerFast, documents: Sequence[str]) -> float:
    """Returns the bits that `model` needs for each byte of `documents`' text.

    Each document is scored by itself, after one EOS. The EOS at its end costs bits, but is not counted as a
    byte.
    """
    device = next(model.parameters()).device
    model.eval()
    eos, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    encoded = [[eos, *ids, eos] for ids in tokenizer(list(documents))["input_ids"]]
    nats = 0.0
    for group in batches(encoded, 8_192):
        padded = torch.full((len(group), len(group[0])), pad)
        for row, ids in zip(padded, group, strict=True):
            row[: len(ids)] = torch.tensor(ids)
        padded = padded.to(device)
        logits = model(input_ids=padded[:, :-1], use_cache=False).logits.float()
        nats += F.cross_entropy(
            logits.flatten(0, 1), padded[:, 1:].flatten(), ignore_index=pad, reduction="sum"
        ).item()
    return nats / math.log(2) / sum(len(document.encode()) for document in documents)


@torch.no_grad()
def copy_rounded(source: nn.Module, target: nn.Module) -> None:
    """Sets the parameters of `target` to those of `source`, rounded to bfloat16."""
    for to, parameter in zip(target.parameters(), source.parameters(), strict=True):
        to.copy_(parameter.to(torch.bfloat16))


def prediction_loss(model: PreTrainedModel, window: Tensor) -> Tensor:
    """Returns the nats per token of `window`, int64 [B, T + 1], plus the routers' balancing loss, if any."""
    balance = getattr(model, "router_aux_loss_coef", 0.0)
    wanted = {"output_router_logits": True} if balance else {}
    output = model(input_ids=window[:, :-1], use_cache=False, **wanted)
    nats = F.cross_entropy(output.logits.float().flatten(0, 1), window[:, 1:].flatten())
    return nats + balance * output.aux_loss if balance else nats


def fit(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    split: Split,
    windows: Windows,
    recipe: Recipe,
    *,
    steps: int | None,
    max_seconds: float,
) -> dict[str, float]:
    """Trains `model`, and leaves the weights with the lowest validation loss in it, rounded to bfloat16.

    Args:
        model: Fresh weights, on the device to train on.
        tokenizer: The model's tokenizer.
        split: The documents.
        windows: The training windows.
        recipe: Sizes and rates.
        steps: Optimizer steps; None for `recipe.epochs` epochs.
        max_seconds: A time limit; the schedule is shortened to keep it.

    Returns:
        Figures of the run, by name.
    """
    trained, candidate = copy.deepcopy(model), model
    add_dropout(trained, recipe.dropout)
    chosen = optimizers(trained, recipe)
    per_epoch = len(windows.tokens) / (recipe.batch_size * recipe.sequence_length)
    total = steps if steps is not None else round(recipe.epochs * per_epoch)
    best_bits, best_step, best = math.inf, 0, copy.deepcopy(model)
    begin = time.monotonic()
    step, progress, evaluated = 0, 0.0, 0.0
    while progress < 1.0:
        factor = min(1.0, progress / recipe.warmup + 1e-3, (1.0 + math.cos(math.pi * progress)) / 2 + 1e-2)
        for optimizer in chosen:
            for group in optimizer.param_groups:
                group["lr"] = recipe.learning_rate * factor
        trained.train()
        window = windows.draw(recipe.batch_size, recipe.sequence_length + 1).to(model.device)
        loss = prediction_loss(trained, window)
        take_step(loss, trained, chosen)
        step += 1
        seconds = time.monotonic() - begin
        progress = max(step / total, seconds / max_seconds)
        if progress >= min(1.0, evaluated + 1 / recipe.evaluations):
            evaluated = progress
            copy_rounded(trained, candidate)
            bits = bits_per_byte(candidate, tokenizer, split.validation)
            if bits < best_bits:
                best_bits, best_step = bits, step
                copy_rounded(candidate, best)
            print(
                f"step {step}/{total}, epoch {step / per_epoch:.1f}, {seconds:.0f} s: "
                f"train loss {loss.item():.3f}, "
                f"validation {bits:.4f} bits a byte (best {best_bits:.4f} at step {best_step})",
                flush=True,
            )
    copy_rounded(best, model)
    return {
        "train_tokens": len(windows.tokens),
        "steps": step,
        "best_step": best_step,
        "fit_seconds": round(time.monotonic() - begin, 1),
        "fit_validation_bits_per_byte": round(best_bits, 4),
    }


def repeats(ids: Tensor, width: int) -> Tensor:
    """Marks the last tokens of n-grams that occurred earlier in the same sequence.

    Args:
        ids: The tokens, int64 [B, T].
        width: Tokens in an n-gram.

    Returns:
        bool [B, T].
    """
    grams = ids.unfold(1, width, 1)
    again = (grams[:, :, None] == grams[:, None]).all(-1).tril(-1).any(-1)
    return F.pad(again, (width - 1, 0))


def unlearn_repeats(
    model: PreTrainedModel, windows: Windows, recipe: Recipe
) -> Iterator[tuple[int, float, float]]:
    """Teaches `model` not to repeat itself in greedy decoding.

    This is the sequence-level unlikelihood training of Welleck et al., "Neural text generation with
    unlikelihood training", 2019. Each round continues text from the book greedily, and lowers the probability
    of each token that completes a repeated 4-gram or ends the text. The loss of each round includes the
    prediction loss on windows of the book.

    Args:
        model: The model. Its weights are replaced after the last round, rounded to bfloat16.
        windows: Text to continue and to train on.
        recipe: Rounds, sequences per round, rate.

    Yields:
        Each round's number, the share of generated tokens that completed a repeat, and the share of texts
        that ended.
    """
    tuned = copy.deepcopy(model)
    add_dropout(tuned, recipe.dropout)
    optimizer = torch.optim.AdamW(tuned.parameters(), betas=(0.9, 0.98), weight_decay=0.0)
    for turn in range(recipe.repeat_rounds):
        optimizer.param_groups[0]["lr"] = recipe.repeat_learning_rate * (1 - turn / recipe.repeat_rounds)
        given = 1 + turn % 24
        prefix = windows.draw(recipe.repeat_batch, given).to(model.device)
        tuned.eval()
        ids = tuned.generate(
            prefix, attention_mask=torch.ones_like(prefix), max_new_tokens=128, do_sample=False
        )
        ended = ids[:, given:] == tuned.config.eos_token_id
        repeated = repeats(ids, 4)[:, given:] & (ended.cumsum(1) == 0)
        logits = tuned(input_ids=ids[:, :-1], use_cache=False).logits[:, given - 1 :].float()
        chance = logits.log_softmax(-1).gather(-1, ids[:, given:, None]).squeeze(-1).exp()
        unlikelihood = -(torch.log1p(-chance.clamp(max=1 - 1e-6)) * (repeated | ended)).mean()
        tuned.train()
        window = windows.draw(recipe.batch_size, recipe.sequence_length + 1).to(model.device)
        take_step(prediction_loss(tuned, window) + 4 * unlikelihood, tuned, [optimizer])
        yield turn, repeated.float().mean().item(), ended.any(1).float().mean().item()
    copy_rounded(tuned, model)


@torch.no_grad()
def sample(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> Iterator[str]:
    """Yields each prompt with its greedy continuation."""
    for prompt in PROMPTS:
        ids = tokenizer(prompt, return_tensors="pt").input_ids.to(model.device)
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=96, do_sample=False)
        yield tokenizer.decode(out[0], skip_special_tokens=True)


def main() -> None:
    """Trains with the command line's options, and writes the checkpoint folder."""
    parser = argparse.ArgumentParser(description="Train a small checkpoint on a plain text file.")
    parser.add_argument("text", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--shape", choices=SHAPES.keys() - {"draft"}, default="qwen3_next")
    parser.add_argument("--steps", type=int, help="optimizer steps, instead of --epochs")
    parser.add_argument(
        "--max-seconds",
        type=float,
        default=280.0,
        help="time limit of the training that precedes the repeat rounds",
    )
    for name, default in asdict(Recipe()).items():
        parser.add_argument("--" + name.replace("_", "-"), type=type(default), default=default)
    options = vars(parser.parse_args())
    text: Path = options.pop("text")
    output: Path = options.pop("output")
    shape: str = options.pop("shape")
    steps: int | None = options.pop("steps")
    max_seconds: float = options.pop("max_seconds")
    recipe = Recipe(**options)

    torch.manual_seed(recipe.seed)
    torch.set_float32_matmul_precision("high")
    if DEVICE.type == "cpu":
        # Chunks of 16 tokens are four times as fast as transformers' 64, with the same results.
        scan = modeling_kimi_linear.chunk_kimi_delta_attention
        modeling_kimi_linear.chunk_kimi_delta_attention = partial(scan, chunk_size=16)
    split = split_documents(text.read_text(encoding="utf-8"))
    tokenizer = train_tokenizer(split.train, recipe.vocab_size)
    model = AutoModelForCausalLM.from_config(config_of(shape, tokenizer)).to(DEVICE)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"{parameters} parameters, {len(tokenizer)} tokens, on {DEVICE}", flush=True)

    windows = Windows(split.train, tokenizer, recipe)
    figures = fit(model, tokenizer, split, windows, recipe, steps=steps, max_seconds=max_seconds)
    for turn, repeated, ended in unlearn_repeats(model, windows, recipe):
        print(
            f"round {turn + 1}: {repeated:.3f} of greedy tokens repeat, {ended:.2f} of texts end", flush=True
        )
    for name, documents in (("validation", split.validation), ("test", split.test)):
        figures[f"{name}_bits_per_byte"] = round(bits_per_byte(model, tokenizer, documents), 4)
    model.to(torch.bfloat16).save_pretrained(output)
    tokenizer.save_pretrained(output)
    sizes = {name: sum(len(d.encode()) for d in documents) for name, documents in vars(split).items()}
    record = {
        "shape": shape,
        "parameters": parameters,
        "recipe": asdict(recipe),
        "bytes": sizes,
        "figures": figures,
    }
    (output / "training.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(record))
    for line in sample(model.to(torch.float32), tokenizer):
        print("---\n" + line, flush=True)


if __name__ == "__main__":
    main()
