"""FlashQLA's kernels (TileLang, Hopper) as a backend of `gated_delta` for prefill."""

# Triton infers the types of kernel arguments at the call.
# ruff: noqa: ANN001, ANN202
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

import numpy as np
import torch
import triton
import triton.language as tl
from flash_qla.ops.gated_delta_rule.chunk import CHUNK_SIZE, kkt_solve
from flash_qla.ops.gated_delta_rule.chunk.cp import FlashQLACPContext, build_cp_context, cp_preprocess_fwd
from flash_qla.ops.gated_delta_rule.chunk.hopper.fused_fwd import tilelang_fused_chunk_gdr_fwd
from flash_qla.utils.index import prepare_chunk_offsets, prepare_varlen_metadata
from switchrail.ops.batch import Bounds, Phase, StateBatch
from switchrail.ops.delta_call import DeltaCall
from switchrail.ops.gated_delta.contract import CONTRACT, GatedDeltaBackend

from switchrail_kernels.delta.adapter import DeltaAdapter
from switchrail_kernels.device import multiprocessors
from switchrail_kernels.gated_delta.dense import Dense, gather, pack, rescale, scatter
from switchrail_kernels.launch import Launcher, padded
from switchrail_kernels.tables import all_to_device, split_rows, to_device


@triton.jit
def _sum_chunks(p_g, p_sums, p_chunks, HV: tl.constexpr, BHV: tl.constexpr, CHUNK: tl.constexpr):
    row = tl.load(p_chunks + 4 * tl.program_id(0) + 2).to(tl.int64)
    rows = tl.load(p_chunks + 4 * tl.program_id(0) + 3)
    o_t = tl.arange(0, CHUNK)[:, None]
    o_h = tl.arange(0, BHV)[None, :]
    m = (o_t < rows) & (o_h < HV)
    o = (row + o_t) * HV + o_h
    tl.store(p_sums + o, tl.cumsum(tl.load(p_g + o, mask=m, other=0.0), 0), mask=m)


_launch_sum_chunks = Launcher(_sum_chunks)


@dataclass(frozen=True)
class _Sequences:
    """The nonempty sequences of a batch. The library does not support empty ones.

    Attributes:
        seqlens: The lengths of all sequences of the batch.
        indices: [M] int32, the indices of the nonempty sequences.
        starts: [M + 1] int32 on the host, the first row of each of these sequences, and the number of all
            rows.
        chunks: [chunks, 4] int32, the library's chunks, as in `split_rows`.
        device: The device of the call's tensors.
        contexts: How the library splits the sequences, for each number of value heads.
    """

    seqlens: tuple[int, ...]
    indices: torch.Tensor
    starts: torch.Tensor
    chunks: torch.Tensor
    device: torch.device
    contexts: dict[int, FlashQLACPContext] = field(default_factory=dict)

    @classmethod
    def of(cls, batch: StateBatch) -> _Sequences:
        lengths = np.asarray(batch.seqlens, dtype=np.int32)
        present = np.flatnonzero(lengths).astype(np.int32)
        starts = np.concatenate([[0], lengths[present].cumsum()]).astype(np.int32)
        device = batch.cu_seqlens.device
        chunks, indices = all_to_device([split_rows(batch.seqlens, CHUNK_SIZE), present], device)
        return cls(batch.seqlens, indices, torch.from_numpy(starts), chunks, device)

    def context(self, value_heads: int) -> FlashQLACPContext:
        """How the library splits the sequences, computed once for each number of value heads."""
        if value_heads not in self.contexts:
            # The kernels for split sequences only compile if the number of value heads is a multiple of 4.
            cuts = value_heads % 4 == 0
            host = build_cp_context(
                self.starts, enable_intra=cuts, num_v_heads=value_heads, chunk_size=CHUNK_SIZE
            )
            moved = {
                name: to_device(value.numpy(), self.device)
                for name, value in vars(host).items()
                if isinstance(value, torch.Tensor)
            }
            for name in ("cu_seqlens", "intra_cp_cu_seqlens"):
                if name in moved:
                    prepare_varlen_metadata(moved[name], getattr(host, name))
            self.contexts[value_heads] = dataclasses.replace(host, **moved)
        return self.contexts[value_heads]


class FlashQlaGatedDelta(DeltaAdapter, GatedDeltaBackend):
    """The gated delta rule for compute capability 9.0, head sizes of 128, float16 and bfloat16.

    The library splits a long sequence that would otherwise leave much of the device idle. If the total decay
    of a part is less than e^-10, the library ignores the state before this part when it computes the next
    part.
    """

    contract = CONTRACT
    planned = _Sequences

    def plan(self, phase: Phase, batch: StateBatch, bounds: Bounds | None = None) -> _Sequences:
        """Find the nonempty sequences."""
        CONTRACT.check_batch(phase, batch)
        return _Sequences.of(batch)

    def launch(self, call: DeltaCall, batch: StateBatch, plan: _Sequences) -> None:
        """Run T packed tokens of N sequences of any length."""
        with torch.inference_mode():
            dense = pack(call)
            states = gather(call.layer.state, batch, plan.indices)
            final = _run(dense, states, call.out[None], plan, call.layer.scale)
            if dense.factors is not None:
                rescale(call.out, dense.factors)
            scatter(final, call, batch, plan.indices)


def _run(
    dense: Dense, states: torch.Tensor, out: torch.Tensor, plan: _Sequences, scale: float
) -> torch.Tensor:
    """Runs the kernels of `flash_qla.chunk_gated_delta_rule_fwd`, without that function's copy of the output.

    The running sums of g in each chunk are computed here, since the library's kernel for them can't be
    compiled for some numbers of value heads, such as 3.

    Returns:
        The states after the sequences, [M, HV, V, K] float32.
    """
    q, k, v, beta = (t[None] for t in (dense.q, dense.k, dense.v, dense.beta))
    heads, key_size = k.shape[2:]
    value_heads, value_size = v.shape[2:]
    context = plan.context(value_heads)
    whole = context.cu_seqlens
    cut = context.intra_cp_cu_seqlens if context.is_intra else whole
    sums = torch.empty_like(dense.g)
    _launch_sum_chunks(
        (plan.chunks.shape[0], 1, 1),
        (dense.g, sums, plan.chunks),
        (),
        (value_heads, padded(value_heads), CHUNK_SIZE),
        num_warps=4,
    )
    g = sums[None]
    a = kkt_solve(k=k, b=beta, cu_seqlens=whole, chunk_size=CHUNK_SIZE)
    initial, _ = cp_preprocess_fwd(
        context,
        k=k,
        v=v,
        a=a,
        g=g,
        beta=beta,
        initial_state=states,
        state_v_first=True,
        enable_fwd_cp_cache=False,
    )
    final = torch.empty_like(states)
    offsets, _ = prepare_chunk_offsets(cut, CHUNK_SIZE)
    programs = (cut.shape[0] - 1) * value_heads
    enough = 0.7 * multiprocessors(q.device)
    kernel = tilelang_fused_chunk_gdr_fwd(
        value_heads,
        heads,
        key_size,
        value_size,
        CHUNK_SIZE,
        scale,
        accum_dtype="float32",
        qkva_dtype=q.dtype,
        g_dtype=g.dtype,
        b_dtype=beta.dtype,
        h0_dtype=initial.dtype,
        ht_dtype=final.dtype,
        h_dtype=q.dtype,
        o_dtype=out.dtype,
        seqlen_dtype=cut.dtype,
        use_initial_state=True,
        store_final_state=True,
        store_h=False,
        store_o=True,
        is_varlen=True,
        is_cp=context.is_intra,
        state_v_first=True,
        block_DV=128 if programs >= enough else 64 if 2 * programs >= enough else 32,
    )
    chunk_states = q.new_empty((1, 0, *states.shape[1:]))
    owners = context.seq_map_c2r if context.is_intra else cut[:-1]
    kernel(q, k, v, a, g, beta, initial, cut, offsets, owners, whole, out, chunk_states, final)
    return final
