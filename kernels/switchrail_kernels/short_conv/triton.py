"""The short causal convolution in Triton: one launch in each phase."""

from __future__ import annotations

from types import NoneType
from typing import ClassVar, Literal

import torch
from switchrail.ops.backend import ShortConvBackend, foreign
from switchrail.ops.batch import Phase, StateBatch, VerifyBatch
from switchrail.ops.phases import OneRun
from switchrail.ops.short_conv.contract import CONTRACT

from switchrail_kernels.checkpoints import kept_states
from switchrail_kernels.launch import Launcher, padded
from switchrail_kernels.replay import Calls, Options, Tensors
from switchrail_kernels.short_conv.convolve import convolve, step
from switchrail_kernels.short_conv.drafts import DRAFT_ROWS, REACH, Drafts, replay, verify
from switchrail_kernels.tables import split_rows, to_device

PIECE = 32
"""Rows of a program, which has its taps for all of them."""

ROWS = 8
"""Rows that it computes at once."""

_calls = Calls()
_launch_convolve = Launcher(convolve)
_launch_step = Launcher(step)
_launch_verify = Launcher(verify)
_launch_replay = Launcher(replay)


class TritonShortConv(OneRun, ShortConvBackend):
    """The short convolution for compute capability 8.0 and later; up to 17 taps."""

    plan_types: ClassVar[dict[Phase, type]] = {"prefill": torch.Tensor, "decode": NoneType, "verify": Drafts}

    def plan(self, phase: Phase, batch: StateBatch) -> torch.Tensor | Drafts | None:
        """Cuts the sequences of a prefill into pieces, or follows drafted rows back."""
        CONTRACT.check_batch(phase, batch, ("checkpoints",))
        if isinstance(batch, VerifyBatch):
            return Drafts.of(batch)
        if phase == "decode":
            return None
        return to_device(split_rows(batch.seqlens, PIECE), batch.cu_seqlens.device)

    def run(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        *,
        bias: torch.Tensor | None,
        state: torch.Tensor,
        out: torch.Tensor,
        batch: StateBatch,
        plan: torch.Tensor | Drafts | None,
        activation: Literal["silu"] | None,
    ) -> torch.Tensor | None:
        """Runs T packed rows of N sequences of any length, drafted ones, or one each without a plan.

        Returns:
            Of drafted rows their inputs, which `commit` makes states of.
        """
        given: Tensors = (x, weight, bias, state, out, batch.read_slots, batch.write_slots)
        options: Options = (len(batch.seqlens), activation)
        if plan is None and _calls.again(given, options):
            return None
        CONTRACT.check_arguments(
            batch,
            {"x": x, "weight": weight, "bias": bias, "state": state, "out": out, "activation": activation},
        )
        channels, width = weight.shape
        if plan is not None and width > REACH + 1:
            raise CONTRACT.error("weight", f"W = {width}", f"2 to {REACH + 1} for the backend 'triton'")
        tensors = (x, weight, weight if bias is None else bias, state, out)
        numbers = (*x.stride(), state.stride(0), channels)
        constants = (bias is not None, activation == "silu")
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
        if plan is None:
            block = min(256, padded(channels))
            with _calls.record(given, options):
                _launch_step(
                    (x.shape[0], -(-channels // block), 1),
                    (*tensors, *slots),
                    numbers,
                    (width, block, *constants),
                    num_warps=2,
                )
            return None
        kept_slots, *every = kept_states(batch)
        planned = (plan, batch.cu_seqlens, *slots, batch.has_initial_state, kept_slots)
        given, options = (*given, *planned), (*options, *every)
        if _calls.again(given, options):
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
        with _calls.record(given, options):
            _launch_convolve(
                (plan.shape[0] * -(-channels // block), 1, 1),
                (*tensors, *planned),
                (*numbers, *every),
                (width, ROWS, block, *constants, every[0] > 0),
                num_warps=warps,
                **compiler,
            )
        return None

    def commit(
        self,
        record: object,
        accepted: torch.Tensor,
        *,
        state: torch.Tensor,
        batch: VerifyBatch,
        plan: object,
    ) -> None:
        """Writes the window after each sequence's last accepted row."""
        CONTRACT.check_accepted(batch, accepted)
        if not isinstance(plan, Drafts):
            raise foreign("plan", plan)
        if not isinstance(record, torch.Tensor):
            raise foreign("record", record)
        if len(record) == 0:
            return
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
