"""Steps captured in pieces: as several graphs, between which backends without graphs run.

On a CPU, a graph records torch's operations and calls them again.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import switchrail
import torch
from switchrail.engine import Engine, SamplingParams
from switchrail.engine.pieces import Pieces
from switchrail.ops.attention.torch import TorchAttention
from switchrail.ops.gated_delta.torch import TorchGatedDelta

from tests.engine.capturable import CAPTURABLE, PooledGraph
from tests.engine.test_graphs import (
    OPTIONS,
    GraphPlatform,
    Make,
    captured_runtime,
    count_replays,
    make_prompts,
    replay,
    tokens,
)

assert captured_runtime

DECODES = {**OPTIONS, "capture": "decode"}


@pytest.fixture(scope="session")
def checkpoint(small_checkpoint: Path) -> Path:
    return small_checkpoint


@pytest.fixture
def poisoned_memory() -> Iterator[None]:
    """Let torch fill uninitialized memory with NaN."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


def runtime_without(*ops: str) -> switchrail.Runtime:
    """A runtime with capturable backends for decode only, but none for the given ops."""
    runtime = switchrail.Runtime()
    runtime.use_platform(GraphPlatform())
    for op, backend in CAPTURABLE.items():
        if op not in ops:
            runtime.register(
                "capturable", backend, op=op, phases=("decode",), features=("cuda_graph",), priority=-1
            )
    return runtime


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize(
    ("missing", "chosen", "word"),
    [
        ((), {"gated_delta.decode": "torch"}, "chosen for gated_delta.decode"),
        ((), {"short_conv": "torch", "gated_delta": "torch"}, "torch"),
        (("attention",), {}, "no backend for attention decode"),
        (tuple(CAPTURABLE), {}, "no backend for"),
    ],
)
def test_backends_without_graphs_run_between_pieces(
    make_engine: Make, plain_engine: Any, missing: tuple[str, ...], chosen: dict[str, str], word: str
) -> None:
    """Backends without graphs run between captured pieces, with ragged batches, padding and NaN in pools.

    Each run is repeated, so that stale data would show.
    """
    prompts = make_prompts()
    expected = tokens(plain_engine(OPTIONS), prompts)
    engine = make_engine(
        runtime=runtime_without(*missing), device=GraphPlatform(), options=DECODES, backends=chosen
    )
    for tensor in engine.pools.tensors():
        tensor.fill_(float("nan"))
    eager = {key.partition(".")[0] for key in chosen} | set(missing)
    for state in engine.graphs:
        assert state.reason is None
        assert set(state.eager) == {f"{op}.decode" for op in eager}
        for reason in state.eager.values():
            assert word in reason
            assert "cuda_graph" in reason
        expected_names = {f"{op}.decode": "torch" if op in eager else "capturable" for op in CAPTURABLE}
        assert state.backends == expected_names
    replay(engine, prompts, expected)


def test_a_backend_between_pieces_sees_no_padding(make_engine: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    run, seen = TorchGatedDelta.run, set()

    def told(self: Any, call: Any, batch: Any, plan: Any) -> Any:
        assert len(call.q) == sum(batch.seqlens)
        assert int(batch.read_slots.min()) > 0
        seen.add(len(batch.seqlens))
        return run(self, call, batch, plan)

    monkeypatch.setattr(TorchGatedDelta, "run", told)
    chosen = {"gated_delta": "torch"}
    engine = make_engine(runtime=runtime_without(), device=GraphPlatform(), options=DECODES, backends=chosen)
    tokens(engine, make_prompts()[:3])
    assert 3 in seen


def test_a_change_of_hooks_is_captured_in_pieces_too(make_engine: Make) -> None:
    runtime = runtime_without("attention")
    engine = make_engine(runtime=runtime, device=GraphPlatform(), options=OPTIONS)
    prompts = make_prompts(1)[:3]
    plain = tokens(engine, prompts)

    def louder(result: Any, *args: Any, **kwargs: Any) -> Any:
        return result * -1.5

    hook = runtime.hook(
        "transformers.models.qwen3_next.modeling_qwen3_next.Qwen3NextRMSNorm.forward", louder, "after"
    )
    assert plain != tokens(engine, prompts) == tokens(make_engine(options=OPTIONS), prompts)
    runtime.hooks.remove(hook)
    assert tokens(engine, prompts) == plain


@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_a_failure_between_pieces_ends_the_requests_of_its_step(
    make_engine: Make, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    run, fails = TorchAttention.run, []

    def broken(self: Any, call: Any, batch: Any, made: Any) -> Any:
        if fails and (max(batch.seqlens) == 1) == (phase == "decode"):
            raise RuntimeError("no room")
        return run(self, call, batch, made)

    monkeypatch.setattr(TorchAttention, "run", broken)
    engine = make_engine(runtime=runtime_without("attention"), device=GraphPlatform(), options=OPTIONS)
    prompt = make_prompts(4)[3]
    prompts = [prompt, prompt[::-1]]
    expected = tokens(engine, prompts)
    seen = count_replays(engine)
    fails.append(phase)
    with pytest.raises(RuntimeError, match="no room") as caught:
        engine.generate(prompts)
    fails.clear()
    assert caught.value.__notes__ == [f"backend torch failed in attention {phase} of layer 1"]
    assert seen[-1].kind == ("decode" if phase == "decode" else "mixed")
    assert not engine.busy
    assert tokens(engine, prompts) == expected


@pytest.mark.usefixtures("poisoned_memory")
def test_tokens_of_steps_with_prompts_are_those_of_eager_ones(
    make_engine: Make, captured_runtime: switchrail.Runtime
) -> None:
    """Steps with prompts, alone or with decodes, compute the tokens of eager steps.

    The steps have from one row to more than the largest key. Some prompts have several samples.
    """
    prompts = [*make_prompts(), *make_prompts(7)]
    options = {**OPTIONS, "max_tokens_per_step": 2100, "prefill_chunk": None, "max_length": 1024}
    plain = make_engine(options=options)
    engine = make_engine(runtime=captured_runtime, device=GraphPlatform(), options=options)
    for tensor in engine.pools.tensors():
        tensor.fill_(float("nan"))
    seen = count_replays(engine)
    for count in (2, 9):
        assert tokens(engine, prompts, count) == tokens(plain, prompts, count)
    forked = SamplingParams(n=3, temperature=1.0, seed=3, max_new_tokens=5, ignore_eos=True)
    for prompt in prompts[:3]:
        found, expected = (one.generate([prompt], forked) for one in (engine, plain))
        assert [output.tokens for output in found] == [output.tokens for output in expected]
    assert len({key.rows for key in seen if key.kind == "mixed"}) > 2
    replays = len(seen)
    long = [[number % 256 for number in range(start, start + 1010)] for start in (0, 3)]
    long += [prompts[3]]
    assert tokens(engine, long, 1) == tokens(plain, long, 1)
    assert len(seen) == replays, "a step with more rows than any key must run eagerly"


def test_padding_writes_to_no_page(make_engine: Make, captured_runtime: switchrail.Runtime) -> None:
    """Neither padding nor data of an earlier, larger step is written to a page."""
    engine = make_engine(runtime=captured_runtime, device=GraphPlatform(), options=OPTIONS)
    params = SamplingParams(max_new_tokens=1, ignore_eos=True)
    engine.generate(make_prompts()[3:6], params)
    for pool in engine.pools.kv.values():
        for tensor in pool.tensors():
            tensor.fill_(7)
    seen = count_replays(engine)
    engine.generate([[1, 2, 3]], params)
    assert [key.rows for key in seen] == [16]
    for pool in engine.pools.kv.values():
        for tensor in pool.tensors():
            written = (tensor != 7).flatten(2).any(-1)
            assert written[1:].sum() == 3


def test_mixed_steps_that_cant_be_captured_run_eagerly(
    make_engine: Make, captured_runtime: switchrail.Runtime
) -> None:
    """A mixed step that can't be captured runs eagerly, for example if a hook needs a value on the host."""

    def waits(result: Any, *args: Any, **kwargs: Any) -> Any:
        assert result.sum().item() is not None
        return result

    name = "transformers.models.qwen3_next.modeling_qwen3_next.Qwen3NextRMSNorm.forward"
    hook = captured_runtime.hook(name, waits, "after")
    engine = make_engine(runtime=captured_runtime, device=GraphPlatform(), options=OPTIONS)
    for state in engine.graphs:
        assert "needs values on the host" in str(state.reason)
        assert f"raised within the hook {__name__}." in str(state.reason)
        assert str(state.reason).endswith(f"waits on {name} by user")
    prompts = make_prompts()[:3]
    found = tokens(engine, prompts)
    captured_runtime.hooks.remove(hook)
    assert found == tokens(make_engine(options=OPTIONS), prompts) == tokens(engine, prompts)


def test_an_option_leaves_steps_with_prompts_eager(
    make_engine: Make, captured_runtime: switchrail.Runtime
) -> None:
    engine: Engine = make_engine(runtime=captured_runtime, device=GraphPlatform(), options=DECODES)
    assert {state.kind for state in engine.graphs} == {"decode"}


def test_shared_memory_lives_until_the_next_capture_has_begun() -> None:
    """While all steps are captured again, one earlier graph is kept until its memory is shared."""
    pieces = Pieces(PooledGraph, None)
    for _ in range(2):
        with pieces.capture():
            pass
        pieces = Pieces(PooledGraph, pieces.last)
