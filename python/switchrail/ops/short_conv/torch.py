"""The causal convolution with state in plain torch: all rows of all sequences at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from switchrail.ops.backend import check_plan
from switchrail.ops.batch import Bounds, CheckpointBatch, Phase, StateBatch
from switchrail.ops.recurrent import TorchRecurrent, TreePlan, plan_tree, run_tree
from switchrail.ops.short_conv.contract import CONTRACT, ShortConvBackend, ShortConvCall
from switchrail.ops.slots import Slots, indices, keep, normal

BLOCK_NUMBERS = 2**17
"""Numbers per block of rows that is summed over all taps at once; 512 KiB in float32, to fit in a cache."""


@dataclass(frozen=True, slots=True)
class _Ends:
    """The first rows of M sequences, which read the old states, and the last rows, which become new states.

    `windows`, `states` and `kept` index an array of rows: the M old states, W - 1 rows each, then the rows
    `picked` of x.

    Attributes:
        picked: int64, the rows of x that are first, last or in a checkpoint.
        first_rows: [R] int64, the first W - 1 rows of each sequence, or fewer if it is shorter.
        windows: [R * W] int64, the window of each first row.
        states: [M * (W - 1)] int64, the new states.
        kept: [checkpoints * (W - 1)] int64, the states at the checkpoints.
    """

    picked: torch.Tensor
    first_rows: torch.Tensor
    windows: torch.Tensor
    states: torch.Tensor
    kept: torch.Tensor


class _Plan:
    """The states of the nonempty sequences, and the rows that read or become states."""

    def __init__(self, batch: StateBatch) -> None:
        sequences = [n for n, length in enumerate(batch.seqlens) if length]
        self.seqlens = batch.seqlens
        self.slots = Slots(CONTRACT, batch, sequences)
        self._counts = [batch.seqlens[n] for n in sequences]
        self.single = all(count == 1 for count in self._counts)
        """Whether each sequence has one row."""
        self._device = batch.read_slots.device
        self._kept_after: list[int] = []
        self.kept_slots: torch.Tensor | None = None
        """[R] int64, the slots of the checkpoints; None if there are none."""
        if isinstance(batch, CheckpointBatch):
            every = batch.checkpoint_every
            places: list[int] = []
            start = 0
            for n, length in enumerate(batch.seqlens):
                self._kept_after += range(start + every, start + length + 1, every)
                places += [n * batch.checkpoint_slots.shape[1] + i for i in range(length // every)]
                start += length
            wanted = indices(places, self._device)
            kept = normal(batch.checkpoint_slots, batch)
            self.kept_slots = kept.flatten().index_select(0, wanted)
        self._ends: dict[int, _Ends] = {}
        self.padding_rows: torch.Tensor | None = None
        """[T, 1] bool, which rows are padding; None if it is known that none are."""
        if self.slots.padding is not None:
            counts = indices(self._counts, self._device)
            rows = torch.repeat_interleave(self.slots.padding, counts, output_size=sum(self._counts))
            self.padding_rows = rows[:, None]

    def ends(self, width: int) -> _Ends:
        """The ends for W taps, determined on first use in a step."""
        if width not in self._ends:
            self._ends[width] = self._make_ends(width)
        return self._ends[width]

    def _make_ends(self, width: int) -> _Ends:
        reach = width - 1
        picked: list[int] = []
        first_rows: list[int] = []
        windows: list[int] = []
        states: list[int] = []
        kept: list[int] = []
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
            for after in self._kept_after:
                if start < after <= start + count:
                    near = min(after - start, reach)
                    last = range(pool + len(picked), pool + len(picked) + near)
                    picked += range(after - near, after)
                    kept += [*old, *last][-reach:]
            start += count
        return _Ends(*(indices(it, self._device) for it in (picked, first_rows, windows, states, kept)))


class TorchShortConv(TorchRecurrent[ShortConvCall], ShortConvBackend):
    """Adds shifted products over all packed rows, then computes each sequence's first rows with its state.

    Computes in float32 (float64 for float64 inputs).
    """

    contract = CONTRACT

    def plan(self, phase: Phase, batch: StateBatch, bounds: Bounds | None = None) -> object:
        """Prepare the states and rows of the sequences."""
        if phase == "verify":
            return plan_tree(CONTRACT, batch)
        CONTRACT.check_batch(phase, batch, CONTRACT.features)
        return _Plan(batch)

    def run(self, call: ShortConvCall, batch: StateBatch, plan: _Plan | TreePlan) -> torch.Tensor | None:
        """Run T packed rows of N sequences of any length, or drafted rows if the plan is for them."""
        CONTRACT.check_call(call, batch, CONTRACT.feature_names)
        check_plan(plan, batch, (_Plan,), TreePlan)
        layer, x, out = call
        bias, activation, pool = layer.bias, layer.activation, self.pool(call)
        compute = torch.promote_types(x.dtype, torch.float32)
        taps = layer.weight.T.to(compute, memory_format=torch.contiguous_format)
        if isinstance(plan, TreePlan):

            def step(states: torch.Tensor, rows: torch.Tensor | None) -> torch.Tensor:
                new = x if rows is None else x.index_select(0, rows)
                window = torch.cat([states, new[:, None].to(compute)], dim=1)
                states.copy_(window[:, 1:])
                return _activate(window.mul_(taps).sum(1), bias, activation)

            return run_tree(plan, pool, self.row_pool(call), out, compute, step)
        if len(x) == 0:
            return None
        if plan.single and plan.kept_slots is None:
            window = torch.cat([plan.slots.load(pool, compute), x[:, None].to(compute)], dim=1)
            plan.slots.store(pool, window[:, 1:])
            y = window.mul_(taps).sum(1)
        else:
            y = _convolve(plan, x, taps, pool, out)
        _activate(y, bias, activation)
        if plan.padding_rows is not None:
            y.masked_fill_(plan.padding_rows, 0)
        if y is not out:
            out.copy_(y)
        return None

    def pool(self, call: ShortConvCall) -> torch.Tensor:
        """The layer's pool of windows, with the time axis first."""
        return call.layer.state.transpose(1, 2)

    def row_pool(self, call: ShortConvCall) -> torch.Tensor:
        """The layer's pool of windows after drafted rows, with the time axis first."""
        return super().row_pool(call).transpose(1, 2)


def _convolve(
    plan: _Plan, x: torch.Tensor, taps: torch.Tensor, pool: torch.Tensor, out: torch.Tensor
) -> torch.Tensor:
    """The sums over the taps [W, C] for all rows, in the taps' dtype; written to `out` if it has that dtype.

    The pool [slots, W - 1, C] is updated in place.
    """
    rows, channels = x.shape
    width, compute = len(taps), taps.dtype
    x = x.to(compute, memory_format=torch.contiguous_format)
    y = out if out.dtype == compute else torch.empty_like(x)
    block = max(BLOCK_NUMBERS // channels, 1)
    for low in range(0, rows, block):
        high = min(low + block, rows)
        torch.mul(x[low:high], taps[-1], out=y[low:high])
        for back in range(1, min(width, high)):
            first = max(low, back)
            y[first:high].addcmul_(x[first - back : high - back], taps[-1 - back])
    ends = plan.ends(width)
    old = plan.slots.load(pool, compute).flatten(0, 1)
    near = torch.cat([old, x.index_select(0, ends.picked)])
    windows = near.index_select(0, ends.windows).view(-1, width, channels)
    y.index_copy_(0, ends.first_rows, (windows * taps).sum(1))
    if plan.kept_slots is not None:
        keep(pool, near.index_select(0, ends.kept).view(-1, width - 1, channels), plan.kept_slots)
    plan.slots.store(pool, near.index_select(0, ends.states).view(-1, width - 1, channels))
    return y


def _activate(y: torch.Tensor, bias: torch.Tensor | None, activation: Literal["silu"] | None) -> torch.Tensor:
    """Add the bias to the sums and apply the activation, in place."""
    if bias is not None:
        y += bias
    return torch.nn.functional.silu(y, inplace=True) if activation == "silu" else y
