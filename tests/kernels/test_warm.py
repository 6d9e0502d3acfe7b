"""The warm-up launches every kernel in every form that later requests can need."""

from __future__ import annotations

import inspect
import random
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")


import switchrail_kernels
from switchrail import Engine, SamplingParams
from switchrail.engine.warmup import warm_up
from switchrail.platforms import CpuPlatform
from switchrail.platforms.operations import ChooseTokens
from switchrail.testing import isolated
from switchrail_kernels.launch import ALIGNMENT, Launcher, _specialization
from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

TOKENIZER = Path(__file__).parents[1] / "checkpoints/kjv-qwen3-next"
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "linear_num_value_heads": 16,
    "linear_num_key_heads": 8,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "num_experts": 64,
    "num_experts_per_tok": 10,
    "num_hidden_layers": 4,
    "vocab_size": 3072,
    "eos_token_id": 0,
    "pad_token_id": 1,
}


class OnCpu:
    """Registers the Triton kernels for CPU tensors, without launching anything."""

    def __init__(self, registry):
        self.registry = registry

    def register(self, name, path, **claims):
        if name == "triton":
            own = {"devices": ("cpu",), "dtypes": ("bfloat16",), "priority": 1000}
            self.registry.register(name, path, **{**claims, **own})

    def operation(self, name, path, **claims):
        self.registry.operation(name, path, devices=("cpu",))


def unspecialized(kernel):
    """The parameters that a kernel is not specialized for: by value, and by alignment."""
    if hasattr(kernel, "kwargs"):  # the kernel is interpreted
        found = [kernel.kwargs[name] for name in ("do_not_specialize", "do_not_specialize_on_alignment")]
        return [set(names or ()) for names in found]
    return [
        {one.name for one in kernel.params if getattr(one, name)}
        for name in ("do_not_specialize", "do_not_specialize_on_alignment")
    ]


@pytest.fixture
def forms(monkeypatch):
    """The forms in which kernels would be compiled. The kernels don't run, so their results are
    uninitialized."""
    found = set()

    def launch(self, grid, tensors, numbers, constants, *, num_warps, num_stages=1, **options):
        kernel = self._kernel
        names = list(inspect.signature(kernel.fn).parameters)
        values = dict(zip(names[len(tensors) :], numbers, strict=False))
        free, anywhere = unspecialized(kernel)
        found.add(
            (
                f"{kernel.fn.__module__}.{kernel.fn.__name__}",
                *(num_warps, num_stages, *options.values(), *constants),
                *(_specialization(value) for name, value in values.items() if name not in free),
                *(tensor.dtype for tensor in tensors),
                *(
                    name in anywhere or tensor.data_ptr() % ALIGNMENT == 0
                    for name, tensor in zip(names, tensors, strict=False)
                ),
            )
        )

    monkeypatch.setattr(Launcher, "__call__", launch)
    return found


@pytest.fixture
def engine(tmp_path):
    torch.manual_seed(0)
    Qwen3NextForCausalLM(Qwen3NextConfig(**SIZES)).save_pretrained(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((TOKENIZER / name).read_bytes())
    with isolated() as runtime:
        with runtime.transaction() as transaction:
            switchrail_kernels.register(OnCpu(transaction))
        platform = CpuPlatform()
        platform.serving.register_oot_forward(
            ChooseTokens.name, lambda logits, params, draws: torch.zeros(len(params), dtype=torch.int64)
        )
        options = {"max_sequences": 48, "max_tokens_per_step": 1024, "max_length": 1100}
        with Engine(tmp_path, runtime=runtime, device=platform, dtype="bfloat16", options=options) as engine:
            yield engine


def test_nothing_is_left_to_compile_after_the_warm_up(engine, forms):
    for _ in warm_up(engine):
        pass
    warm = set(forms)
    assert len({name for name, *_ in warm}) >= 10
    draw = random.Random(0)
    waiting = [[2] * draw.randint(1, 1000) for _ in range(20)] + [
        [2] * draw.randint(1, 90) for _ in range(120)
    ]
    while waiting or engine.busy:
        for _ in range(draw.choice((0, 0, 1, 1, 2, 3, 9, 40))):
            if waiting:
                engine.submit(
                    waiting.pop(), SamplingParams(max_new_tokens=draw.randint(1, 9), ignore_eos=True)
                )
        engine.step()
    assert forms - warm == set()


def test_tokens_are_chosen_greedily_and_at_random_in_the_warm_up(tmp_path):
    seen = set()

    def choose(logits, params, draws):
        seen.update(one.temperature > 0 for one in params)
        return torch.zeros(len(params), dtype=torch.int64)

    torch.manual_seed(0)
    Qwen3NextForCausalLM(Qwen3NextConfig(**SIZES)).save_pretrained(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((TOKENIZER / name).read_bytes())
    platform = CpuPlatform()
    platform.serving.register_oot_forward(ChooseTokens.name, choose)
    options = {"max_sequences": 1, "max_tokens_per_step": 16, "max_length": 20}
    with (
        isolated() as runtime,
        Engine(tmp_path, runtime=runtime, device=platform, options=options) as engine,
    ):
        for _ in warm_up(engine):
            pass
    assert seen == {False, True}
