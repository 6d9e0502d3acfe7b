"""A tiny random Qwen3-Next checkpoint, made by transformers itself, and engines that run it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import switchrail
import torch
from switchrail.engine import Engine, Output, SamplingParams
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3NextConfig, Qwen3NextForCausalLM

from tests.sizes import GATED_DELTA

CONFIG: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "full_attention"],
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    **GATED_DELTA,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "decoder_sparse_step": 2,
    "max_position_embeddings": 1024,
    "bos_token_id": None,
    "eos_token_id": 256,
    "pad_token_id": 256,
    "dtype": "float32",
}


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer with one token per byte (ids 0 to 255, in byte-level order), an end token, and two
    merges."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: i for i, letter in enumerate(alphabet)} | {"<end>": 256, "th": 257, "the": 258}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[("t", "h"), ("th", "e")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>")


def make_checkpoint(folder: Path, seed: int = 0, **changes: object) -> Path:
    """Save a model with random weights (large enough for distinct logits) and its tokenizer."""
    torch.manual_seed(seed)
    config = Qwen3NextConfig(**(CONFIG | changes))
    model = Qwen3NextForCausalLM(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1:
                weight.normal_(0, 0.5 if "conv1d" in name else weight.shape[-1] ** -0.5)
            elif "norm" in name:
                weight.add_(torch.randn_like(weight) * 0.1)
            elif name.endswith("A_log"):  # the layers remember from a few tokens to a few hundred
                weight.copy_(torch.linspace(-5, 0, weight.numel()))
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device; torch sees none")


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def small_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint with one layer of each kind, for test files whose fixture `checkpoint` returns it."""
    changes = {"num_hidden_layers": 2, "layer_types": CONFIG["layer_types"][:2]}
    return make_checkpoint(tmp_path_factory.mktemp("small"), **changes)


@pytest.fixture(scope="session")
def odd_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint with its first three layers, of which the first and the last are linear."""
    changes = {"num_hidden_layers": 3, "layer_types": CONFIG["layer_types"][:3]}
    return make_checkpoint(tmp_path_factory.mktemp("odd"), **changes)


@pytest.fixture
def make_engine(checkpoint: Path) -> Iterator[Callable[..., Engine]]:
    """Make engines of the tiny checkpoint on a runtime of its own, and close them after the test."""
    with ExitStack() as stack:

        def make(
            path: Path = checkpoint, *, runtime: Any = None, device: Any = "cpu", **arguments: Any
        ) -> Engine:
            runtime = runtime or switchrail.Runtime()
            return stack.enter_context(Engine(path, runtime=runtime, device=device, **arguments))

        yield make


class Plain:
    """Stands in for an engine with the given options, and runs equal requests only once."""

    def __init__(self, checkpoint: Path, options: Mapping[str, Any], known: dict[str, list[Output]]) -> None:
        self._checkpoint = checkpoint
        self._options = options
        self._known = known

    def generate(
        self, prompts: Sequence[Any], params: SamplingParams | Sequence[SamplingParams]
    ) -> list[Output]:
        key = repr((self._checkpoint, self._options, prompts, params))
        if key not in self._known:
            runtime = switchrail.Runtime()
            with Engine(self._checkpoint, runtime=runtime, device="cpu", options=self._options) as engine:
                self._known[key] = engine.generate(prompts, params)
        return list(self._known[key])


@pytest.fixture(scope="session")
def known_outputs() -> dict[str, list[Output]]:
    return {}


@pytest.fixture
def plain_engine(
    checkpoint: Path, known_outputs: dict[str, list[Output]]
) -> Callable[[Mapping[str, Any]], Plain]:
    """Make an engine whose outputs other engines' outputs are compared with."""
    return lambda options: Plain(checkpoint, options, known_outputs)
