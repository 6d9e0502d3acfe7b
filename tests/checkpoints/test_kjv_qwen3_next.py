from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from torch.nn import functional as F
from transformers import AutoTokenizer, PreTrainedTokenizerBase, Qwen3NextForCausalLM

FOLDER = Path(__file__).parent / "kjv-qwen3-next"
README = (FOLDER / "README.md").read_text(encoding="utf-8")
HELD_OUT = (FOLDER.parent / "held_out.txt").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(FOLDER)


@pytest.fixture(scope="module")
def model() -> Qwen3NextForCausalLM:
    model, info = Qwen3NextForCausalLM.from_pretrained(FOLDER, dtype=torch.float32, output_loading_info=True)
    assert not any(info.values()), info
    return model.eval()


def test_folder_fits_eight_mebibytes_and_holds_bfloat16() -> None:
    files = [path for path in FOLDER.rglob("*") if path.is_file()]
    assert len(files) >= 6
    head = FOLDER / "mtp.safetensors"
    assert sum(path.stat().st_size for path in files if path != head) <= 8 * 2**20
    assert head.stat().st_size <= 2**20
    with safe_open(FOLDER / "model.safetensors", "pt") as weights:
        dtypes = {weights.get_slice(name).get_dtype() for name in weights.keys()}  # noqa: SIM118 (no mapping)
    assert dtypes == {"BF16"}


def test_readme_states_the_figures_of_the_training_run(model: Qwen3NextForCausalLM) -> None:
    record = json.loads((FOLDER / "training.json").read_text(encoding="utf-8"))
    assert record["parameters"] == sum(parameter.numel() for parameter in model.parameters())
    assert f"{record['parameters']:,} parameters" in README
    assert f"**{record['figures']['test_bits_per_byte']:.3f} bits a byte**" in README


def test_both_kinds_of_layers_and_mlps_and_grouped_heads(model: Qwen3NextForCausalLM) -> None:
    config = model.config
    assert set(config.layer_types) == {"linear_attention", "full_attention"}
    assert config.linear_num_value_heads == 2 * config.linear_num_key_heads
    assert config.num_attention_heads > config.num_key_value_heads
    mlps = {type(layer.mlp).__name__ for layer in model.model.layers}
    assert mlps == {"Qwen3NextMLP", "Qwen3NextSparseMoeBlock"}


@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_tokenizer_gives_any_text_back(tokenizer: PreTrainedTokenizerBase, text: str) -> None:
    ids = tokenizer(text, split_special_tokens=True).input_ids
    assert tokenizer.decode(ids) == text


@torch.no_grad()
def test_bits_per_byte_of_three_held_out_chapters(
    model: Qwen3NextForCausalLM, tokenizer: PreTrainedTokenizerBase
) -> None:
    chapters = HELD_OUT.removesuffix("\n").split("\n\n")
    nats = 0.0
    for chapter in chapters:
        ids = torch.tensor([[0, *tokenizer(chapter).input_ids, 0]])
        logits = model(input_ids=ids[:, :-1], use_cache=False).logits[0]
        nats += F.cross_entropy(logits, ids[0, 1:], reduction="sum").item()
    size = sum(len(chapter.encode()) for chapter in chapters)
    assert len(chapters) == 3
    assert nats / math.log(2) / size == pytest.approx(1.0597, abs=1e-3)


@torch.no_grad()
def test_speaks_the_text_that_the_readme_shows(
    model: Qwen3NextForCausalLM, tokenizer: PreTrainedTokenizerBase
) -> None:
    shown = "\n".join(re.findall(r"^    (.+)$", README, flags=re.MULTILINE))
    prompt = "In the beginning"
    assert shown.startswith(prompt)
    ids = tokenizer(prompt, return_tensors="pt").input_ids
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=96, do_sample=False)[0]
    assert out[-1] == tokenizer.eos_token_id
    assert tokenizer.decode(out, skip_special_tokens=True) == shown
