"""Families whose definitions call flash-linear-attention if it is installed.

The library's kernels don't run on CPU tensors, so a function that the engine did not hook would fail.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest
from safetensors.torch import load_file
from switchrail.engine.models.families import FAMILIES

from tests.families.conftest import LIMIT, Family, distance
from tests.families.made import CONFIGS
from tests.leftovers import ROOT

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("fla") is None, reason="flash-linear-attention is not installed"
)

FUNCTIONS = {
    "qwen3_5_text": "torch_chunk_gated_delta_rule",
    "qwen3_5_moe_text": "torch_chunk_gated_delta_rule",
    "olmo_hybrid": "torch_chunk_gated_delta_rule",
    "kimi_linear": "chunk_kimi_delta_attention",
    "bailing_hybrid": "chunk_kimi_delta_attention",
}
"""Model type -> a function of its module that calls flash-linear-attention."""

ORACLE = """
import json
import sys
sys.modules["fla"] = None  # transformers' own functions
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32).eval()
with torch.inference_mode():
    rows = [model(torch.tensor([one]), use_cache=False).logits[0] for one in json.loads(sys.argv[3])]
save_file({str(number): one for number, one in enumerate(rows)}, sys.argv[2])
"""


@pytest.mark.parametrize("model_type", [name for name in FUNCTIONS if name in CONFIGS])
def test_the_engine_does_not_call_flash_linear_attention(
    model_type: str, family_of: Callable[[str], Family], tmp_path: Path
) -> None:
    function = getattr(import_module(FAMILIES[model_type].module), FUNCTIONS[model_type])
    assert inspect.getclosurevars(function).nonlocals["is_new_implementation"]
    family = family_of(model_type)
    prompts = family.prompts((1, 7, 33, 70))
    runs = family.run(prompts, 8)
    sequences = [prompt + tokens[:-1] for prompt, (tokens, _) in zip(prompts, runs, strict=True)]
    file = tmp_path / "logits.safetensors"
    command = [sys.executable, "-c", ORACLE, str(family.path), str(file), json.dumps(sequences)]
    subprocess.run(command, cwd=ROOT, check=True)
    logits = load_file(file)
    expected = [logits[str(number)] for number in range(len(sequences))]
    assert distance([rows for _, rows in runs], expected) <= LIMIT
