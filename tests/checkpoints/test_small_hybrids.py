"""The trained Kimi-Linear and Nemotron-H checkpoints, and the text that the engine generates with them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.families.conftest import Family

HERE = Path(__file__).parent
HELD_OUT = (HERE / "held_out.txt").read_text(encoding="utf-8").removesuffix("\n").split("\n\n")
PROMPTS = ("In the beginning", "And the king said", "Blessed are", "The")
BITS = {"kjv-kimi-linear": 1.4482, "kjv-nemotron-h": 1.3971}
"""Bits per byte of the text `HELD_OUT`, by checkpoint."""


@pytest.fixture(scope="module", params=BITS)
def family(request: pytest.FixtureRequest) -> Family:
    path = HERE / request.param
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
    return Family(model.config.model_type, path, model.eval())


def tokens_of(family: Family, text: str) -> list[int]:
    return list(AutoTokenizer.from_pretrained(family.path)(text).input_ids)


def test_the_folder_and_its_readme(family: Family) -> None:
    assert sum(file.stat().st_size for file in family.path.iterdir()) < 8 * 2**20
    with safe_open(family.path / "model.safetensors", "pt") as weights:
        names = weights.keys()
        dtypes = {weights.get_slice(name).get_dtype() for name in names}
    assert "BF16" in dtypes
    record = json.loads((family.path / "training.json").read_text(encoding="utf-8"))
    readme = (family.path / "README.md").read_text(encoding="utf-8")
    assert record["shape"] == family.model_type
    assert f"{record['parameters']:,} parameters" in readme
    assert f"**{record['figures']['test_bits_per_byte']:.3f} bits per byte**" in readme


@torch.no_grad()
def test_bits_per_byte_of_the_held_out_text(family: Family) -> None:
    nats = 0.0
    for chapter in HELD_OUT:
        ids = torch.tensor([[0, *tokens_of(family, chapter), 0]])
        logits = family.model(input_ids=ids[:, :-1], use_cache=False).logits[0]
        nats += F.cross_entropy(logits, ids[0, 1:], reduction="sum").item()
    size = sum(len(chapter.encode()) for chapter in HELD_OUT)
    assert nats / math.log(2) / size == pytest.approx(BITS[family.path.name], abs=1e-3)


@torch.no_grad()
def test_the_engine_generates_what_transformers_generates(family: Family) -> None:
    """The engine's greedy tokens are those of Transformers without a cache, and give the README's text."""
    prompts = [tokens_of(family, text) for text in PROMPTS]
    runs = family.run(prompts, 48)
    family.check(prompts, runs)
    tokenizer = AutoTokenizer.from_pretrained(family.path)
    readme = (family.path / "README.md").read_text(encoding="utf-8")
    shown = "\n".join(re.findall(r"^    (.+)$", readme, flags=re.MULTILINE))
    ids = torch.tensor([prompts[0]])
    expected = family.model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=48,
        min_new_tokens=48,
        do_sample=False,
        use_cache=False,
    )
    assert expected[0].tolist() == prompts[0] + runs[0][0]
    assert tokenizer.decode(expected[0]) == shown


@pytest.mark.parametrize("what", ["states", "windows"])
def test_zeroed_states_or_windows_change_the_text(family: Family, what: str) -> None:
    prompts = [tokens_of(family, chapter)[:100] for chapter in HELD_OUT]
    kept: list[int] = []

    def lost(pools: Any) -> Iterable[torch.Tensor]:
        tensors = list(getattr(pools.state, what).values())
        kept.append(len(tensors))
        return tensors

    runs, others = family.run(prompts, 48), family.run(prompts, 48, between=lost)
    assert kept[0] == 3
    changed = [one != other for (one, _), (other, _) in zip(runs, others, strict=True)]
    print(f"{family.path.name}, {what}: {changed}")
    assert any(changed)
