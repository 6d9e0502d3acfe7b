"""Backends for decode and verification that read no values on the host, so that `RecordedGraph` can capture
them."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import switchrail
import torch
from switchrail.ops import AttentionBackend, GatedDeltaBackend, ShortConvBackend
from switchrail.ops.batch import Bounds, DeferredBatch, PagedTreeBatch
from switchrail.platforms.graph import Graph
from switchrail.testing.graph import RecordedGraph


class Capturable:
    """Base of the backends. A plan is the `bounds` passed to `plan`, possibly None.

    `refreshed` lists, for each batch passed to `refresh`, its `kv_seqlens` if it has them, else its
    `seqlens`.
    """

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.refreshed: list[tuple[int, ...]] = []

    def plan(self, phase: str, batch: Any, bounds: Any = None) -> object:
        assert phase in ("decode", "verify")
        return bounds

    def refresh(self, plan: Any, batch: Any) -> None:
        assert len(batch.seqlens) == plan.sequences
        self.refreshed.append(getattr(batch, "kv_seqlens", batch.seqlens))


class CapturableAttention(Capturable, AttentionBackend):
    def run(self, call: Any, batch: Any, plan: Any) -> None:
        if plan is not None and plan.rows != plan.sequences:
            return self.run_rows(call, batch, plan)
        layer = call.layer
        keys, values = (
            cache[batch.page_table.long()].flatten(1, 2).float() for cache in (layer.k_cache, layer.v_cache)
        )
        n, heads, size = call.q.shape
        q = call.q.float().view(n, keys.shape[2], -1, size)
        scores = torch.einsum("nhgd,nthd->nhgt", q, keys) * layer.scale
        beyond = torch.arange(keys.shape[1], device=q.device) >= batch.kv_lens.unsqueeze(1)
        weights = scores.masked_fill(beyond[:, None, None], float("-inf")).softmax(-1).nan_to_num()
        values = values.masked_fill(beyond[:, :, None, None], 0)  # unused values can be NaN
        call.out.copy_(torch.einsum("nhgt,nthd->nhgd", weights, values).reshape(n, heads, size))

    @staticmethod
    def run_rows(call: Any, batch: Any, plan: Any) -> None:
        layer, count, width = call.layer, plan.sequences, plan.rows // plan.sequences
        keys, values = (
            cache[batch.page_table.long()].flatten(1, 2).float() for cache in (layer.k_cache, layer.v_cache)
        )
        _, heads, size = call.q.shape
        q = call.q.float().view(count, width, keys.shape[2], -1, size)
        scores = torch.einsum("nxhgd,nthd->nxhgt", q, keys) * layer.scale
        own = torch.arange(keys.shape[1]) - (
            batch.kv_lens.unsqueeze(1) - width
        )  # [N, T]; 0 at the first new row
        follows = torch.ones(width, width, dtype=torch.bool).tril().expand(count, -1, -1)
        if isinstance(batch, PagedTreeBatch):
            parents = batch.parents.view(count, width).long()
            follows = (parents.unsqueeze(-1) == torch.arange(width)) | torch.eye(width, dtype=torch.bool)
            for _ in range(width):
                follows = (follows.float() @ follows.float()) > 0
        is_own = (own >= 0) & (own < width)
        of_rows = follows.gather(2, own.clamp(0, width - 1).unsqueeze(1).expand(-1, width, -1))
        seen = torch.where(is_own.unsqueeze(1), of_rows, (own < 0).unsqueeze(1))
        weights = scores.masked_fill(~seen[:, :, None, None], float("-inf")).softmax(-1).nan_to_num()
        beyond = own >= width
        values = values.masked_fill(beyond[:, :, None, None], 0)
        call.out.copy_(torch.einsum("nxhgt,nthd->nxhgd", weights, values).reshape(-1, heads, size))


class Verifying:
    """Base of the backends with states. A verification runs row 0 of every sequence together, then row 1,
    and so on, and records the states after each."""

    run_single: Any
    step: Any

    def run(self, call: Any, batch: Any, plan: Any) -> Any:
        if plan is not None and plan.rows != plan.sequences:
            return self.verify(call, batch, plan)
        return self.run_single(call, batch, batch.read_slots >= 0, batch.read_slots.clamp(min=0))

    def verify(self, call: Any, batch: Any, plan: Any) -> torch.Tensor:
        count, width = plan.sequences, plan.rows // plan.sequences
        live = batch.read_slots >= 0
        initial = call.layer.state[batch.read_slots.clamp(min=0)]
        shape = (-1, *[1] * (initial.ndim - 1))
        states = [initial.masked_fill(~live.view(shape), 0).float()]
        parents = batch.parents.view(count, width).long()
        every = torch.arange(count)
        for row in range(width):
            before = torch.stack(states)[parents[:, row] + 1, every]
            rows = every * width + row
            after, out = self.step(call, before, rows)
            states.append(after)
            call.out[rows] = out.masked_fill(~live.view(-1, *[1] * (out.ndim - 1)), 0)
        return torch.stack(states)

    def commit(self, call: Any, batch: Any, plan: Any, record: Any, accepted: torch.Tensor) -> None:
        self.store(call.layer.state, batch, record[accepted + 1, torch.arange(len(accepted))])

    @staticmethod
    def store(state: torch.Tensor, batch: Any, new: torch.Tensor) -> None:
        """Write states; padding rewrites slot 0 with its old value."""
        slots = batch.write_slots.clamp(min=0)
        live = (batch.write_slots >= 0).view(-1, *[1] * (state.ndim - 1))
        state.index_copy_(0, slots, torch.where(live, new, state[slots]))


class CapturableDelta(Verifying, Capturable, GatedDeltaBackend):
    def run_single(self, call: Any, batch: Any, live: torch.Tensor, slots: torch.Tensor) -> None:
        layer = call.layer
        state = layer.state[slots].masked_fill(~live[:, None, None, None], 0).float()
        repeat = call.v.shape[1] // call.q.shape[1]
        q, k = (self.normal(x.float()).repeat_interleave(repeat, 1) for x in (call.q, call.k))
        state = state * call.g.float().exp()[..., None, None]
        wanted = (call.v.float() - torch.einsum("nhvk,nhk->nhv", state, k)) * call.beta.float()[..., None]
        state = state + torch.einsum("nhv,nhk->nhvk", wanted, k)
        out = torch.einsum("nhvk,nhk->nhv", state, q) * layer.scale
        call.out.copy_(out.masked_fill(~live[:, None, None], 0))
        self.store(layer.state, batch, state)

    def step(self, call: Any, state: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        repeat = call.v.shape[1] // call.q.shape[1]
        q, k = (self.normal(x[rows].float()).repeat_interleave(repeat, 1) for x in (call.q, call.k))
        state = state * call.g[rows].float().exp()[..., None, None]
        wanted = call.v[rows].float() - torch.einsum("nhvk,nhk->nhv", state, k)
        state = state + torch.einsum("nhv,nhk->nhvk", wanted * call.beta[rows].float()[..., None], k)
        return state, torch.einsum("nhvk,nhk->nhv", state, q) * call.layer.scale

    @staticmethod
    def normal(x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


class DeferringDelta(CapturableDelta):
    """Commits a verification in the next one, from records of the states after each row."""

    def run(self, call: Any, batch: Any, plan: Any) -> Any:
        if not isinstance(batch, DeferredBatch):
            return super().run(call, batch, plan)
        layer, width = call.layer, batch.pending_rows.shape[1]
        kept = layer.kept.setdefault(
            DeferringDelta, torch.full((batch.record_count, width, *layer.state.shape[1:]), torch.nan)
        )
        pending, last = batch.pending_records, (batch.pending_rows * torch.arange(width)).amax(1)
        has = (pending >= 0).view(-1, 1, 1, 1)
        slots = batch.write_slots.clamp(min=0)
        live = (batch.write_slots >= 0).view(-1, 1, 1, 1)
        new = torch.where(has, kept[pending.clamp(min=0), last], layer.state[slots])
        layer.state.index_copy_(0, slots, torch.where(live, new, layer.state[slots]))
        if len(call.out):
            bounds = Bounds(sequences=len(batch.seqlens), rows=len(call.out), tokens=0)
            states = self.verify(call, batch, bounds)
            records = batch.records.clamp(min=0)
            own = torch.where((batch.records >= 0).view(1, -1, 1, 1, 1), states[1:], torch.nan)
            kept[records] = own.transpose(0, 1)
        return None


class CapturableConv(Verifying, Capturable, ShortConvBackend):
    def run_single(self, call: Any, batch: Any, live: torch.Tensor, slots: torch.Tensor) -> None:
        layer = call.layer
        window = torch.cat([layer.state[slots], call.x.unsqueeze(-1)], -1)
        out = (window * layer.weight).sum(-1)
        assert layer.bias is None
        assert layer.activation == "silu"
        call.out.copy_(torch.nn.functional.silu(out).masked_fill(~live[:, None], 0))
        self.store(layer.state, batch, window[..., 1:])

    @staticmethod
    def step(call: Any, state: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        window = torch.cat([state, call.x[rows].unsqueeze(-1)], -1)
        return window[..., 1:], torch.nn.functional.silu((window * call.layer.weight).sum(-1))


CAPTURABLE = {"attention": CapturableAttention, "gated_delta": CapturableDelta, "short_conv": CapturableConv}


def register_capturable(runtime: switchrail.Runtime, *, defers: bool) -> None:
    """Registers capturable backends for verification; if `defers`, gated_delta's defers its commits."""
    own: dict[str, tuple[str, ...]] = {"attention": ("trees",)}
    backends: dict[str, Any] = CAPTURABLE
    if defers:
        own["gated_delta"] = ("deferred_commit",)
        backends = {**CAPTURABLE, "gated_delta": DeferringDelta}
    for op, backend in backends.items():
        features = ("cuda_graph", "device_parents", *own.get(op, ()))
        runtime.register(
            "capturable-verify", backend, op=op, phases=("verify",), features=features, priority=-1
        )


class PooledGraph(RecordedGraph):
    """A graph whose capture fails if the graph that it shares memory with no longer exists."""

    def __init__(self, shares: Graph | None = None) -> None:
        super().__init__(shares)
        self.owner = None if shares is None else weakref.ref(shares)

    @contextmanager
    def capture(self) -> Iterator[None]:
        assert self.owner is None or self.owner() is not None, "the memory to share was freed"
        with super().capture():
            yield
