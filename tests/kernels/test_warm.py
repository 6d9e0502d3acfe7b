"""The warm-up launches every kernel with every specialization that later requests can need."""

from __future__ import annotations

import inspect
import random
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton")


import switchrail_kernels
from switchrail import Engine, SamplingParams
from switchrail.engine.options import EngineOptions
from switchrail.engine.warmup import rounds, warm_up
from switchrail.ops.batch import StateBatch
from switchrail.platforms import CpuPlatform
from switchrail.platforms.operations import ChooseTokens
from switchrail.testing import isolated
from switchrail_kernels.delta import scan
from switchrail_kernels.delta.solve import CHUNK
from switchrail_kernels.launch import ALIGNMENT, Launcher, _specialization
from switchrail_kernels.segments import Chunks
from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

from tests.engine.test_graphs import GraphPlatform

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
    """Registers Triton kernels with the claim that they serve CPU tensors."""

    def __init__(self, registry):
        self.registry = registry

    def register(self, name, path, **claims):
        if name == "triton":
            own = {"devices": ("cpu",), "dtypes": ("bfloat16",), "priority": 1000}
            self.registry.register(name, path, **{**claims, **own})

    def operation(self, name, path, **claims):
        self.registry.operation(name, path, devices=("cpu",))


@cache
def parameters(function):
    """The names of a kernel's parameters."""
    return list(inspect.signature(function).parameters)


def unspecialized(kernel):
    """The parameters that a kernel is not specialized for: first by value, then by alignment."""
    if hasattr(kernel, "kwargs"):  # the kernel is interpreted
        found = [kernel.kwargs[name] for name in ("do_not_specialize", "do_not_specialize_on_alignment")]
        return [set(names or ()) for names in found]
    return [
        {one.name for one in kernel.params if getattr(one, name)}
        for name in ("do_not_specialize", "do_not_specialize_on_alignment")
    ]


@pytest.fixture
def forms(monkeypatch):
    """The specializations for which kernels would be compiled. The kernels don't run, so their results are
    uninitialized."""
    found = set()

    def launch(self, grid, tensors, numbers, constants, *, num_warps, num_stages=1, **options):
        kernel = self._kernel
        names = parameters(kernel.fn)
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


@pytest.fixture(params=[CpuPlatform, GraphPlatform], ids=["eager", "captured"])
def engine(request, forms, tmp_path):
    torch.manual_seed(0)
    Qwen3NextForCausalLM(Qwen3NextConfig(**SIZES)).save_pretrained(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((TOKENIZER / name).read_bytes())
    with isolated() as runtime:
        with runtime.transaction() as transaction:
            switchrail_kernels.register(OnCpu(transaction))
        platform = request.param()
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


@dataclass(frozen=True)
class Limits:
    """The parts of an engine on which the warm-up's rounds depend."""

    options: EngineOptions
    max_length: int = 8256
    pools = SimpleNamespace(pages=SimpleNamespace(capacity=1 << 20))


def steps(lengths, rows):
    """The rows of each prompt in the steps that run prompts of these lengths."""
    left = list(lengths)
    while any(left):
        free, step = rows, []
        for i, length in enumerate(left):
            step.append(min(length, free))
            left[i] -= step[-1]
            free -= step[-1]
        yield [count for count in step if count]


def batch_of(seqlens, offset):
    """A batch of sequences of these lengths, whose tables begin `offset` entries after an aligned address."""
    count = len(seqlens)
    slots = torch.zeros(count + offset, dtype=torch.int64)[offset:]
    return StateBatch(
        cu_seqlens=torch.zeros(count + 1 + offset, dtype=torch.int32)[offset:], seqlens=tuple(seqlens),
        read_slots=slots, write_slots=slots,
        has_initial_state=torch.zeros(count + offset, dtype=torch.bool)[offset:],
    )  # fmt: skip


SCANS = [
    (
        ("gated_delta", "kda")[(i + j) % 2],
        value_heads,
        sequences,
        (2048, 8192)[(i // 2 + j) % 2],
    )
    for i, value_heads in enumerate((8, 16, 32, 64))
    for j, sequences in enumerate((16, 64, 256))
]
"""Each combination of values of two of the parameters op, value heads, sequences and rows is in a case."""


@pytest.mark.parametrize(("op", "value_heads", "sequences", "rows"), SCANS)
def test_every_scan_of_a_hopper_is_compiled_in_the_warm_up(
    op, value_heads, sequences, rows, forms, monkeypatch
):
    monkeypatch.setattr(scan, "compute_capability", lambda device: (9, 0))
    size, empty = 128, partial(torch.empty, dtype=torch.bfloat16)
    q, v = empty(rows, value_heads // 2, size), empty(rows, value_heads, size)
    state = torch.empty(1, value_heads, size, size)
    call = SimpleNamespace(v=v, out=v, layer=SimpleNamespace(state=state))
    prepared = scan.Prepared(q, q, q, q, q, torch.empty(1, 4 * CHUNK.value))

    def run(seqlens, offset=0):
        batch = batch_of(seqlens, offset)
        scan.scan(call, batch, Chunks.of(batch, CHUNK.value), prepared, channels=op == "kda")

    monkeypatch.setattr(scan, "scratch", lambda shape, dtype, device: torch.empty(1, dtype=dtype))
    options = EngineOptions(max_sequences=sequences, max_tokens_per_step=rows, page_size=16)
    for lengths in rounds(Limits(options)):
        for step in steps(lengths, rows):
            run(step)
    warm = set(forms)
    draw = random.Random(0)
    for _ in range(600):
        count = draw.randint(1, sequences)
        longest = max(1, int(draw.choice((0.1, 0.3, 0.6, 1, 1.5, 3)) * rows / count))
        least = draw.randint(1, longest)
        lengths = [draw.randint(least, longest) for _ in range(count)]
        run(next(steps([*lengths, *draw.choice(([], [1]))][-count:], rows)), draw.randint(0, 3))
    assert forms - warm == set()
    assert warm


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
