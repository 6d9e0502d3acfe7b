"""The suite's check of captured calls, on a CPU: the stand-in for a graph replays by calling `run` again."""

import contextlib
import dataclasses
import importlib
from types import SimpleNamespace

import pytest
import torch
from switchrail.errors import ContractError
from switchrail.ops.attention.contract import CONTRACT
from switchrail.ops.attention.torch import TorchAttention
from switchrail.ops.catalog import DEFINITIONS
from switchrail.ops.gated_delta.torch import TorchGatedDelta
from switchrail.testing.conformance import Subject, host
from switchrail.testing.conformance.setting import Setting


class Device:
    """Replaces functions of `torch.cuda`. A captured `run` computes only in the replay."""

    def __init__(self):
        self.capturing, self.mode, self.allocations = None, "default", 0
        self.log = []

    def patch(self, monkeypatch):
        device = self

        class Graph:
            def __init__(self):
                self.calls = []

            def pool(self):
                return "pool"

            def replay(self):
                assert self.calls
                device.log.append("replay")
                for call in self.calls:
                    call()

        @contextlib.contextmanager
        def graph(into, pool=None, stream=None):
            device.capturing = into
            yield
            device.capturing = None

        stream = SimpleNamespace(wait_stream=lambda other: None, synchronize=lambda: None)
        for name, value in {
            "CUDAGraph": Graph,
            "graph": graph,
            "Stream": lambda device: stream,
            "current_stream": lambda device: stream,
            "stream": lambda stream: contextlib.nullcontext(),
            "synchronize": lambda device: None,
            "memory_stats": lambda which: {"num_device_alloc": device.allocations},
            "set_sync_debug_mode": lambda mode: setattr(device, "mode", mode),
        }.items():
            monkeypatch.setattr(torch.cuda, name, value)


@pytest.fixture
def device(monkeypatch):
    device = Device()
    device.patch(monkeypatch)
    return device


def captured(base, device):
    """Makes a class of backends whose `run` can be captured, and which records the order of calls."""

    class Captured(base):
        def plan(self, phase, batch, bounds=None):
            assert device.capturing is None, "`plan` is called during a capture"
            device.log.append("plan" if bounds is None else "plan within bounds")
            return super().plan(phase, batch, bounds)

        def refresh(self, plan, batch):
            device.log.append(f"refresh, sync debug mode {device.mode}")
            super().refresh(plan, batch)

        def run(self, call, batch, plan):
            if device.capturing is None:
                device.log.append("run")
                return super().run(call, batch, plan)
            device.log.append("capture")
            device.capturing.calls.append(lambda: super(Captured, self).run(call, batch, plan))

    return Captured


def setting(op, backend):
    capabilities = {**DEFINITIONS[op].claims, "features": ("cuda_graph",)}
    subject = Subject(op=op, name="mine", phases=("decode",), capabilities=capabilities, build=backend)
    return Setting(
        subject=subject, phase="decode", dtype=torch.float32, device=torch.device("cpu"), quick=True
    )


class Cut:
    """A plan with the host's lengths, which are updated in place."""

    def __init__(self, batch, bounds):
        self.bounds, self.lengths = bounds, torch.tensor(batch.kv_seqlens)


class Refreshed(TorchAttention):
    """Attends to at most as many tokens as its plan says, like a kernel that reads lengths from its plan."""

    def plan(self, phase, batch, bounds=None):
        return Cut(batch, bounds)

    def refresh(self, plan, batch):
        plan.lengths.copy_(torch.tensor(batch.kv_seqlens))

    def run(self, call, batch, plan):
        # after a wrong `refresh`, the plan's lengths can exceed the batch's pages
        lengths = plan.lengths.minimum(batch.kv_lens)
        batch = dataclasses.replace(batch, kv_lens=lengths, kv_seqlens=tuple(lengths.tolist()))
        super().run(call, batch, super().plan("decode", batch))


def test_a_call_is_captured_as_an_engine_does_it(device):
    measured = host.graph(setting("attention", captured(Refreshed, device)))
    assert measured.error.within(measured.bound)
    assert device.log == [
        *("plan within bounds", "run"),  # the eager run that the replay is compared with
        *("plan within bounds", "run", "capture", "capture", "refresh, sync debug mode error", "replay"),
        *("plan", "run"),  # a run without bounds, compared with the reference
    ]
    assert device.mode == "default"


@pytest.mark.parametrize("op", DEFINITIONS)
def test_the_kernels_pass(device, op):
    pytest.importorskip("triton")
    kernels = pytest.importorskip("switchrail_kernels")
    module = importlib.import_module(f"switchrail_kernels.{op}.triton")
    backend = getattr(module, kernels.BACKENDS[op, "triton"][0])
    measured = host.graph(setting(op, captured(backend, device)))
    assert measured.error.within(measured.bound)
    assert device.log.count("capture") == 2


def test_a_claim_without_refresh_fails(device):
    with pytest.raises(AssertionError, match=r"claims cuda_graph, but TorchGatedDelta has no `refresh`"):
        host.graph(setting("gated_delta", TorchGatedDelta))


def test_a_plan_that_is_not_refreshed_fails(device):
    class Stale(Refreshed):
        def refresh(self, plan, batch):
            pass

    with pytest.raises(AssertionError, match="a replayed graph gives different results than a call"):
        host.graph(setting("attention", captured(Stale, device)))


def test_a_plan_made_anew_by_refresh_fails(device):
    """The suite reports a `refresh` that makes a new plan, because the captured call still reads the old
    one."""

    class Anew(Refreshed):
        def refresh(self, plan, batch):
            plan.lengths = torch.tensor(batch.kv_seqlens)

        def run(self, call, batch, plan):
            first = self.__dict__.setdefault("first", {}).setdefault(plan, plan.lengths)
            plan.lengths, lengths = first, plan.lengths
            super().run(call, batch, plan)
            plan.lengths = lengths

    with pytest.raises(AssertionError, match="a replayed graph gives different results than a call"):
        host.graph(setting("attention", captured(Anew, device)))


def test_tables_that_refresh_copies_fail(device):
    """The suite reports a `refresh` that copies tables: an engine's graph writes the tables after
    `refresh`."""

    class Early(Refreshed):
        def refresh(self, plan, batch):
            plan.lengths.copy_(batch.kv_lens)

    with pytest.raises(AssertionError, match="a replayed graph gives different results than a call"):
        host.graph(setting("attention", captured(Early, device)))


def test_memory_allocated_in_a_capture_fails(device):
    class Greedy(captured(Refreshed, device)):
        def run(self, call, batch, plan):
            device.allocations += device.capturing is not None
            super().run(call, batch, plan)

    with pytest.raises(AssertionError, match="memory was requested from the driver 1 times"):
        host.graph(setting("attention", Greedy))


def test_wrong_results_within_bounds_fail(device):
    """The suite reports a backend whose results are wrong only if its plan was made with `bounds`."""

    class Wrong(Refreshed):
        def run(self, call, batch, plan):
            super().run(call, batch, plan)
            call.out.mul_(1.01 if plan.bounds is not None else 1)

    with pytest.raises(AssertionError, match="out is off"):
        host.graph(setting("attention", captured(Wrong, device)))


def test_a_refresh_that_refuses_a_batch_within_its_bounds_fails(device):
    class Narrow(Refreshed):
        def refresh(self, plan, batch):
            raise CONTRACT.error("batch", "longer", "shorter")

    with pytest.raises(ContractError, match="longer"):
        host.graph(setting("attention", captured(Narrow, device)))
    assert device.mode == "default"
