"""The short causal convolution in Triton."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from switchrail.ops.batch import RowStatesBatch, StateBatch, VerifyBatch
from switchrail.ops.short_conv.contract import CONTRACT, ShortConvBackend, ShortConvCall

from switchrail_kernels.alignment import nonzero
from switchrail_kernels.checkpoints import kept_states
from switchrail_kernels.launch import Launcher, padded
from switchrail_kernels.recurrent import TritonState
from switchrail_kernels.replay import Options, Tensors
from switchrail_kernels.short_conv.convolve import convolve, step
from switchrail_kernels.short_conv.drafts import DRAFT_ROWS, REACH, Drafts, each, replay, verify
from switchrail_kernels.tables import split_rows, to_device

PIECE = 32
"""Maximum rows per program. A program loads its taps once for all of its rows."""

ROWS = 8
"""Rows that a program computes at once."""

_launch_convolve = Launcher(convolve)
_launch_step = Launcher(step, early=True)
_launch_verify = Launcher(verify)
_launch_replay = Launcher(replay)
_launch_each = Launcher(each)


@dataclass(frozen=True, slots=True)
class Pieces:
    """The pieces into which a prefill's rows are split.

    Attributes:
        table: [pieces, 4] int32, at most `PIECE` rows of one sequence each, as in `split_rows`.
        seqlens: The number of rows of each sequence.
    """

    table: torch.Tensor
    seqlens: tuple[int, ...]


class TritonShortConv(TritonState[ShortConvCall], ShortConvBackend):
    """The short convolution for compute capability 8.0 and later, with up to 17 taps except in decode."""

    contract = CONTRACT
    prefill_plan = Pieces
    verify_plan = Drafts
    record = torch.Tensor

    def plan_prefill(self, batch: StateBatch) -> Pieces:
        """Split all sequences into pieces."""
        return Pieces(to_device(split_rows(batch.seqlens, PIECE), batch.cu_seqlens.device), batch.seqlens)

    def launch_step(self, call: ShortConvCall, batch: StateBatch) -> None:
        """Launch one kernel."""
        tensors, numbers, width, constants = _arguments(call)
        rows, channels = call.x.shape
        block = min(256, padded(channels))
        _launch_step(
            (rows, -(-channels // block), 1),
            (*tensors, batch.read_slots, batch.write_slots),
            numbers,
            (width, block, *constants),
            num_warps=2,
        )

    def planned(self, call: ShortConvCall, batch: StateBatch, plan: Pieces) -> tuple[Tensors, Options]:
        """The table of the pieces, and the checkpoints."""
        kept_slots, *every = kept_states(batch)
        return (plan.table, batch.cu_seqlens, batch.has_initial_state, kept_slots), tuple(every)

    def launch_walk(self, call: ShortConvCall, batch: StateBatch, plan: Pieces) -> None:
        """Launch one kernel."""
        tensors, numbers, width, constants = _arguments(call, REACH + 1)
        channels = call.x.shape[1]
        compiler = {}
        if call.x.stride(1) != 1:
            block, warps = 64, 2
        elif width > 4:
            block, warps = 256, 4
        else:
            block, warps = 512, 4
            compiler = {"maxnreg": 96}  # allows enough programs per multiprocessor
        block = min(block, padded(channels))
        kept_slots, *every = kept_states(batch)
        slots = (batch.read_slots, batch.write_slots, batch.has_initial_state, kept_slots)
        _launch_convolve(
            (plan.table.shape[0] * -(-channels // block), 1, 1),
            (*tensors, plan.table, batch.cu_seqlens, *slots),
            (*numbers, *every),
            (width, ROWS, block, *constants, every[0] > 0),
            num_warps=warps,
            **compiler,
        )

    def launch_verify(self, call: ShortConvCall, batch: StateBatch, plan: Drafts) -> torch.Tensor:
        """Run drafted rows in one launch, which also records their inputs, since states consist of inputs."""
        tensors, numbers, width, constants = _arguments(call, REACH + 1)
        channels = call.x.shape[1]
        kept = torch.empty_like(call.out)
        if len(plan.tiles):
            block = min(256, padded(channels))
            slots = (batch.read_slots, batch.write_slots, batch.has_initial_state)
            _launch_verify(
                (plan.tiles.shape[0], -(-channels // block), 1),
                (*tensors, kept, plan.tiles, plan.before, *slots),
                numbers,
                (width, DRAFT_ROWS, block, REACH, *constants),
                num_warps=4,
            )
        return kept

    def launch_replay(
        self,
        call: ShortConvCall,
        batch: VerifyBatch,
        plan: Drafts,
        record: torch.Tensor,
        accepted: torch.Tensor,
    ) -> None:
        """Launch one kernel."""
        if len(record) == 0:
            return
        state = call.layer.state
        channels, width = record.shape[1], state.shape[2] + 1
        block = min(256, padded(channels))
        _launch_replay(
            (len(batch.seqlens), -(-channels // block), 1),
            (
                *(record, state, plan.before, accepted),
                *(batch.cu_seqlens, batch.read_slots, batch.write_slots, batch.has_initial_state),
            ),
            (state.stride(0), channels),
            (width, block, REACH, *_strides(state)),
            num_warps=2,
        )

    def launch_rows(
        self, call: ShortConvCall, batch: RowStatesBatch, plan: Drafts, record: torch.Tensor
    ) -> None:
        """Launch one kernel."""
        if len(record) == 0:
            return
        state = call.layer.state
        to = state if call.layer.row_states is None else call.layer.row_states
        channels, width = record.shape[1], state.shape[2] + 1
        block = min(256, padded(channels))
        _launch_each(
            (len(batch.seqlens), -(-channels // block), 1),
            (
                *(record, state, to, plan.before, batch.cu_seqlens),
                *(batch.read_slots, batch.row_slots, batch.has_initial_state),
            ),
            (state.stride(0), to.stride(0), channels, batch.row_slots.shape[1]),
            (width, block, REACH, *_strides(state), *_strides(to)),
            num_warps=2,
        )


def _arguments(
    call: ShortConvCall, most: int | None = None
) -> tuple[tuple[torch.Tensor, ...], tuple[int, ...], int, tuple[bool | int, ...]]:
    """Arguments that several kernels take.

    Returns:
        The first tensors of these kernels, their first numbers, the number of taps, and constants: whether
        there is a bias, whether the activation is SiLU, and the two strides within a state.

    Raises:
        ContractError: There are more than `most` taps.
    """
    layer, x, out = call
    weight, bias, state = layer.weight, layer.bias, layer.state
    channels, width = weight.shape
    if most is not None and width > most:
        raise CONTRACT.error("weight", f"W = {width}", f"2 to {most} for the backend 'triton'")
    tensors = (x, weight, weight if bias is None else bias, state, out)
    numbers = (*x.stride(), state.stride(0), channels)
    return tensors, numbers, width, (bias is not None, layer.activation == "silu", *_strides(state))


def _strides(state: torch.Tensor) -> tuple[int, ...]:
    """The strides of columns and channels within a state; zeros if it is dense, with channels innermost."""
    _, step, column = state.stride()
    _, channels, columns = state.shape
    if (step == 1 or channels == 1) and (column == channels or columns == 1):
        return 0, 0
    return nonzero((column, step))
