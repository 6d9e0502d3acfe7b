"""Compiled decoder layers, compared with eager ones."""

from __future__ import annotations

import functools
import gc
import json
import os
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import switchrail
import torch
from switchrail.engine import Engine
from switchrail.engine.compiled.functions import FUNCTIONS as OPERATIONS
from switchrail.errors import ConfigError
from switchrail.hooks import chain
from switchrail.platforms.cpu import CpuPlatform, CpuServing
from switchrail.platforms.cuda import CudaServing
from switchrail.platforms.operations import QKNormRope
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextDecoderLayer

from tests.engine.conftest import make_checkpoint
from tests.engine.test_graphs import OPTIONS, make_prompts, tokens
from tests.families.made import make
from tests.leftovers import ROOT
from tests.processes import Helper

Make = Callable[..., Engine]
MODULE = "transformers.models.qwen3_next.modeling_qwen3_next"
KINDS = ["linear_attention", "full_attention"]
ONE = [[7]]
"""A prompt of one token: all its steps have one row, so each kind of layer is compiled only once."""


class Platform(CpuPlatform):
    """A platform that compiles with a given backend of torch.compile and counts compilations."""

    def __init__(self, backend: str = "eager", eager: tuple[str, ...] = ()) -> None:
        class Serving(CpuServing):
            def compile_backend(self) -> Any:
                return compile_with

            def compiles(serving, kind: str, *, fused: bool) -> bool:
                self.fused[kind] = fused
                return kind not in eager

        def compile_with(graph: Any, inputs: Any) -> Any:
            self.compiled += 1
            return torch._dynamo.lookup_backend(backend)(graph, inputs)

        self.serving_class = Serving  # type: ignore[misc]
        super().__init__()
        self.compiled = 0
        self.fused: dict[str, bool] = {}


@pytest.fixture(scope="module")
def two_layers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with one layer of each kind, without experts."""
    return make_checkpoint(
        tmp_path_factory.mktemp("two"), num_hidden_layers=2, layer_types=KINDS, num_experts=0
    )


@pytest.fixture(scope="module")
def one_kind(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with two layers of one kind, for tests that compile often. Each kind takes a second."""
    return make_checkpoint(
        tmp_path_factory.mktemp("one"), num_hidden_layers=2, layer_types=KINDS[:1] * 2, num_experts=0
    )


@pytest.fixture
def compiled(make_engine: Make, two_layers: Path) -> Iterator[Make]:
    def make(platform: Platform | None = None, path: Path = two_layers, **options: Any) -> Engine:
        options = {**OPTIONS, "compile": "blocks", **options}
        return make_engine(path, device=platform or Platform(), options=options)

    yield make
    torch.compiler.reset()


@pytest.fixture
def few_compilations() -> Iterator[None]:
    """Let torch compile a function at most twice, instead of eight times."""
    with torch._dynamo.config.patch(recompile_limit=2):
        yield


def reasons(engine: Engine) -> dict[str, str | None]:
    return {state.kind: state.reason for state in engine.blocks}


def test_each_kind_is_compiled_twice_whatever_the_number_of_layers(compiled: Make, tmp_path: Path) -> None:
    """A kind of layer is compiled once for one row, and once for any other number of rows."""
    layers = 48
    path = make_checkpoint(
        tmp_path,
        num_hidden_layers=layers,
        layer_types=[KINDS[layer % 4 == 3] for layer in range(layers)],
        decoder_sparse_step=1,
    )
    platform = Platform()
    engine = compiled(platform, path)
    prompts = make_prompts()[:4]
    expected = tokens(compiled(path=path, compile="off"), prompts, 3)
    assert tokens(engine, prompts, 3) == expected
    assert tokens(engine, prompts[:1], 3) == expected[:1]
    assert platform.compiled == 4
    assert reasons(engine) == {"gated_delta": None, "full_attention": None}
    ids = {state.kind: state.layers for state in engine.blocks}
    assert ids["full_attention"] == tuple(range(3, layers, 4))
    assert sorted(sum(ids.values(), ())) == list(range(layers))


@pytest.mark.usefixtures("few_compilations")
def test_numbers_of_layers_do_not_exhaust_compilations(compiled: Make, tmp_path: Path) -> None:
    """In Zamba2, a layer gets its number as an argument, and torch compiles it again for each number."""
    path = make("zamba2", tmp_path, layers_block_type=["mamba", "hybrid"] * 4, num_mem_blocks=1)
    engine = compiled(path=path)
    expected = tokens(compiled(path=path, compile="off"), ONE, 3)
    assert tokens(engine, ONE, 3) == expected
    assert reasons(engine) == {"mamba2": None, "hybrid": None}
    assert sum(len(state.layers) for state in engine.blocks if state.kind == "hybrid") == 4


@pytest.mark.parametrize(("family", "kinds"), [("kimi_linear", 3), ("falcon_h1", 1)])
def test_other_families(compiled: Make, tmp_path: Path, family: str, kinds: int) -> None:
    """Compiled layers with latents, KDA, a scan or a convolution compute the same tokens."""
    path = make(family, tmp_path)
    platform = Platform()
    engine = compiled(platform, path)
    assert tokens(engine, ONE, 4) == tokens(compiled(path=path, compile="off"), ONE, 4)
    assert set(reasons(engine).values()) == {None}
    assert platform.compiled == len(engine.blocks) == kinds


def most_allocated(work: Callable[[], object]) -> int:
    """The most bytes that one operation of `work` allocated."""
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        work()
    return max(event.self_cpu_memory_usage for event in profile.events())


def check_memory(engine: Engine) -> None:
    assert set(reasons(engine).values()) == {None}
    smallest = min(pool.nbytes for pool in engine.pools.tensors())
    assert most_allocated(lambda: engine.pools.tensors()[0].clone()) >= smallest
    assert 0 < most_allocated(lambda: tokens(engine, ONE)) < smallest


def test_tokens_are_those_of_eager_layers_and_no_pool_is_copied(compiled: Make, checkpoint: Path) -> None:
    """Compiled layers compute the same tokens as eager layers, and allocate no memory as large as a pool.

    Batches are ragged, pools are filled with NaN, and requests come and go.
    """
    prompts = make_prompts() * 2
    expected = tokens(compiled(path=checkpoint, compile="off"), prompts)
    engine = compiled(Platform("aot_eager"), checkpoint)
    for tensor in engine.pools.tensors():
        tensor.fill_(float("nan"))
    assert tokens(engine, prompts) == expected
    check_memory(engine)


LARGE = {"max_sequences": 64, "num_pages": 200}
"""Options that make each pool larger than any tensor that Inductor's code needs for a step with one row."""

INDUCTOR = """
import json, sys
import torch
from switchrail.engine import Engine
from tests.engine.test_compiled import LARGE, ONE, OPTIONS, check_memory, tokens
from tests.forking import forked
from torch._dynamo.utils import counters
from torch._inductor import config
config.compile_threads = 1
config.cpp.vec_isa_ok = False  # skips compilations that only test for vector instructions
torch.compile(torch.mm)(torch.ones(2, 2), torch.ones(2, 2))  # Inductor prepares itself for both runs

def run():
    counters.clear()
    engine = Engine(sys.argv[1], device="cpu", options={**OPTIONS, **LARGE, "compile": "blocks"})
    found = tokens(engine, ONE)
    check_memory(engine)
    used = [counters["inductor"][f"fxgraph_cache_{what}"] for what in ("miss", "hit")]
    print(json.dumps([found, *used]), flush=True)

for _ in range(2):
    forked(run)()
"""


def test_inductor_copies_no_pool_and_caches_its_code_on_disk(
    compiled: Make, two_layers: Path, tmp_path: Path, processes: Helper
) -> None:
    """Compiled steps allocate no memory as large as a pool. A second process finds the compiled code on disk.

    Each run has its own process, since code that Inductor loads stays in the process.
    """
    env = os.environ | {
        "PYTHONPATH": str(ROOT),
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path),
        "SWITCHRAIL_PLUGINS": "",
    }
    expected = [list(each) for each in tokens(compiled(compile="off"), ONE)]
    done = processes.run(INDUCTOR, [two_layers], env=env)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert found == [[expected, 2, 0], [expected, 0, 2]]


def louder(result: Any, *args: Any, **kwargs: Any) -> Any:
    return result * -1.5


def louder_delta(result: Any, *args: Any, **kwargs: Any) -> Any:
    return result[0] * -1.5, None


FUNCTIONS = {
    "torch_chunk_gated_delta_rule": louder_delta,
    "Qwen3NextRMSNormGated.forward": louder,
    "Qwen3NextDecoderLayer.forward": louder,
}


def test_added_and_removed_hooks_discard_compiled_code(
    compiled: Make, make_engine: Make, one_kind: Path
) -> None:
    """A hook on a function, a submodule's method or a layer's forward runs in compiled layers.

    The hook may be added before the first step or later.
    """
    runtime = switchrail.Runtime()
    eager, engine = make_engine(one_kind, options=OPTIONS), compiled(path=one_kind)
    plain = tokens(eager, ONE, 4)
    for name, fn in FUNCTIONS.items():
        hook = runtime.hook(f"{MODULE}.{name}", fn, "after")
        changed = tokens(eager, ONE, 4)
        assert tokens(engine, ONE, 4) == changed != plain
        runtime.hooks.remove(hook)
        assert tokens(engine, ONE, 4) == plain
    assert set(reasons(engine).values()) == {None}


def test_a_torch_hook_on_one_layer_runs_for_that_layer_only(
    compiled: Make, make_engine: Make, one_kind: Path
) -> None:
    """A torch hook on a layer, or on a module in it, runs for that layer only. It may be added before the
    first step or later."""
    engines = [make_engine(one_kind, options=OPTIONS), compiled(path=one_kind)]
    plain = tokens(engines[0], ONE, 4)
    for name in ("layers.1.mlp", "layers.0.linear_attn.norm", "layers.1"):
        parts = [engine._runner.model.model.get_submodule(name) for engine in engines]
        handles = [part.register_forward_hook(lambda _, __, result: result * -1.5) for part in parts]
        changed, found = (tokens(engine, ONE, 4) for engine in engines)
        assert found == changed != plain
        for handle in handles:
            handle.remove()
        assert tokens(engines[1], ONE, 4) == plain
    assert set(reasons(engines[1]).values()) == {None}


def test_a_hook_that_cant_be_traced_leaves_its_kind_eager(
    compiled: Make, caplog: pytest.LogCaptureFixture
) -> None:
    runtime = switchrail.Runtime()
    plain = tokens(compiled(compile="off"), ONE, 4)
    engine = compiled()
    seen: list[float] = []

    def watching(result: Any, *args: Any, **kwargs: Any) -> Any:
        torch._dynamo.graph_break()
        seen.append(result[0].sum().item())
        return result

    hook = runtime.hook(f"{MODULE}.torch_chunk_gated_delta_rule", watching, "after")
    assert tokens(engine, ONE, 4) == plain
    assert len(seen) == 4
    found = reasons(engine)
    assert found["full_attention"] is None
    assert "watching" in str(found["gated_delta"])
    assert f"on {MODULE}.torch_chunk_gated_delta_rule" in str(found["gated_delta"])
    assert "gated_delta layers run eagerly" in caplog.text
    runtime.hooks.remove(hook)
    assert tokens(engine, ONE, 4) == plain
    assert set(reasons(engine).values()) == {None}


def write_and_rotate(*args: Any, v: Any, cache: Any, **kwargs: Any) -> Any:
    """`qk_norm_rope`, which also writes keys and values to the cache."""
    q, k = OPERATIONS[QKNormRope](*args, **kwargs)
    for pool, values in zip(cache[:2], (k, v), strict=True):
        pool.flatten(0, 1).index_copy_(0, cache[2], values.squeeze(0))
    return q, k


def test_other_engines_do_not_use_up_torchs_limit_of_compilations(
    compiled: Make, one_kind: Path, few_compilations: None
) -> None:
    def make(**options: Any) -> Engine:
        platform = Platform()
        for operation, function in {**OPERATIONS, QKNormRope: write_and_rotate}.items():
            platform.serving.register_oot_forward(operation.name, function)
        return compiled(platform, one_kind, **options)

    engine = make()
    plain = tokens(engine, ONE, 2)
    other = make(compile="off")
    assert tokens(engine, ONE, 2) == plain
    other.close()
    assert tokens(engine, ONE, 2) == plain
    assert set(reasons(engine).values()) == {None}


def test_a_hook_that_recompiles_in_each_step_leaves_its_kind_eager(
    compiled: Make, one_kind: Path, few_compilations: None
) -> None:
    runtime = switchrail.Runtime()
    plain = tokens(compiled(path=one_kind, compile="off"), ONE, 5)
    engine = compiled(path=one_kind)
    calls = 0

    def counting(result: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        return result[0] * min(1, calls), None

    hook = runtime.hook(f"{MODULE}.torch_chunk_gated_delta_rule", counting, "after")
    assert tokens(engine, ONE, 5) == plain
    assert calls == 2 * 5
    assert "counting" in str(reasons(engine)["gated_delta"])
    runtime.hooks.remove(hook)


def test_a_backends_error_is_raised_unchanged(
    compiled: Make, one_kind: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = compiled(path=one_kind)
    plain = tokens(engine, ONE, 4)

    def broken(call: Any) -> None:
        raise RuntimeError("no more")

    with monkeypatch.context() as patch:
        patch.setattr(engine._runner.dispatcher, "dispatch", broken)
        with pytest.raises(RuntimeError, match="no more"):
            engine.generate(ONE)
    assert tokens(engine, ONE, 4) == plain
    assert set(reasons(engine).values()) == {None}


def test_a_kind_is_eager_where_the_platform_says_so_or_compiling_fails(compiled: Make) -> None:
    platform = Platform(eager=("full_attention",))
    engine = compiled(platform)
    plain = tokens(engine, ONE, 4)
    assert reasons(engine) == {"gated_delta": None, "full_attention": "the platform leaves this kind eager"}
    assert platform.compiled == 1
    assert platform.fused == {"gated_delta": False, "full_attention": False}
    assert CudaServing(platform.hardware).compiles("gated_delta", fused=False)
    assert not CudaServing(platform.hardware).compiles("gated_delta", fused=True)
    engine = compiled(Platform("no_such_backend"))
    assert tokens(engine, ONE, 4) == plain
    assert all("no_such_backend" in str(reason) for reason in reasons(engine).values())


@pytest.mark.usefixtures("small_heap")
def test_a_closed_engine_frees_its_weights_and_pools(compiled: Make) -> None:
    engine = compiled()
    tokens(engine, ONE, 3)
    held = [weakref.ref(tensor) for tensor in engine.pools.tensors()]
    held += [weakref.ref(weight) for weight in engine._runner.model.parameters()]
    engine.close()
    gc.collect()
    assert [tensor() for tensor in held if tensor() is not None] == []


class OwnLayer(Qwen3NextDecoderLayer):
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return super().forward(*args, **kwargs)


def test_layers_of_a_class_from_another_module(
    compiled: Make, make_engine: Make, one_kind: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = tokens(make_engine(one_kind, options=OPTIONS), ONE)
    monkeypatch.setattr(f"{MODULE}.Qwen3NextDecoderLayer", OwnLayer)
    platform = Platform()
    engine = compiled(platform, one_kind)
    assert tokens(engine, ONE) == expected
    assert platform.compiled > 0


def test_no_hooks_remain_if_layers_cant_be_compiled(compiled: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> bool:
        raise RuntimeError("no answer")

    def running() -> list[Any]:
        return [one.running for one in chain.version().chains.values() if one.running]

    platform, before = Platform(), running()
    monkeypatch.setattr(type(platform.serving), "compiles", fail)
    with pytest.raises(RuntimeError, match="no answer"):
        compiled(platform)
    assert running() == before


def test_off_is_the_default(make_engine: Make) -> None:
    assert make_engine(options=OPTIONS).blocks == ()
    with pytest.raises(ConfigError, match="compile"):
        make_engine(options={"compile": "all"})


def test_compiled_layers_call_torchs_functions(compiled: Make, make_engine: Make, two_layers: Path) -> None:
    """Eager layers call the platform's functions; compiled layers call torch's own instead."""
    calls: Counter[str] = Counter()

    def counting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            calls[name] += 1
            return function(*args, **kwargs)

        functools.update_wrapper(counted, function)
        return counted

    platform = Platform("aot_eager")
    for operation, function in {**OPERATIONS, QKNormRope: write_and_rotate}.items():
        platform.serving.register_oot_forward(operation.name, counting(operation.name, function))
    prompts = make_prompts()[:4]
    expected = tokens(make_engine(two_layers, options=OPTIONS), prompts)
    assert tokens(compiled(platform, two_layers, compile="off"), prompts) == expected
    assert set(calls) == {operation.name for operation in OPERATIONS}
    calls.clear()
    engine = compiled(platform, two_layers)
    assert tokens(engine, prompts) == expected
    assert set(reasons(engine).values()) == {None}
    assert platform.compiled == 4
    assert platform.fused == {"gated_delta": True, "full_attention": True}
    assert set(calls) == {"rms_norm"}, (
        "only the model's last norm, which is in no layer, must call the platform's"
    )
