"""Captured and overlapped decodes on a GPU, compared with eager ones and with transformers in float32."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from switchrail.engine import Engine, SamplingParams
from switchrail_kernels.gated_delta.triton import TritonGatedDelta
from transformers import AutoModelForCausalLM

from tests.engine.test_parity import ieee_products, runtime_with_kernels

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("ieee_products")]

assert ieee_products

Make = Callable[..., Engine]
OPTIONS = {"max_sequences": 12, "max_length": 700}
LENGTHS = (1, 3, 17, 64, 65, 130, 300, 2, 40, 599)


def make_prompts(seed: int = 0) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(256) for _ in range(length)] for length in LENGTHS]


def make_params(count: int) -> list[SamplingParams]:
    draw = random.Random(1)
    return [
        SamplingParams(
            max_new_tokens=draw.randint(4, 40),
            ignore_eos=True,
            temperature=0.0 if number % 3 else 1.0,
            seed=number,
        )
        for number in range(count)
    ]


def on_cuda(make_engine: Make, backends: Any = None, **options: Any) -> Engine:
    return make_engine(
        device="cuda",
        dtype="float32",
        runtime=runtime_with_kernels(),
        backends=backends,
        options={**OPTIONS, **options},
    )


def test_tokens_are_the_same_in_every_way_of_running(make_engine: Make) -> None:
    """Eager, overlapped and captured steps compute the same tokens.

    There are more prompts than slots, and pools are filled with NaN.
    """
    prompts = make_prompts() * 2
    params = make_params(len(prompts))
    found = []
    for ways in (
        {"capture": "off", "overlap": False},
        {"capture": "off"},
        {"overlap": False},
        {"capture": "decode"},
        {},
    ):
        engine = on_cuda(make_engine, **ways)
        assert {state.reason for state in engine.graphs} <= {None}
        assert bool(engine.graphs) == (ways.get("capture") != "off")
        for tensor in engine.pools.tensors():
            tensor.fill_(float("nan"))
        found.append([output.tokens for output in engine.generate(prompts, params)])
        assert not engine.busy
        assert len(engine.pools.pages) == engine.pools.pages.capacity
    assert found[1:] == found[:1] * 4


def test_a_backend_without_graphs_runs_between_pieces(make_engine: Make) -> None:
    """A backend without graphs runs between captured pieces, with a new plan in each step and no padding."""
    prompts = make_prompts(9)
    params = make_params(len(prompts))
    backends = {"gated_delta": "torch"}
    found = []
    for capture in ("off", "all"):
        engine = on_cuda(make_engine, backends=backends, capture=capture)
        for tensor in engine.pools.tensors():
            tensor.fill_(float("nan"))
        found.append([output.tokens for output in engine.generate(prompts, params)])
    assert found[0] == found[1]
    assert {state.reason for state in engine.graphs} == {None}
    assert all("gated_delta.decode" in state.eager for state in engine.graphs)
    assert len(engine.pools.pages) == engine.pools.pages.capacity


@torch.inference_mode()
def test_greedy_tokens_are_those_of_transformers(make_engine: Make, checkpoint: Path) -> None:
    """Greedy tokens equal those of transformers wherever its two largest logits differ by more than 1e-3."""
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval().to("cuda")
    engine = on_cuda(make_engine)
    prompts = make_prompts(3)
    outputs = engine.generate(prompts, SamplingParams(max_new_tokens=32, ignore_eos=True))
    for prompt, output in zip(prompts, outputs, strict=True):
        ids = torch.tensor([[*prompt, *output.tokens]], device="cuda")
        logits = model(ids, use_cache=False).logits[0, len(prompt) - 1 : -1]
        best = logits.topk(2).values
        clear = (best[:, 0] - best[:, 1]) > 1e-3
        assert clear.float().mean() > 0.8
        assert torch.equal(logits.argmax(-1)[clear], ids[0, len(prompt) :][clear])


def test_two_engines_in_threads_beside_other_work(make_engine: Make) -> None:
    engines = [on_cuda(make_engine) for _ in range(2)]
    prompts = make_prompts(5)
    params = SamplingParams(max_new_tokens=24, ignore_eos=True)
    expected = [output.tokens for output in engines[0].generate(prompts, params)]
    stop = threading.Event()
    found: dict[int, list[Any]] = {0: [], 1: []}

    def work() -> None:
        while not stop.is_set():
            torch.randn(300, 300, device="cuda").matmul(torch.randn(300, 300, device="cuda")).sum().item()

    def serve(number: int) -> None:
        for _ in range(3):
            found[number].append([o.tokens for o in engines[number].generate(prompts, params)])

    threads = [threading.Thread(target=serve, args=(number,)) for number in range(2)]
    busy = threading.Thread(target=work)
    busy.start()
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        stop.set()
        busy.join()
    assert found == {0: [expected] * 3, 1: [expected] * 3}


def test_threads_with_streams_of_their_own_run_one_engine_in_turn(make_engine: Make) -> None:
    """Threads with streams of their own run one engine in turn; each step waits for the previous one."""
    engine = on_cuda(make_engine)
    prompts = make_prompts(8)
    params = SamplingParams(max_new_tokens=24, ignore_eos=True)
    expected = [output.tokens for output in engine.generate(prompts, params)]
    requests = [engine.submit(prompt, params) for prompt in prompts]

    def serve(number: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            while engine.busy:
                torch.cuda._sleep(1_000_000 * (1 + number))
                engine.step()

    threads = [threading.Thread(target=serve, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [tuple(request.tokens) for request in requests] == expected


def test_a_step_runs_in_order_with_its_callers_launches(make_engine: Make) -> None:
    """A step runs after the caller's earlier writes on its stream, and before the caller's later reads."""
    engine = on_cuda(make_engine, overlap=False)
    prompts = make_prompts(11)[:4]
    params = SamplingParams(max_new_tokens=3, ignore_eos=True)
    expected = [output.tokens for output in engine.generate(prompts, params)]
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(200_000_000)
        for tensor in engine.pools.tensors():
            tensor.fill_(float("nan"))
        assert [output.tokens for output in engine.generate(prompts, params)] == expected


def test_graphs_are_captured_beside_other_work(make_engine: Make) -> None:
    """Graphs can be captured while another thread allocates, launches and waits."""
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            torch.ones(500, 500, device="cuda").cumsum(0).cpu()

    busy = threading.Thread(target=work)
    busy.start()
    try:
        engine = on_cuda(make_engine)
    finally:
        stop.set()
        busy.join()
    assert {state.reason for state in engine.graphs} == {None}
    prompts = make_prompts(6)[:5]
    params = SamplingParams(max_new_tokens=12, ignore_eos=True)
    expected = on_cuda(make_engine, capture="off").generate(prompts, params)
    assert engine.generate(prompts, params) == expected


def test_operations_that_wait_for_the_device_are_not_captured(
    make_engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step with an operation that waits for the device can't be captured, and runs without a graph.

    The engine, the other graphs and the device still work.
    """
    run = TritonGatedDelta.run

    def waiting(self: Any, call: Any, batch: Any, plan: Any) -> Any:
        if len(batch.seqlens) == 8 and batch.seqlens == (1,) * 8:
            batch.read_slots[0].item()
        if torch.cuda.is_current_stream_capturing() and len(batch.seqlens) == 2:
            raise ValueError("not two")
        return run(self, call, batch, plan)

    monkeypatch.setattr(TritonGatedDelta, "run", waiting)
    engine = on_cuda(make_engine)
    reasons = {state.rows: state.reason for state in engine.graphs if state.kind == "decode"}
    assert "captur" in str(reasons[8])
    assert "not two" in str(reasons[2])
    assert reasons[1] is reasons[4] is reasons[12] is None
    prompts = make_prompts(7)
    params = make_params(len(prompts))
    expected = on_cuda(make_engine, capture="off").generate(prompts, params)
    assert engine.generate(prompts, params) == expected


def test_a_captured_step_allocates_nothing(make_engine: Make) -> None:
    """A captured step of a running engine allocates no device memory."""
    engine = on_cuda(make_engine)
    params = SamplingParams(max_new_tokens=60, ignore_eos=True)
    requests = [engine.submit([1, 2, 3], params) for _ in range(8)]
    while len(requests[0].tokens) < 10:
        engine.step()
    torch.cuda.synchronize()
    before = torch.cuda.memory_reserved(), torch.cuda.max_memory_allocated()
    while len(requests[0].tokens) < 50:
        engine.step()
    assert (torch.cuda.memory_reserved(), torch.cuda.max_memory_allocated()) == before


def test_a_captured_step_never_waits_for_the_device(make_engine: Make) -> None:
    """A captured step waits only for the event of its tokens; torch would raise an error at any other
    wait."""
    engine = on_cuda(make_engine)
    params = [SamplingParams(max_new_tokens=40, ignore_eos=True, temperature=n % 2, seed=n) for n in range(8)]
    requests = [engine.submit([1, 2, 3], each) for each in params]
    while not all(request.tokens for request in requests):
        engine.step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        while len(requests[0].tokens) < 30:
            engine.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
