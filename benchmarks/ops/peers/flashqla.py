"""FlashQLA's function by itself. The backend `flashqla` does everything that the contract requires."""

from __future__ import annotations

import torch
from flash_qla import chunk_gated_delta_rule
from switchrail.testing.inputs import Sample

from benchmarks.ops.cases import Case
from benchmarks.ops.clock import Run
from benchmarks.ops.peers.states import normalised, on_own_states


def peers(case: Case, call: Sample) -> dict[str, Run]:
    """`FlashQLA bare` for the gated delta rule's prefill."""
    if (case.op, case.phase) != ("gated_delta", "prefill"):
        return {}
    dense = [normalised(call.tensors["q"])[None], normalised(call.tensors["k"])[None]]
    dense += [call.tensors[name].contiguous()[None] for name in ("v", "g")]
    beta = call.tensors["beta"].float()[None]

    def bare(states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return chunk_gated_delta_rule(
            *dense,
            beta,
            scale=call.options["scale"],
            initial_state=states,
            output_final_state=True,
            state_v_first=True,
            cu_seqlens=call.batch.cu_seqlens,
        )

    return {"FlashQLA bare": on_own_states(call, bare)}
