"""Runs an engine for a long time with requests that arrive, are cancelled and fail, and looks for errors.

    python -m benchmarks.soak                         # 2,000 requests on a GPU
    python -m benchmarks.soak --requests 200 --seed 3

Prompts are passages of random length from a text. The model is the repository's trained checkpoint in
float32, so that a request's tokens don't depend on other requests. Failures are injected into the backend of
the gated delta rule. It raises in prefill, in `refresh` or during a capture; or it adds NaN to its result; or
it allocates more memory than the device has.

Every request must have the tokens of an undisturbed run, up to its cancellation or failure. Requests may fail
only in steps with an injected failure. At the end, all pages and slots must be free, nothing may have been
compiled after the warm-up, and the free memory must be the same within 2%.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import switchrail
import torch
from switchrail.engine import Engine, Request, SamplingParams
from switchrail.engine.warmup import warm_up
from switchrail.registration import Registry

from benchmarks.arguments import make_parser
from benchmarks.compiles import Compiles, counted

CHECKPOINT = Path(__file__).parent.parent / "tests/checkpoints/kjv-qwen3-next"
TEXT = CHECKPOINT.parent / "held_out.txt"
PROMPTS, LONGEST, NEW_TOKENS = 120, 400, 24
OPTIONS = {"max_sequences": 32, "max_length": 512, "max_tokens_per_step": 1024}
KINDS = ("prefill", "refresh", "capture", "nan", "memory")
EVERY = 12
"""Average steps between failures."""


class Injected(RuntimeError):
    """An injected exception of a backend."""


@dataclass
class Faults:
    """The failure to inject next, and the failures injected so far.

    Attributes:
        armed: The kind of the next exception, or None.
        done: The number of failures so far, by kind.
        poison: [1], added to the first row of the backend's result: 0, or NaN for one step.
        poisoned: Whether `poison` is NaN.
        hook: The hook that `outdate` has put on the model. It does nothing.
    """

    poison: torch.Tensor
    armed: str | None = None
    done: Counter[str] = field(default_factory=Counter)
    poisoned: bool = False
    hook: Any = None

    def strike(self, kind: str) -> None:
        """Raise an exception if this kind of failure is armed."""
        if self.armed == kind:
            self.armed = None
            self.done[kind] += 1
            if kind == "memory":
                torch.empty(1 << 50, device=self.poison.device)
            raise Injected(kind)

    def write_nan(self, poisoned: bool) -> None:
        """Start or stop the injection of NaN."""
        self._wait()
        self.poison.fill_(float("nan") if poisoned else 0.0)
        self._wait()
        self.poisoned = poisoned

    def _wait(self) -> None:
        if self.poison.is_cuda:
            torch.cuda.synchronize()

    def outdate(self, engine: Engine) -> None:
        """Invalidate the captured steps by changing the model's hooks."""
        if self.hook is not None:
            self.hook.remove()
        self.hook = engine._runner.model.register_forward_hook(lambda *_: None)


def _captures() -> bool:
    """Whether this thread captures a GPU graph or a `RecordedGraph`."""
    if torch.cuda.is_available():
        return torch.cuda.is_current_stream_capturing()
    return bool(torch._C._len_torch_dispatch_stack() > 0)


def faulty(backend: type[Any], faults: Faults) -> type[Any]:
    """A subclass of a backend in which failures can be injected."""

    class Faulty(backend):  # type: ignore[misc]
        def run(self, call: Any, batch: Any, plan: Any) -> Any:
            phase = "prefill" if max(batch.seqlens, default=0) > 1 else "decode"
            if phase == "prefill":
                faults.strike("prefill")
                faults.strike("memory")
            elif _captures():
                faults.strike("capture")
            found = super().run(call, batch, plan)
            call.out[:1] += faults.poison.to(call.out.dtype)
            return found

        def refresh(self, plan: Any, batch: Any) -> Any:
            faults.strike("refresh")
            return super().refresh(plan, batch)

    return Faulty


def register_triton(registry: Registry, faults: Faults) -> None:
    """Register a `faulty` subclass of the Triton backend, with precedence over all other backends."""
    from switchrail.registration import DeviceSupport
    from switchrail_kernels import BACKENDS
    from switchrail_kernels.claims import CAPABILITIES, COMMON
    from switchrail_kernels.gated_delta.triton import TritonGatedDelta

    claims: dict[str, Any] = {
        **COMMON["triton"],
        **BACKENDS["gated_delta", "triton"][1],
        "phases": ("prefill", "decode"),
        "devices": (DeviceSupport("cuda", *CAPABILITIES["triton"]),),
        "priority": 1000,
    }
    registry.register("faulty", faulty(TritonGatedDelta, faults), op="gated_delta", **claims)


def cut_prompts(engine: Engine, seed: int, count: int, longest: int) -> list[list[int]]:
    draw = random.Random(seed)
    text = list(engine._tokens_of(TEXT.read_text()[:60_000]))
    lengths = [draw.randint(1, longest) for _ in range(count)]
    starts = [draw.randrange(len(text) - length) for length in lengths]
    return [text[start : start + length] for start, length in zip(starts, lengths, strict=True)]


@dataclass
class Report:
    """The results of the soak.

    Attributes:
        wrong: Descriptions of the errors found.
        ends: The number of requests by finish reason.
        faults: The number of injected failures by kind.
        compiles: The compilations after the warm-up.
        memory: Free bytes before and after; None if the device doesn't report it.
        seconds: The duration.
    """

    wrong: list[str]
    ends: Counter[str]
    faults: Counter[str]
    compiles: Compiles
    memory: tuple[int, int] | None
    seconds: float


def free_memory(device: torch.device) -> int | None:
    if device.type != "cuda":
        return None
    torch.cuda.synchronize()
    return int(torch.cuda.mem_get_info(device)[0])


def soak(
    engine: Engine,
    faults: Faults,
    *,
    requests: int,
    seed: int = 0,
    prompts: int = PROMPTS,
    longest: int = LONGEST,
    new_tokens: int = NEW_TOKENS,
) -> Report:
    """Run requests through an engine with a `faulty` backend.

    Args:
        engine: The engine.
        faults: The failures of its backend.
        requests: Number of requests.
        seed: Seed of all random choices.
        prompts: Number of different prompts.
        longest: Tokens of the longest prompt.
        new_tokens: Maximum new tokens of a request.
    """
    draw = random.Random(seed)
    every = cut_prompts(engine, seed, prompts, longest)
    params = SamplingParams(max_new_tokens=new_tokens, ignore_eos=True)
    expected = [output.tokens for output in engine.generate(every, params)]
    # Compiles the kernels of eager decodes, which run after a failed capture.
    faults.outdate(engine)
    faults.armed = "capture"
    engine.generate(every[:3], params)
    faults.outdate(engine)
    for _ in warm_up(engine):
        pass
    start, before = time.perf_counter(), free_memory(engine.device)
    running: dict[Request, int] = {}
    ends: Counter[str] = Counter()
    wrong: list[str] = []
    suspects: set[Request] = set()  # requests that ran in a step with an injected failure
    faults.done.clear()
    left, next_fault = requests, EVERY
    with counted() as compiles:
        while left or engine.busy:
            for _ in range(min(left, draw.choice((0, 0, 0, 1, 1, 2, 3, 8)))):
                number = draw.randrange(prompts)
                asked = SamplingParams(max_new_tokens=draw.randint(1, new_tokens), ignore_eos=True)
                running[engine.submit(every[number], asked)] = number
                left -= 1
            if running and draw.random() < 0.05:
                engine.cancel(draw.choice(list(running)))
            next_fault -= 1
            if not next_fault:
                next_fault = draw.randint(1, 2 * EVERY)
                _arm(engine, faults, draw)
            live = set(engine._core.sequences.live)
            is_armed, struck = faults.armed is not None or faults.poisoned, faults.done.total()
            try:
                engine.step()
            except Exception as error:
                if faults.done.total() == struck:
                    wrong.append(f"a step raised {error!r} without an injected failure")
            if is_armed:
                suspects |= live | set(engine._core.sequences.live)
                suspects |= {one for one in running if one.finish_reason is not None}
            if faults.poisoned:
                faults.write_nan(False)
                faults.done["nan"] += 1
            for request in [one for one in running if one.finish_reason is not None]:
                number = running.pop(request)
                reason = str(request.finish_reason)
                ends[reason] += 1
                tokens = tuple(request.tokens)
                if tokens != expected[number][: len(tokens)]:
                    wrong.append(f"{request!r} differs from the undisturbed run: {request.error!r}")
                if reason == "error" and request not in suspects:
                    wrong.append(f"{request!r} failed without an injected failure: {request.error!r}")
    faults.armed = None
    pools = engine.pools
    if len(pools.pages) != pools.pages.capacity or len(pools.slots) != pools.slots.capacity:
        wrong.append(f"at the end, only {len(pools.pages)} pages and {len(pools.slots)} slots are free")
    if compiles.triton or compiles.dynamo:
        wrong.append(f"compiled after the warm-up: {compiles}")
    after = free_memory(engine.device)
    memory = None if before is None or after is None else (before, after)
    if memory is not None and abs(memory[0] - memory[1]) > 0.02 * memory[0]:
        wrong.append(f"the free memory changed, from {memory[0]} to {memory[1]} bytes")
    again = [output.tokens for output in engine.generate(every[:8], params)]
    if again != expected[:8]:
        wrong.append("the engine gives different tokens than at the start")
    return Report(wrong, ends, faults.done, compiles, memory, time.perf_counter() - start)


def _arm(engine: Engine, faults: Faults, draw: random.Random) -> None:
    """Arm a random failure for one of the next steps."""
    kind = draw.choice(KINDS)
    if kind == "nan":
        faults.write_nan(True)
        return
    faults.armed = kind
    if kind == "capture":
        faults.outdate(engine)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = make_parser("soak", __doc__)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    faults = Faults(poison=torch.zeros(1, device="cuda"))
    runtime = switchrail.Runtime()
    runtime.load()
    register_triton(runtime, faults)
    # Compiles the kernels of eager decodes, which run after a failed capture.
    eager = {**OPTIONS, "capture": "off"}
    with Engine(CHECKPOINT, runtime=runtime, device="cuda", dtype="float32", options=eager) as engine:
        for _ in warm_up(engine):
            pass
    with Engine(CHECKPOINT, runtime=runtime, device="cuda", dtype="float32", options=OPTIONS) as engine:
        report = soak(engine, faults, requests=options.requests, seed=options.seed)
    print(f"{options.requests} requests in {report.seconds:.1f} s: {dict(report.ends)}")
    print(f"injected failures {dict(report.faults)}; {report.compiles}; free memory {report.memory}")
    for line in report.wrong[:20]:
        print("WRONG:", line[:400])
    print(f"{len(report.wrong)} errors found")
    return bool(report.wrong)


if __name__ == "__main__":
    sys.exit(main())
