"""The Hopper kernel for the delta rule's prefill scan."""

import pytest
import torch
from switchrail.testing.compare import verify
from switchrail.testing.inputs import gated_delta_call, kda_call
from switchrail_kernels import segments
from switchrail_kernels.delta import hopper, scan
from switchrail_kernels.device import compute_capability
from switchrail_kernels.gated_delta.triton import TritonGatedDelta
from switchrail_kernels.kda.triton import TritonKda
from switchrail_kernels.segments import Segments

pytestmark = pytest.mark.gpu

LENGTHS = [1, 0, 32, 33, 64, 260, 301, 129]
OPS = [
    pytest.param(TritonGatedDelta, gated_delta_call, id="gated_delta"),
    pytest.param(TritonKda, kda_call, id="kda"),
]


@pytest.fixture(autouse=True)
def _only_on_hopper(device):
    if compute_capability(device) != (9, 0):
        pytest.skip("the kernel is for compute capability 9.0")


@pytest.fixture
def launched(monkeypatch):
    """A list with `num_warps` of each call of `hopper.launch_scan`; other kernels add nothing."""
    warps = []
    launch = hopper.launch_scan

    def spy(*arguments, **options):
        warps.append(options["num_warps"])
        launch(*arguments, **options)

    monkeypatch.setattr(hopper, "launch_scan", spy)
    return warps


def split(monkeypatch, first, length):
    """Split every call: the first segment has `first` chunks, others at most `length` (0: no split)."""

    def plan(counts, heads, programs, costs):
        if not length:
            return Segments()
        most = 1 - (-(int(counts[0]) - first) // length)
        return Segments(first, length, most, int((counts > first).sum()))

    monkeypatch.setattr(segments, "plan_segments", plan)


def prefill(make, lengths, **arguments):
    sizes = {"key_size": 128, "value_size": 128, "strided": False, "dtype": torch.bfloat16}
    return make(lengths, **{**sizes, **arguments})


@pytest.mark.parametrize("every", [0, 64])
@pytest.mark.parametrize(("first", "length"), [(0, 0), (1, 1), (2, 1), (1, 2)])
@pytest.mark.parametrize(("backend", "make"), OPS)
def test_segments_and_kept_states(backend, make, first, length, every, monkeypatch, device, launched):
    split(monkeypatch, first, length)
    call = prefill(make, LENGTHS, gate="mixed", padding=(3,), device=device)
    verify(backend(), call.with_checkpoints(every) if every else call)
    assert launched == [4] * (2 if length else 1)


@pytest.mark.parametrize("sequences", [2, 40])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("gate", ["one", "near_zero"])
@pytest.mark.parametrize(("backend", "make"), OPS)
def test_few_programs_and_many(backend, make, gate, dtype, sequences, monkeypatch, device, launched):
    monkeypatch.setattr(segments, "_SHORT", 0)  # no sequence counts as short
    verify(backend(), prefill(make, [70] * sequences, gate=gate, dtype=dtype, device=device))
    assert launched == [4 if sequences == 2 else 8]


@pytest.mark.parametrize("lengths", [[70], [20, 32, 1]])
def test_many_short_sequences(lengths, device, launched):
    verify(TritonGatedDelta(), prefill(gated_delta_call, lengths * 40, gate="mixed", device=device))
    assert launched == [4]


@pytest.mark.parametrize("value_size", [64, 128])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("initial", ["none", "some", "all"])
@pytest.mark.parametrize("lengths", [[1], [20, 0, 32, 90], [33], [65, 0, 33, 64, 200]])
def test_programs_that_scan_several_sequences(
    lengths, initial, dtype, value_size, device, launched, monkeypatch
):
    short = []
    launch = scan.launch_scan_short
    monkeypatch.setattr(
        scan, "launch_scan_short", lambda *given, **options: short.append(launch(*given, **options))
    )
    monkeypatch.setattr(scan, "multiprocessors", lambda device: 3)
    call = prefill(
        gated_delta_call, lengths * 8, gate="mixed", padding=(3,), initial=initial, dtype=dtype,
        value_size=value_size, device=device,
    )  # fmt: skip
    verify(TritonGatedDelta(), call)
    assert (len(short), launched) == (1, [])


@pytest.mark.parametrize("length", [0, 1])
@pytest.mark.parametrize(("key_size", "value_size"), [(96, 64), (128, 96), (96, 192), (128, 256)])
@pytest.mark.parametrize(("backend", "make"), OPS)
def test_head_sizes(backend, make, key_size, value_size, length, monkeypatch, device, launched):
    split(monkeypatch, 1, length)
    sizes = {"key_size": key_size, "value_size": value_size}
    verify(backend(), prefill(make, [130, 20, 64], gate="mixed", device=device, **sizes))
    assert launched


@pytest.mark.parametrize(
    "arguments",
    [{"dtype": torch.float32}, {"key_size": 64}, {"value_size": 48}, {"strided": True}],
    ids=["float32", "narrow-keys", "narrow-values", "not-aligned"],
)
def test_calls_that_another_kernel_serves(arguments, device, launched):
    verify(TritonGatedDelta(), prefill(gated_delta_call, [70, 3], device=device, **arguments))
    assert not launched


def test_another_kernel_serves_kept_states_within_a_chunk(device, launched):
    call = prefill(gated_delta_call, [70, 3], device=device).with_checkpoints(24)
    verify(TritonGatedDelta(), call)
    assert not launched
