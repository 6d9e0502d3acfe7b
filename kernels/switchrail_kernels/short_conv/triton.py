"""The short causal convolution in Triton: one launch in each phase."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from switchrail.ops.backend import foreign
from switchrail.ops.batch import Bounds, Phase, StateBatch, VerifyBatch
from switchrail.ops.short_conv.contract import CONTRACT, ShortConvBackend, ShortConvCall

from switchrail_kernels.checkpoints import kept_states
from switchrail_kernels.launch import Launcher, padded
from switchrail_kernels.plans import Decode, check_state_plan, refresh_decode
from switchrail_kernels.replay import Options, Tensors, calls_of
from switchrail_kernels.short_conv.convolve import convolve, step
from switchrail_kernels.short_conv.drafts import DRAFT_ROWS, REACH, Drafts, replay, verify
from switchrail_kernels.tables import split_rows, to_device

FEATURES = ("checkpoints",)

PIECE = 32
"""Rows of a program, which has its taps for all of them."""

ROWS = 8
"""Rows that it computes at once."""

_launch_convolve = Launcher(convolve)
_launch_step = Launcher(step)
_launch_verify = Launcher(verify)
_launch_replay = Launcher(replay)


@dataclass(frozen=True, slots=True)
class Pieces:
    """The rows of a prefill.

    Attributes:
        table: [pieces, 4] int32, at most `PIECE` rows of one sequence, as `split_rows` gives them.
        seqlens: The sequences' numbers of rows.
    """

    table: torch.Tensor
    seqlens: tuple[int, ...]


class TritonShortConv(ShortConvBackend):
    """The short convolution for compute capability 8.0 and later; up to 17 taps."""

    def plan(self, phase: Phase, batch: StateBatch, bounds: Bounds | None = None) -> Decode | Pieces | Drafts:
        """Cuts the sequences of a prefill into pieces, or follows drafted rows back."""
        CONTRACT.check_batch(phase, batch, FEATURES)
        if isinstance(batch, VerifyBatch):
            return Drafts.of(batch)
        if phase == "decode":
            return Decode(len(batch.seqlens))
        return Pieces(to_device(split_rows(batch.seqlens, PIECE), batch.cu_seqlens.device), batch.seqlens)

    def refresh(self, plan: Any, batch: StateBatch) -> None:
        """Of decode: another batch of as many sequences.

        Raises:
            ArgumentError: The plan is another phase's.
            ContractError: The batch is no such one.
        """
        refresh_decode(CONTRACT, plan, batch)

    def run(
        self, call: ShortConvCall, batch: StateBatch, plan: Decode | Pieces | Drafts
    ) -> torch.Tensor | None:
        """Runs T packed rows of N sequences of any length, drafted ones, or one each.

        Returns:
            Of drafted rows their inputs, which `commit` makes states of.
        """
        layer, x, out = call
        calls = calls_of(layer, type(self))
        given: Tensors = (x, out, batch.read_slots, batch.write_slots)
        options: Options = (len(batch.seqlens),)
        if plan.__class__ is Decode and batch.__class__ is StateBatch and calls.again(given, options):
            return None
        CONTRACT.check_call(call, batch, FEATURES)
        check_state_plan(plan, batch, Pieces, Drafts)
        weight, bias, state = layer.weight, layer.bias, layer.state
        channels, width = weight.shape
        if not isinstance(plan, Decode) and width > REACH + 1:
            raise CONTRACT.error("weight", f"W = {width}", f"2 to {REACH + 1} for the backend 'triton'")
        tensors = (x, weight, weight if bias is None else bias, state, out)
        numbers = (*x.stride(), state.stride(0), channels)
        constants = (bias is not None, layer.activation == "silu")
        slots = (batch.read_slots, batch.write_slots)
        if isinstance(plan, Drafts):
            kept = torch.empty_like(out)
            if len(plan.tiles):
                block = min(256, padded(channels))
                _launch_verify(
                    (plan.tiles.shape[0], -(-channels // block), 1),
                    (*tensors, kept, plan.tiles, plan.before, *slots, batch.has_initial_state),
                    numbers,
                    (width, DRAFT_ROWS, block, REACH, *constants),
                    num_warps=4,
                )
            return kept
        if x.shape[0] == 0:
            return None
        if isinstance(plan, Decode):
            block = min(256, padded(channels))
            with calls.record(layer, given, options):
                _launch_step(
                    (x.shape[0], -(-channels // block), 1),
                    (*tensors, *slots),
                    numbers,
                    (width, block, *constants),
                    num_warps=2,
                )
            return None
        kept_slots, *every = kept_states(batch)
        planned = (plan.table, batch.cu_seqlens, *slots, batch.has_initial_state, kept_slots)
        given, options = (*given, *planned), (*options, *every)
        if calls.again(given, options):
            return None
        compiler = {}
        if x.stride(1) != 1:
            block, warps = 64, 2
        elif width > 4:
            block, warps = 256, 4
        else:
            block, warps = 512, 4
            compiler = {"maxnreg": 96}  # so that enough programs share a multiprocessor
        block = min(block, padded(channels))
        with calls.record(layer, given, options):
            _launch_convolve(
                (plan.table.shape[0] * -(-channels // block), 1, 1),
                (*tensors, *planned),
                (*numbers, *every),
                (width, ROWS, block, *constants, every[0] > 0),
                num_warps=warps,
                **compiler,
            )
        return None

    def commit(
        self, call: ShortConvCall, batch: VerifyBatch, plan: object, record: object, accepted: torch.Tensor
    ) -> None:
        """Writes the window after each sequence's last accepted row."""
        CONTRACT.check_accepted(batch, accepted)
        if not isinstance(plan, Drafts):
            raise foreign("plan", plan)
        if not isinstance(record, torch.Tensor):
            raise foreign("record", record)
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
            (width, block, REACH),
            num_warps=2,
        )


__all__ = ["TritonShortConv"]
