"""Makes random calls from the contracts, on the device, so that large calls are made fast."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch
from switchrail.ops.batch import PagedBatch, SequenceBatch, StateBatch
from switchrail.ops.catalog import DEFINITIONS
from switchrail.testing.inputs import Sample

from benchmarks.ops.cases import Case
from benchmarks.ops.tensors import tensors_of


def make_call(case: Case, device: torch.device, dtype: torch.dtype, seed: int = 0) -> Sample:
    """A random call of a case. Per-token inputs such as q, k and v are views of one tensor."""
    # `torch.manual_seed` formats its caller's stack for each kind of device that torch has not initialised.
    torch.default_generator.manual_seed(seed)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(seed)
    contract = DEFINITIONS[case.op].contract
    wanted = tensors_of(case.op, case.axes, dtype)
    views = [
        name
        for name, (shape, kind) in wanted.items()
        if len(shape) == 3
        and contract.tensors[name].unit_stride
        and kind == dtype
        and contract.tensors[name].axes[0] == "T"
    ]
    widths = [math.prod(wanted[name][0][1:]) for name in views]
    rows = sum(case.lengths)
    fused = torch.randn(rows, sum(widths), dtype=dtype, device=device).split(widths, dim=1)
    tensors: dict[str, torch.Tensor | None] = {
        name: part.unflatten(1, wanted[name][0][1:]) for name, part in zip(views, fused, strict=True)
    }
    for name, spec in contract.tensors.items():
        if spec.feature is not None or name in tensors:
            continue
        if name not in wanted:
            tensors[name] = None
            continue
        shape, kind = wanted[name]
        order = [spec.axes.index(axis) for axis in spec.memory or spec.axes]
        dense = _fill(name, [shape[axis] for axis in order], kind, device, case)
        tensors[name] = dense.permute([order.index(axis) for axis in range(len(shape))])
    return Sample(
        contract=contract,
        phase=case.phase,
        tensors=tensors,
        options=_options(case),
        batch=_batch(case, device),
    )


def with_pools_of_its_own(call: Sample) -> Sample:
    """The same call on another state or cache of the same size, like the call of a model's next layer."""
    pools = {
        name: torch.randn_like(tensor)
        for name, tensor in call.tensors.items()
        if tensor is not None and (name == "state" or name.endswith("_cache"))
    }
    return dataclasses.replace(call, tensors={**call.tensors, **pools})


def _fill(
    name: str, shape: Sequence[int], dtype: torch.dtype, device: torch.device, case: Case
) -> torch.Tensor:
    if name == "out":
        return torch.full(shape, math.nan, dtype=dtype, device=device)
    if name in ("beta", "A"):
        return torch.rand(shape, dtype=dtype, device=device) * (1 if name == "beta" else -1)
    values = torch.randn(shape, dtype=dtype, device=device)
    if name == "g":  # decays as in trained models; see `switchrail.ops.samples.random`
        return -0.3 * torch.nn.functional.softplus(values) if case.decays else values.zero_()
    return values * case.sizes["R"] ** -0.5 if name in ("w_k", "w_v") else values


def _options(case: Case) -> dict[str, Any]:
    """The options of a small sample with the case's head sizes."""
    definition = DEFINITIONS[case.op]
    sizes = {axis: size for axis, size in case.sizes.items() if axis not in (definition.heads or ())}
    return definition.generator([1], **definition.generated(sizes)).options


def _batch(case: Case, device: torch.device) -> SequenceBatch:
    lengths = case.lengths
    starts = torch.tensor([0, *lengths]).cumsum(0).int()
    common: dict[str, Any] = {"cu_seqlens": starts.to(device), "seqlens": lengths}
    if not DEFINITIONS[case.op].paged:
        slots = (torch.randperm(len(lengths)) + 1).to(device)
        started = torch.ones(len(lengths), dtype=torch.bool, device=device)
        return StateBatch(**common, read_slots=slots, write_slots=slots, has_initial_state=started)
    seen = tuple(length + case.past for length in lengths)
    counts = [-(-length // case.sizes["page"]) for length in seen]
    order = (torch.randperm(sum(counts)) + 1).int()
    table = torch.zeros(len(lengths), max(counts), dtype=torch.int32)
    for n, pages in enumerate(order.split(counts)):
        table[n, : len(pages)] = pages
    return PagedBatch(
        **common,
        page_table=table.to(device),
        kv_lens=torch.tensor(seen, dtype=torch.int32, device=device),
        kv_seqlens=seen,
    )
