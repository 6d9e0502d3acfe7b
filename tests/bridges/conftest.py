"""Small transformers models, and their results without Switchrail."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from switchrail import Runtime
from switchrail.engine.checkpoint import read_config
from switchrail.testing import isolated
from transformers import AutoModelForCausalLM

from tests.families.made import make

KJV = Path(__file__).parents[1] / "checkpoints" / "kjv-qwen3-next"
NEW_TOKENS = 20
TIE = 0.1
"""If the two largest logits are nearer than this, rounding may choose either token."""

END: dict[str, Any] = {"do_sample": False, "eos_token_id": None, "pad_token_id": 256}


@dataclass
class Small:
    """A small model of one family."""

    model_type: str
    model: Any
    prompts: list[list[int]]
    _alone: dict[int, list[tuple[list[int], list[float]]]] = field(default_factory=dict)

    def alone(self, new_tokens: int = NEW_TOKENS) -> list[tuple[list[int], list[float]]]:
        """For each prompt, transformers' greedy tokens, and for each token the distance between the two
        largest logits."""
        if new_tokens not in self._alone:
            self._alone[new_tokens] = [self._run(prompt, new_tokens) for prompt in self.prompts]
        return self._alone[new_tokens]

    def _run(self, prompt: list[int], new_tokens: int) -> tuple[list[int], list[float]]:
        out = self.model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=new_tokens,
            output_logits=True,
            return_dict_in_generate=True,
            **END,
        )
        best = torch.cat(out.logits).topk(2).values
        return out.sequences[0, len(prompt) :].tolist(), (best[:, 0] - best[:, 1]).tolist()

    def padded(self, side: str = "left") -> dict[str, torch.Tensor]:
        """The prompts as a padded batch, with its attention mask."""
        width = max(map(len, self.prompts))
        ids, mask = [], []
        for prompt in self.prompts:
            padding = [256] * (width - len(prompt))
            real = [1] * len(prompt)
            none = [0] * len(padding)
            ids.append(padding + prompt if side == "left" else prompt + padding)
            mask.append(none + real if side == "left" else real + none)
        return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}

    def generate(self, new_tokens: int = NEW_TOKENS, **options: Any) -> list[list[int]]:
        """The new tokens of all prompts in a padded batch."""
        inputs = self.padded()
        out = self.model.generate(**inputs, max_new_tokens=new_tokens, **{**END, **options})
        return out[:, inputs["input_ids"].shape[1] :].tolist()


def compare(found: list[list[int]], expected: list[tuple[list[int], list[float]]]) -> None:
    """Check that greedy tokens are equal up to a near tie, where rounding may choose either token. At most a
    tenth of the tokens may come after such a tie."""
    compared = total = 0
    for tokens, (own, margins) in zip(found, expected, strict=True):
        total += len(own)
        for token, other, margin in zip(tokens, own, margins, strict=True):
            if token != other:
                assert margin < TIE, (tokens, own, margins)
                break
            compared += 1
    assert compared >= 0.9 * total


@pytest.fixture(scope="session")
def small_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Small]:
    found: dict[str, Small] = {}

    def get(model_type: str) -> Small:
        if model_type not in found:
            draw = random.Random(0)
            prompts = [[draw.randrange(256) for _ in range(length)] for length in (5, 21, 1)]
            path = KJV
            if model_type == "qwen3_next":
                prompts = [list(text) for text in (b"And God ", b"In the beginning ", b"Now the sons of ")]
            else:
                path = make(model_type, tmp_path_factory.mktemp(model_type))
            _, family = read_config(path)
            model = AutoModelForCausalLM.from_pretrained(
                path, config=family.config_class().from_pretrained(path), dtype=torch.float32
            )
            found[model_type] = Small(model_type, model.eval(), prompts)
        return found[model_type]

    return get


@pytest.fixture(autouse=True)
def runtime() -> Iterator[Runtime]:
    """The default runtime of a test, with the installed plugins."""
    with isolated() as found:
        found.load()
        yield found


@pytest.fixture
def small(small_of: Callable[[str], Small]) -> Small:
    """The trained Qwen3-Next model."""
    return small_of("qwen3_next")
