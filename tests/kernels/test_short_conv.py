import pytest
from switchrail.errors import ContractError
from switchrail.testing.compare import verify, verify_commit
from switchrail.testing.inputs import short_conv_call
from switchrail_kernels.short_conv.triton import TritonShortConv


@pytest.fixture
def backend():
    return TritonShortConv()


@pytest.mark.parametrize("width", [2, 4, 7, 17])
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_widths_and_strides(backend, device, width, phase):
    lengths = [1] * 4 if phase == "decode" else [1, 2, 9, 64, 70]
    strided = "time" if width == 7 else True
    options = {"width": width, "channels": 72, "bias": width != 4, "strided": strided, "device": device}
    verify(backend, short_conv_call(lengths, phase=phase, **options))


@pytest.mark.parametrize(("width", "every"), [(2, 1), (17, 7)])
def test_states_kept_on_the_way(backend, device, width, every):
    call = short_conv_call([100, 0, 20, 64], width=width, padding=(2,), initial="all", device=device)
    verify(backend, call.with_checkpoints(every))


@pytest.mark.parametrize(
    "options",
    [{"width": 4, "padding": (1,), "in_place": False}, {"width": 2, "strided": "time"}, {"width": 17}],
    ids=str,
)
def test_drafts_of_any_length(backend, device, options):
    call = short_conv_call([9, 2, 0, 4], phase="verify", channels=40, device=device, **options)
    verify_commit(backend, call)
    verify_commit(backend, call.with_trees(seed=2))


def test_more_taps_than_a_piece_has_rows_are_refused(backend, device):
    with pytest.raises(ContractError, match=r"weight: got W = 18, expected 2 to 17"):
        short_conv_call([3], width=18, device=device).run(backend)


@pytest.mark.gpu
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_qwen3_next_sizes(backend, device, dtype, phase):
    lengths = [1] * 33 if phase == "decode" else [1, 0, 500, 64, 63]
    verify(backend, short_conv_call(lengths, phase=phase, channels=8192, dtype=dtype, device=device))
