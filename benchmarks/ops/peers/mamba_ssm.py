"""mamba_ssm's Triton kernels, which don't need the package's CUDA extension."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from types import ModuleType

import torch
from switchrail.ops.batch import StateBatch
from switchrail.testing.inputs import Sample

from benchmarks.ops.cases import Case
from benchmarks.ops.clock import Run
from benchmarks.ops.peers.states import on_own_states, with_slots

if find_spec("selective_scan_cuda") is None:  # `mamba_ssm/__init__.py` would import it
    spec = find_spec("mamba_ssm")
    package = ModuleType("mamba_ssm")
    package.__spec__, package.__path__ = spec, list(spec.submodule_search_locations)
    sys.modules["mamba_ssm"] = package

from mamba_ssm.ops.triton.selective_state_update import selective_state_update
from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined

CHUNK = 256
"""The chunk size of mamba_ssm's models, in tokens."""


def peers(case: Case, call: Sample) -> dict[str, Run]:
    """`mamba_ssm`, and for prefills `mamba_ssm bare`, for batches of sequences of equal length.

    For packed sequences, mamba_ssm supports no initial states. So the sequences are passed on a batch axis.
    """
    if case.op != "mamba2" or len(set(case.lengths)) > 1:
        return {}
    x, b, c, dt, rate, skip, bias = (
        call.tensors[name] for name in ("x", "B", "C", "dt", "A", "D", "dt_bias")
    )
    if call.phase == "decode":
        assert isinstance(call.batch, StateBatch)
        slots = call.batch.read_slots.int()
        size, states = call.state.shape[2:]

        def update() -> torch.Tensor:
            with torch.inference_mode():
                return selective_state_update(
                    call.state,
                    x,
                    dt[..., None].expand(-1, -1, size),
                    rate[:, None, None].expand(-1, size, states),
                    b,
                    c,
                    skip[:, None].expand(-1, size),
                    dt_bias=bias[:, None].expand(-1, size),
                    dt_softplus=True,
                    state_batch_indices=slots,
                )

        return {"mamba_ssm": update}
    views = [t.unflatten(0, (len(case.lengths), -1)) for t in (x, dt, b, c)]
    dense = [view.contiguous() for view in views]

    def scan(inputs: list[torch.Tensor], before: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return mamba_chunk_scan_combined(
            inputs[0],
            inputs[1],
            rate,
            *inputs[2:],
            CHUNK,
            D=skip,
            dt_bias=bias,
            dt_softplus=True,
            initial_states=before,
            return_final_states=True,
        )

    return {
        "mamba_ssm": with_slots(call, lambda before: scan(views, before)),
        "mamba_ssm bare": on_own_states(call, lambda before: scan(dense, before)),
    }
