"""FlashInfer's function by itself. The backend `flashinfer` does everything that the contracts require."""

from __future__ import annotations

import torch
from flashinfer.gdn_prefill import chunk_gated_delta_rule
from switchrail.testing.inputs import Sample

from benchmarks.ops.cases import Case
from benchmarks.ops.clock import Run
from benchmarks.ops.peers.states import normalised, on_own_states


def peers(case: Case, call: Sample) -> dict[str, Run]:
    """`FlashInfer bare` for the gated delta rule's prefill. For attention it would equal the backend."""
    if (case.op, case.phase) != ("gated_delta", "prefill"):
        return {}
    q, k = (normalised(call.tensors[name]) for name in ("q", "k"))
    v, decay, beta = call.tensors["v"].contiguous(), call.tensors["g"].exp(), call.tensors["beta"].float()
    starts = call.batch.cu_seqlens.long()
    out = torch.empty_like(call.out)

    def bare(states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return chunk_gated_delta_rule(
            q,
            k,
            v,
            g=decay,
            beta=beta,
            scale=call.options["scale"],
            initial_state=states,
            output_final_state=True,
            cu_seqlens=starts,
            output=out,
            output_state=torch.empty_like(states),
        )

    return {"FlashInfer bare": on_own_states(call, bare)}
