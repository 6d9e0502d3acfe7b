"""The causal convolution with state in plain torch: all rows of all sequences at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from switchrail.ops.backend import ShortConvBackend
from switchrail.ops.batch import Phase, StateBatch
from switchrail.ops.short_conv.contract import CONTRACT
from switchrail.ops.slots import Slots

BLOCK_NUMBERS = 2**17
"""How many numbers are summed over all taps before the next: half a megabyte, which stays in the cache."""


@dataclass(frozen=True, slots=True)
class _Ends:
    """The rows at both ends of the M sequences, whose windows or states reach into the old state.

    A pool of rows is made of the M old states, W - 1 rows each, and of the rows `picked` from x; the others
    index it.

    Attributes:
        picked: int64, rows of x.
        first_rows: [R] int64, the first W - 1 rows of each sequence, fewer where it is shorter.
        windows: [R * W] int64, the window of each first row.
        states: [M * (W - 1)] int64, the new states.
    """

    picked: torch.Tensor
    first_rows: torch.Tensor
    windows: torch.Tensor
    states: torch.Tensor


class _Plan:
    """The states of the sequences that are not empty, and where their rows lie."""

    def __init__(self, batch: StateBatch) -> None:
        sequences = [n for n, length in enumerate(batch.seqlens) if length]
        self.slots = Slots(CONTRACT, batch, sequences)
        self._counts = [batch.seqlens[n] for n in sequences]
        self._device = batch.read_slots.device
        self._ends: dict[int, _Ends] = {}
        self.padding_rows: torch.Tensor | None = None
        """[T, 1] bool, the rows of padding; None where it is known that there is none."""
        if self.slots.padding is not None:
            counts = torch.tensor(self._counts).to(self._device, non_blocking=True)
            rows = torch.repeat_interleave(self.slots.padding, counts, output_size=sum(self._counts))
            self.padding_rows = rows[:, None]

    def ends(self, width: int) -> _Ends:
        """The ends for W taps, made when the first layer of a step asks."""
        if width not in self._ends:
            self._ends[width] = self._make_ends(width)
        return self._ends[width]

    def _make_ends(self, width: int) -> _Ends:
        reach = width - 1
        picked: list[int] = []
        first_rows: list[int] = []
        windows: list[int] = []
        states: list[int] = []
        pool = len(self._counts) * reach
        start = 0
        for m, count in enumerate(self._counts):
            old = list(range(m * reach, (m + 1) * reach))
            near = min(count, reach)
            head = list(range(pool + len(picked), pool + len(picked) + near))
            picked += range(start, start + near)
            first_rows += range(start, start + near)
            for i in range(near):
                windows += [*old[i:], *head[: i + 1]]
            tail = list(range(pool + len(picked), pool + len(picked) + near))
            picked += range(start + count - near, start + count)
            states += [*old, *tail][-reach:]
            start += count
        tensors = (torch.tensor(index, dtype=torch.int64) for index in (picked, first_rows, windows, states))
        return _Ends(*(tensor.to(self._device, non_blocking=True) for tensor in tensors))


class TorchShortConv(ShortConvBackend):
    """Shifted multiply-adds over all packed rows, then the rows near a sequence's start again with its state.

    Computes in float32, in float64 for float64 inputs.
    """

    def plan(self, phase: Phase, batch: StateBatch) -> _Plan:
        """Prepares which states and rows the sequences need."""
        CONTRACT.check_batch(phase, batch)
        return _Plan(batch)

    def prefill(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        *,
        bias: torch.Tensor | None,
        state: torch.Tensor,
        out: torch.Tensor,
        batch: StateBatch,
        plan: object,
        activation: Literal["silu"] | None,
    ) -> None:
        """Runs T packed rows of N sequences of any length."""
        tensors = {"x": x, "weight": weight, "bias": bias, "state": state, "out": out}
        CONTRACT.check_arguments(batch, {**tensors, "activation": activation})
        assert isinstance(plan, _Plan)
        rows, channels = x.shape
        if rows == 0:
            return
        width = weight.shape[1]
        compute = torch.float64 if x.dtype == torch.float64 else torch.float32
        x = x.to(compute, memory_format=torch.contiguous_format)
        taps = weight.T.to(compute, memory_format=torch.contiguous_format)
        y = out if out.dtype == compute else torch.empty_like(x)
        block = max(BLOCK_NUMBERS // channels, 1)
        for low in range(0, rows, block):
            high = min(low + block, rows)
            torch.mul(x[low:high], taps[-1], out=y[low:high])
            for back in range(1, min(width, high)):
                first = max(low, back)
                y[first:high].addcmul_(x[first - back : high - back], taps[-1 - back])
        ends = plan.ends(width)
        pool = state.transpose(1, 2)
        old = plan.slots.load(pool, compute).flatten(0, 1)
        near = torch.cat([old, x.index_select(0, ends.picked)])
        windows = near.index_select(0, ends.windows).view(-1, width, channels)
        y.index_copy_(0, ends.first_rows, (windows * taps).sum(1))
        plan.slots.store(pool, near.index_select(0, ends.states).view(-1, width - 1, channels))
        _finish(y, bias, activation, plan, out)

    def decode(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        *,
        bias: torch.Tensor | None,
        state: torch.Tensor,
        out: torch.Tensor,
        batch: StateBatch,
        plan: object,
        activation: Literal["silu"] | None,
    ) -> None:
        """Runs one row a sequence."""
        tensors = {"x": x, "weight": weight, "bias": bias, "state": state, "out": out}
        CONTRACT.check_arguments(batch, {**tensors, "activation": activation})
        assert isinstance(plan, _Plan)
        compute = torch.float64 if x.dtype == torch.float64 else torch.float32
        pool = state.transpose(1, 2)
        window = torch.cat([plan.slots.load(pool, compute), x[:, None].to(compute)], dim=1)
        plan.slots.store(pool, window[:, 1:])
        y = window.mul_(weight.T.to(compute, memory_format=torch.contiguous_format)).sum(1)
        _finish(y, bias, activation, plan, out)


def _finish(
    y: torch.Tensor,
    bias: torch.Tensor | None,
    activation: Literal["silu"] | None,
    plan: _Plan,
    out: torch.Tensor,
) -> None:
    """Turns the sums `y` into `out`, which may be `y` itself."""
    if bias is not None:
        y += bias
    if activation == "silu":
        torch.nn.functional.silu(y, inplace=True)
    if plan.padding_rows is not None:
        y.masked_fill_(plan.padding_rows, 0)
    if y is not out:
        out.copy_(y)


__all__ = ["TorchShortConv"]
